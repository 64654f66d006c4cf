//! M7: an inline user chain of an event that defers shows that the request was refused.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, spec};
use crate::trace::EventKind;

/// M7. A sample of an event with `defer_callchain` has `PERF_CONTEXT_USER` in its chain only where
/// `unwind_deferred_request` refused (`perf_callchain`, kernel/events/core.c, 7.2):
///
/// * The task exits: `exit_signals` in `do_exit` sets `PF_EXITING`, before the exit record. The
///   exit record is the proof, if nothing lies between it and the sample that a task does only
///   before it exits: an accepted request or a system call's marker. A refusal in the last entry
///   but before `exit_signals` looks the same; nothing in a trace marks that moment.
/// * It has no user registers: a task that has dropped `PF_KTHREAD` in exec, before its registers
///   are set. They are all zero then, so the chain starts with address 0.
/// * A kernel thread has no user part at all, and all events here are of CPUs, not of tasks, so the
///   sample is never of another event's task.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let mut refused = 0;
    for event in &trace.events {
        let EventKind::Sample(sample) = &event.kind else {
            continue;
        };
        if !spec(trace, event).is_some_and(|spec| spec.defer_callchain) {
            continue;
        }
        if !sample.is_inline() {
            if sample.cookie().is_some() {
                tally.holds();
            }
            continue;
        }
        if sample.user_chain().first() == Some(&0) || facts.exiting(event) {
            refused += 1;
            tally.holds();
            continue;
        }
        let message = format!(
            "the user chain of task {} is inline ({} frames) though its request need not be refused",
            event.tid.unwrap_or_default(),
            sample.user_chain().len()
        );
        tally.violated(message, [event.index], facts.instruction(event));
    }
    tally.note(refused, "inline chains of refused requests");
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn inline_around_the_exit_record_holds() {
        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.inline(0, 1001, &[0x40]);
        kit.exit(0, 1001);
        kit.inline(0, 1001, &[0x40]);
        kit.deferred(0, 1001, C, &[0x40]);
        let (evidence, notes) = holds("M7", &kit);
        assert_eq!(evidence, 3);
        assert_eq!(notes, ["2 inline chains of refused requests"]);
    }

    #[test]
    fn inline_without_an_exit_or_long_before_it_does_not() {
        let mut kit = Kit::new(1);
        let at = kit.inline(0, 1001, &[0x40]);
        assert_eq!(violations("M7", &kit)[0].events, [at]);

        let mut kit = Kit::new(1);
        kit.inline(0, 1001, &[0x40]);
        kit.sys_enter(0, 1001);
        kit.exit(0, 1001);
        violations("M7", &kit);
    }

    #[test]
    fn registers_that_are_all_zero_are_none() {
        let mut kit = Kit::new(1);
        kit.inline(0, 1001, &[0]);
        assert_eq!(holds("M7", &kit).0, 1);
    }

    #[test]
    fn kernel_threads_and_events_that_do_not_defer_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.kernel_only(0, 2);
        not_exercised("M7", &kit);
        kit.spec("nmi", |spec| spec.defer_callchain = false);
        kit.inline(0, 1001, &[0x40]);
        not_exercised("M7", &kit);
    }
}
