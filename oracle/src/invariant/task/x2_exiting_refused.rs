//! X2: a request of an exiting task is refused.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Role, role, spec};
use crate::trace::EventKind;

/// X2. After its exit record a task has `PF_EXITING` (`exit_signals` comes before
/// `perf_event_exit_task` in kernel/exit.c, 7.2), so no sample of it may have a cookie. Neither may
/// a sample of a task that has left the pid hash, for which perf writes tid -1. The trace cannot
/// show that a request between `PF_EXITING` and the exit record is refused, because nothing marks
/// the former.
///
/// Evidence is a sample of an event that defers: after the exit record without a cookie, or shortly
/// before it with an inline chain, which is how a refusal looks.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    for event in &trace.events {
        let EventKind::Sample(sample) = &event.kind else {
            continue;
        };
        let defers = spec(trace, event).is_some_and(|spec| spec.defer_callchain);
        if !defers && role(trace, event) != Role::Nmi {
            continue;
        }
        let Some(cookie) = sample.cookie() else {
            let refused =
                facts.behind_exit(event).is_some() || (sample.is_inline() && facts.exiting(event));
            if defers && refused {
                tally.holds();
            }
            continue;
        };
        let exit = facts.behind_exit(event);
        let gone = event.tid == Some(u32::MAX);
        if exit.is_none() && !gone {
            continue;
        }
        let who = event.tid.filter(|_| !gone);
        let who = who.map_or_else(|| "a dead task".into(), |tid| format!("task {tid}"));
        let message = format!("{who} got cookie {cookie:#x} though it was exiting");
        let events = exit.map(|e| e.index).into_iter().chain([event.index]);
        tally.violated(message, events, facts.instruction(event));
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn inline_and_bare_samples_of_an_exiting_task_hold() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.inline(0, 1001, &[0x40]);
        kit.exit(0, 1001);
        kit.kernel_only(0, 1001);
        assert_eq!(holds("X2", &kit).0, 2);
    }

    #[test]
    fn a_cookie_behind_the_exit_record_does_not() {
        let mut kit = Kit::new(1);
        let exit = kit.exit(0, 1001);
        let at = kit.nmi(0, 1001, C);
        assert_eq!(violations("X2", &kit)[0].events, [exit, at]);
    }

    #[test]
    fn a_cookie_of_a_dead_task_does_not() {
        let mut kit = Kit::new(1);
        kit.nmi(0, u32::MAX, C);
        violations("X2", &kit);
    }

    #[test]
    fn the_next_owner_of_the_tid_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.exit(0, 1001);
        kit.fork(0, 1000, 1001);
        kit.nmi(0, 1001, C);
        not_exercised("X2", &kit);
    }
}
