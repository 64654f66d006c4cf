//! C7: the cookie of an answer is one that some request carried.

use super::facts::Facts;
use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// C7. For every D(c) there is an S(c), of whatever task and at whatever time: who and when is
/// for M3, M4 and M5.
///
/// The S(c) may have been lost though its request was made: perf asks for the cookie while it
/// prepares the sample, before it finds space for it. A loss before the D excuses (XA). Other
/// perf users than the session there are none in the guest.
#[derive(Debug)]
pub struct Origin;

impl Invariant for Origin {
    fn id(&self) -> &'static str {
        "C7"
    }

    fn title(&self) -> &'static str {
        "the cookie of record 22 is one that some sample carried"
    }

    fn check(&self, trace: &Trace) -> Check {
        let facts = Facts::new(trace);
        let mut verdict = Verdict::new(self.id());
        for (&cookie, exchange) in &facts.exchanges {
            for answer in &exchange.answers {
                if !exchange.requests.is_empty() {
                    verdict.holds();
                    continue;
                }
                if let Some(why) = facts.losses.between(None, answer.event.time) {
                    verdict.excuse(format!("cookie {cookie:#x}: {why}"));
                    continue;
                }
                let (events, instruction) = facts.story(answer);
                let message = format!("no sample carries cookie {cookie:#x} of a record 22");
                verdict.violated(message, events, instruction);
            }
        }
        lab::judge(trace, &mut verdict, lab::cookies::origin);
        verdict.finish("no record 22")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, not_exercised, violations};
    use super::*;

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn a_cookie_that_was_asked_for_holds() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(holds(&Origin, &kit).0, 1);
    }

    #[test]
    fn one_that_was_not_does_not() {
        let mut kit = Kit::new(1);
        let asked = kit.nmi(0, 1001, C);
        let stray = kit.deferred(0, 1001, 0, &[0x40]);
        assert_eq!(violations(&Origin, &kit)[0].events, [asked, stray]);
    }

    #[test]
    fn a_lost_sample_may_have_carried_it() {
        let mut kit = Kit::new(1);
        kit.lost(0, 1);
        kit.deferred(0, 1001, C, &[0x40]);
        assert!(not_exercised(&Origin, &kit).contains("XA"));
    }

    #[test]
    fn a_trace_without_answers_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        not_exercised(&Origin, &kit);
    }
}
