//! X2: a request of an exiting task is refused.

use super::facts::{Facts, Role, before, role, spec};
use super::m7_inline::is_inline;
use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::{Event, EventKind, Trace};

/// X2. Behind its exit record a task carries `PF_EXITING` (`exit_signals` comes before
/// `perf_event_exit_task` in kernel/exit.c, 7.2), so no sample of it may have a cookie; nor may
/// one of a task that is out of the pid hash, for which perf writes tid -1. That it is refused
/// between `PF_EXITING` and the exit record the trace cannot show, for nothing marks the former.
///
/// Evidence is a sample of an event that defers, behind the exit record without a cookie or
/// shortly before it with an inline chain, which is how a refusal looks.
#[derive(Debug)]
pub struct ExitingRefused;

impl Invariant for ExitingRefused {
    fn id(&self) -> &'static str {
        "X2"
    }

    fn title(&self) -> &'static str {
        "a request of an exiting task is refused"
    }

    fn check(&self, trace: &Trace) -> Check {
        let facts = Facts::new(trace);
        let mut verdict = Verdict::new(self.id());
        for event in &trace.events {
            let EventKind::Sample(sample) = &event.kind else {
                continue;
            };
            let defers = spec(trace, event).is_some_and(|spec| spec.defer_callchain);
            if !defers && role(trace, event) != Role::Nmi {
                continue;
            }
            let Some(cookie) = sample.cookie() else {
                let refused = behind_exit(&facts, event).is_some()
                    || (is_inline(sample) && facts.exiting(event));
                if defers && refused {
                    verdict.holds();
                }
                continue;
            };
            let exit = behind_exit(&facts, event);
            let gone = event.tid == Some(u32::MAX);
            if exit.is_none() && !gone {
                continue;
            }
            let who = event.tid.filter(|_| !gone);
            let who = who.map_or_else(|| "a dead task".into(), |tid| format!("task {tid}"));
            let message = format!("{who} got cookie {cookie:#x} though it was exiting");
            let events = exit.map(|e| e.index).into_iter().chain([event.index]);
            verdict.violated(message, events, facts.instruction(event));
        }
        lab::judge(trace, &mut verdict, lab::life::exiting_refused);
        verdict.finish("no refused sample of an exiting task")
    }
}

/// The exit record of the task of `event`, if it came before.
fn behind_exit<'t>(facts: &Facts<'t>, event: &Event) -> Option<&'t Event> {
    let exit = facts.tasks.exit(facts.tasks.of(event)?)?;
    let exit = facts.trace.events.get(exit)?;
    before(exit, event).then_some(exit)
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, not_exercised, violations};
    use super::*;

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn inline_and_bare_samples_of_an_exiting_task_hold() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.inline(0, 1001, &[0x40]);
        kit.exit(0, 1001);
        kit.kernel_only(0, 1001);
        assert_eq!(holds(&ExitingRefused, &kit).0, 2);
    }

    #[test]
    fn a_cookie_behind_the_exit_record_does_not() {
        let mut kit = Kit::new(1);
        let exit = kit.exit(0, 1001);
        let at = kit.nmi(0, 1001, C);
        assert_eq!(violations(&ExitingRefused, &kit)[0].events, [exit, at]);
    }

    #[test]
    fn a_cookie_of_a_dead_task_does_not() {
        let mut kit = Kit::new(1);
        kit.nmi(0, u32::MAX, C);
        violations(&ExitingRefused, &kit);
    }

    #[test]
    fn the_next_owner_of_the_tid_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.exit(0, 1001);
        kit.fork(0, 1000, 1001);
        kit.nmi(0, 1001, C);
        not_exercised(&ExitingRefused, &kit);
    }
}
