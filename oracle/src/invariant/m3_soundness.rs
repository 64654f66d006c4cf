//! M3: every answer answers a request of its own entry.

use super::facts::{Facts, before, spec};
use super::verdict::Verdict;
use super::{Check, Invariant};
use crate::trace::Trace;

/// M3. For every D(c) there is an S(c) of an event that defers, and nothing proves that all of
/// them are of other entries than the D. An S(c) that was lost excuses (XA), as for C7, which
/// asks for the cookie alone.
#[derive(Debug)]
pub struct Soundness;

impl Invariant for Soundness {
    fn id(&self) -> &'static str {
        "M3"
    }

    fn title(&self) -> &'static str {
        "every record 22 answers a sample of the same entry"
    }

    fn check(&self, trace: &Trace) -> Check {
        let facts = Facts::new(trace);
        let mut verdict = Verdict::new(self.id());
        for (&cookie, exchange) in &facts.exchanges {
            for answer in &exchange.answers {
                let asked = |r: &&super::facts::Request<'_>| {
                    spec(trace, r.event).is_none_or(|spec| spec.defer_callchain)
                };
                let mut requests = exchange.requests.iter().filter(asked).peekable();
                let nobody = requests.peek().is_none();
                let same_entry = |r: &super::facts::Request<'_>| {
                    let (a, b) = if before(r.event, answer.event) {
                        (r.event, answer.event)
                    } else {
                        (answer.event, r.event)
                    };
                    facts.separated(a, b).is_none()
                };
                if requests.any(same_entry) {
                    verdict.holds();
                    continue;
                }
                if let Some(why) = facts.losses.between(None, answer.event.time) {
                    verdict.excuse(format!("cookie {cookie:#x}: {why}"));
                    continue;
                }
                let (events, instruction) = facts.story(answer);
                let what = if nobody {
                    "no sample asked for it"
                } else {
                    "it was asked for in other entries only"
                };
                let message = format!("record 22 with cookie {cookie:#x}: {what}");
                verdict.violated(message, events, instruction);
            }
        }
        verdict.finish("no record 22")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, not_exercised, violations};
    use super::*;

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn an_answer_to_a_request_holds() {
        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(holds(&Soundness, &kit).0, 1);
    }

    #[test]
    fn an_answer_to_nothing_or_to_an_earlier_entry_does_not() {
        let mut kit = Kit::new(1);
        let asked = kit.nmi(0, 1001, C);
        let stray = kit.deferred(0, 1001, 0, &[0x40]);
        assert_eq!(violations(&Soundness, &kit)[0].events, [asked, stray]);

        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        kit.sys_enter(0, 1001);
        kit.deferred(0, 1001, C, &[0x40]);
        violations(&Soundness, &kit);
    }

    #[test]
    fn an_event_that_does_not_defer_asks_for_nothing() {
        let mut kit = Kit::new(1);
        kit.spec("nmi", |spec| spec.defer_callchain = false);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        violations(&Soundness, &kit);
    }

    #[test]
    fn a_trace_without_answers_does_not_exercise_it() {
        not_exercised(&Soundness, &Kit::new(1));
    }
}
