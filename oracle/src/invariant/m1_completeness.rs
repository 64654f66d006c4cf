//! M1: every request is answered in its entry.

use super::excuse::receivers;
use super::facts::{Answer, Exchange, Facts, Request, before};
use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// M1. Every S(c) has a D(c), in whatever ring, and nothing proves that the two are of different
/// entries. A late S (after its D) is answered too: the callback ran earlier in its entry and is
/// not run again (`unwind_completed`, kernel/unwind/deferred.c, 7.2).
///
/// Excuses: XA, XC and XD, as [`super::excuse`] proves them. Without an event that receives
/// record 22 nothing can be judged.
#[derive(Debug)]
pub struct Completeness;

impl Invariant for Completeness {
    fn id(&self) -> &'static str {
        "M1"
    }

    fn title(&self) -> &'static str {
        "every deferred sample gets its record 22 in the same entry"
    }

    fn check(&self, trace: &Trace) -> Check {
        let facts = Facts::new(trace);
        let mut verdict = Verdict::new(self.id());
        let received = receivers(trace).next().is_some();
        for (cookie, exchange) in facts.cookies().filter(|_| received) {
            if exchange.answers.is_empty() {
                missing(&facts, &mut verdict, cookie, exchange);
            } else {
                for request in &exchange.requests {
                    elsewhere(&facts, &mut verdict, request, &exchange.answers);
                }
            }
        }
        lab::judge(trace, &mut verdict, lab::matching::completeness);
        verdict.finish(match received {
            true => "no deferred samples",
            false => "no event receives record 22",
        })
    }
}

fn missing(facts: &Facts<'_>, verdict: &mut Verdict, cookie: u64, exchange: &Exchange<'_>) {
    let (Some(first), Some(last)) = (exchange.requests.first(), exchange.requests.last()) else {
        return;
    };
    let excuse = facts.unanswered(first).or_else(|| facts.unanswered(last));
    if let Some(why) = excuse {
        verdict.excuse(format!("cookie {cookie:#x}: {why}"));
        return;
    }
    let message = format!(
        "no record 22 for cookie {cookie:#x} of task {} ({} samples)",
        first.event.tid.unwrap_or_default(),
        exchange.requests.len()
    );
    let events = [first.event.index, last.event.index];
    let events = events.into_iter().chain(exit_behind(facts, last));
    verdict.violated(message, events, facts.instruction(last.event));
}

/// The exit record of the task, if it has not asked again before.
fn exit_behind(facts: &Facts<'_>, request: &Request<'_>) -> Option<usize> {
    let task = request.task?;
    let asked = { facts.requests.iter().rev() }.find(|it| it.task == Some(task));
    let exit = facts.tasks.exit(task)?;
    asked
        .is_some_and(|it| it.cookie == request.cookie)
        .then_some(exit)
}

fn elsewhere<'t>(
    facts: &Facts<'t>,
    verdict: &mut Verdict,
    request: &Request<'t>,
    answers: &[Answer<'t>],
) {
    let mut proof = None;
    for answer in answers {
        let apart = if before(answer.event, request.event) {
            facts.separated(answer.event, request.event)
        } else {
            facts.separated(request.event, answer.event)
        };
        let Some(apart) = apart else {
            return verdict.holds();
        };
        proof = Some((answer, apart));
    }
    let Some((answer, apart)) = proof else { return };
    let message = format!(
        "cookie {:#x} was answered in another entry than it was requested in: {}",
        request.cookie, apart.why
    );
    let events = [request.event.index, answer.event.index];
    let events = events.into_iter().chain(apart.events);
    verdict.violated(message, events, facts.instruction(request.event));
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, not_exercised, violations};
    use super::*;

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn answered_on_another_cpu_holds_and_so_does_a_late_sample() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, C);
        kit.deferred(1, 1001, C, &[0x40]);
        kit.nmi(1, 1001, C);
        assert_eq!(holds(&Completeness, &kit).0, 2);
    }

    #[test]
    fn unanswered_does_not_hold() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        let a = kit.nmi(0, 1001, C + (2 << 32));
        kit.nmi(0, 1001, C + (2 << 32));
        let b = kit.nmi(0, 1001, C + (2 << 32));
        assert_eq!(violations(&Completeness, &kit)[0].events, [a, b]);
    }

    #[test]
    fn answered_after_user_mode_does_not_hold() {
        let mut kit = Kit::new(1);
        let asked = kit.nmi(0, 1001, C);
        let leave = kit.sys_exit(0, 1001);
        let enter = kit.sys_enter(0, 1001);
        let answered = kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(
            violations(&Completeness, &kit)[0].events,
            [asked, leave, enter, answered]
        );
    }

    #[test]
    fn an_exiting_task_is_no_excuse() {
        let mut kit = Kit::new(1);
        let before = kit.nmi(0, 1001, C);
        let asked = kit.nmi(0, 1001, C + (2 << 32));
        let exit = kit.exit(0, 1001);
        let named: Vec<_> = { violations(&Completeness, &kit).into_iter() }
            .map(|it| it.events)
            .collect();
        assert_eq!(named, [vec![before], vec![asked, exit]]);
    }

    #[test]
    fn an_excuse_is_no_evidence() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.switch_out(0, 1001);
        assert!(not_exercised(&Completeness, &kit).contains("XD"));
    }

    #[test]
    fn without_a_receiver_nothing_is_judged() {
        let mut kit = Kit::new(1);
        kit.spec("track", |spec| spec.defer_output = false);
        kit.nmi(0, 1001, C);
        not_exercised(&Completeness, &kit);
    }
}
