//! M7: an inline user chain of an event that defers shows that the request was refused.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts, spec};
use crate::trace::EventKind;

/// M7. A sample of an event with `defer_callchain` has `PERF_CONTEXT_USER` in its chain only where
/// `unwind_deferred_request` refused (`perf_callchain`, kernel/events/core.c, 7.2):
///
/// * The task exits: `exit_signals` in `do_exit` sets `PF_EXITING`, before the exit record.
/// * It has no user registers: a task that has dropped `PF_KTHREAD` in exec, before its registers
///   are set. They are all zero then, so the chain starts with address 0.
/// * A kernel thread has no user part at all. Nor has a sample of an event of another task, which an inherited one is in the
///   middle of a switch: a chain that is inline there is a violation too.
///
/// Evidence is a sample with a cookie and nothing inline: had the kernel refused this request, its
/// user chain would be inline. An inline chain is never evidence. After the exit record it is right
/// whatever the kernel refuses elsewhere, so it shows nothing. In the task's last entry, with
/// nothing before the exit record that a task does only before it exits, it is undecided: nothing
/// marks the moment of `exit_signals`. So is one whose exit record may be lost, and one that starts with 0, because a wrong
/// refusal of a task at address 0 looks the same. Any other is a violation.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let mut behind = 0;
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
        if facts.behind_exit(event).is_some() {
            behind += 1;
            continue;
        }
        if facts.exiting(event) {
            tally.undecided("nothing marks when a task whose user chain is inline began to exit");
            continue;
        }
        if sample.user_chain().first() == Some(&0) {
            tally.undecided("an inline chain at address 0 may be of a task without user registers");
            continue;
        }
        if facts.may_have_lost_its_exit(event) {
            tally.undecided(Facts::LOST_EXIT);
            continue;
        }
        if facts.may_exit_unseen(event) {
            tally.undecided("nothing shows that the task did not exit, behind the recording");
            continue;
        }
        let message = format!(
            "the user chain of task {} is inline ({} frames) though its request need not be refused",
            event.tid.unwrap_or_default(),
            sample.user_chain().len()
        );
        tally.violated(message, [event.index], facts.instruction(event));
    }
    tally.note(behind, "inline chains behind the exit record");
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, judged, not_exercised, undecided, violations};
    use crate::trace::model::Recorded;

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn a_cookie_holds_and_what_is_inline_around_the_exit_record_is_none() {
        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.inline(0, 1001, &[0x40]);
        kit.exit(0, 1001);
        kit.inline(0, 1001, &[0x40]);
        kit.deferred(0, 1001, C, &[0x40]);
        let (evidence, notes) = holds("M7", &kit);
        assert_eq!(evidence, 1);
        assert_eq!(notes.len(), 2);
        assert_eq!(notes[0], "1 inline chains behind the exit record");
        assert!(notes[1].starts_with("1 undecided: nothing marks"));
    }

    /// A kernel that refuses every request shows nothing else.
    #[test]
    fn refusals_alone_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.inline(0, 1001, &[0x40]);
        kit.exit(0, 1001);
        kit.inline(0, 1001, &[0x40]);
        not_exercised("M7", &kit);
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

    /// A kernel that refuses whatever a task asks for behind its first walk.
    #[test]
    fn who_returns_to_user_mode_does_not_exit_yet() {
        let refused = |returns: bool| {
            let mut kit = Kit::new(1);
            kit.witness();
            kit.nmi(0, 1001, C);
            kit.deferred(0, 1001, C, &[0x40]);
            kit.returns(0, 1001);
            kit.inline(0, 1001, &[0x40]);
            if returns {
                kit.returns(0, 1001);
            }
            kit.exit(0, 1001);
            kit
        };
        violations("M7", &refused(true));
        assert_eq!(judged("M7", &refused(false).trace()), (1, 1, false));
    }

    #[test]
    fn in_a_recording_a_system_call_shows_that_a_task_goes_on_and_an_answer_does_not() {
        let refused = |then: &dyn Fn(&mut Kit)| {
            let mut kit = Kit::new(1);
            kit.nmi(0, 1001, C);
            kit.inline(0, 1001, &[0x40]);
            then(&mut kit);
            let mut trace = kit.trace();
            trace.recorded = Some(Recorded::default());
            judged("M7", &trace)
        };
        assert_eq!(refused(&|_| ()), (1, 1, false));
        let called = |kit: &mut Kit| {
            kit.sys_enter(0, 1001);
        };
        assert!(refused(&called).2);
        // What is pending is answered while the task exits.
        let answered = |kit: &mut Kit| {
            kit.deferred(0, 1001, C, &[0x40]);
        };
        assert_eq!(refused(&answered), (1, 1, false));
    }

    #[test]
    fn registers_that_are_all_zero_decide_nothing() {
        let mut kit = Kit::new(1);
        kit.inline(0, 1001, &[0]);
        assert!(not_exercised("M7", &kit).contains("1 undecided"));
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

    #[test]
    fn where_the_exit_record_may_be_lost_an_inline_chain_is_undecided() {
        let mut kit = Kit::new(1);
        kit.inline(0, 1001, &[0x40]);
        kit.lost(0, 1);
        assert_eq!(undecided("M7", &kit), 1);
        // The task goes on.
        let mut alive = kit.clone();
        alive.sys_enter(0, 1001);
        violations("M7", &alive);
        // Its exit record is there.
        kit.exit(0, 1001);
        assert_eq!(undecided("M7", &kit), 1);
        let mut kit = Kit::new(1);
        kit.inline(0, 1001, &[0x40]);
        kit.nmi(0, 1001, C);
        kit.exit(0, 1001);
        kit.lost(0, 1);
        violations("M7", &kit);
        // Lost long before.
        let mut kit = Kit::new(1);
        kit.lost(0, 1);
        kit.inline(0, 1001, &[0x40]);
        violations("M7", &kit);
    }
}
