//! R6: a request returns what it may return.

use unwindlab_abi::message::ThreadAnnounce;

use crate::invariant::Tally;
use crate::invariant::evidence::lab::{Lab, task};
use crate::invariant::evidence::{Evidence, Facts, has_no_room, spec};
use crate::trace::{EventKind, LabEvent, LabKind};

/// `-EINVAL`.
const EINVAL: i32 = -22;
/// `PERF_SAMPLE_CALLCHAIN`.
const CALLCHAIN: u64 = 1 << 5;

/// R6, by the lab client's log. "Return: 0 if the callback successfully was queued. 1 if the
/// callback is pending or was already executed. Negative if there's an error" (kernel-doc of
/// `unwind_deferred_request`, kernel/unwind/deferred.c, 7.3). That function has one error for
/// reasons that a watched task can have: `-EINVAL`, for a task with `PF_EXITING` and for a client
/// that is cancelled. Workers (`PF_USER_WORKER`) may be refused with it as kernel threads are (X5).
/// (Other watched tasks are no kernel threads and have user registers.) `task_work_add`
/// fails for an exiting task only.
///
/// Evidence is a request: one that returns what it must not shows it in the value that is logged.
pub fn returned(lab: &Lab<'_>, tally: &mut Tally) {
    for event in lab.log.events.iter().filter(|event| event.task != 0) {
        let LabKind::Request { ret, cookie, .. } = event.kind else {
            continue;
        };
        let cancel = event.client.and_then(|client| lab.cancel(client));
        let cancelled = event.flags.cancelled || cancel.is_some_and(|slot| slot < event.slot);
        let refusable = event.flags.exiting || event.flags.worker || cancelled;
        let wrong = match ret {
            0 | 1 => None,
            EINVAL if refusable => (cookie != 0).then_some(", and got a cookie"),
            EINVAL => Some(", though the task does not exit and the client is not cancelled"),
            ..=-1 => Some(", which is no reason that it can have"),
            // R1 judges it.
            _ => continue,
        };
        let Some(wrong) = wrong else {
            tally.holds();
            continue;
        };
        let client = event
            .client
            .map_or_else(String::new, |c| format!("client {c}: "));
        let message = format!(
            "{client}a request for {} returned {ret}{wrong}",
            task(event)
        );
        let overtook = overtook(lab, event);
        let slots = { overtook.iter() }.map(|it| it.slot).chain([event.slot]);
        let ip = event.interrupted();
        let ip = ip.or_else(|| overtook.and_then(LabEvent::interrupted));
        tally.violated_in_log(message, slots, ip);
    }
}

/// The accepted request of the same client and task that was made in the middle of this one.
fn overtook<'a>(lab: &Lab<'a>, event: &LabEvent) -> Option<&'a LabEvent> {
    let LabKind::Request { begin, .. } = event.kind else {
        return None;
    };
    let events = &lab.log.events;
    let first = events.partition_point(|it| it.slot < begin);
    let inside = events.iter().skip(first);
    let mut inside = inside.take_while(|it| it.slot < event.slot);
    inside.find(|it| {
        let accepted = matches!(it.kind, LabKind::Request { ret: 0.., .. });
        accepted && it.client == event.client && it.task == event.task
    })
}

/// R6, by perf's records. `perf_callchain` (kernel/events/core.c, 7.3) asks for each user task with
/// an mm, and writes the user chain inline if it is refused. A sample of a workload thread that
/// does not exit has one or the other, so one with neither was not asked for at all, or its refusal
/// went unnoticed. M7 judges whether the refusal was right.
///
/// Evidence is such a sample with a cookie. An inline chain is M7's, and a sample without any chain
/// is undecided: perf found no buffer for it (`get_callchain_entry`). So is one with as many context
/// entries as `perf_event_max_contexts_per_stack` allows, and one of an inherited event in a task
/// switch, which may have been the next task's already ([`Evidence::may_be_handed_over`]), and one of a task whose exit
/// record before it may be lost.
pub fn asked(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    for event in &trace.events {
        let EventKind::Sample(sample) = &event.kind else {
            continue;
        };
        let asks = spec(trace, event).is_some_and(|spec| {
            let of_all = spec.details.target == unwindlab_abi::EventTarget::default();
            let chain = spec.sample_type & CALLCHAIN != 0 && !spec.exclude_callchain_user;
            spec.defer_callchain && chain && of_all
        });
        let alive = |thread: &ThreadAnnounce| thread.tid != 0 && Some(thread.tid) == event.tid;
        if !asks || !trace.threads.iter().any(alive) || facts.behind_exit(event).is_some() {
            continue;
        }
        if sample.cookie().is_some() {
            tally.holds();
        } else if has_no_room(trace, event) {
            tally.undecided("the limit of contexts leaves no room for a cookie");
        } else if event.kernel_chain().is_empty() {
            tally.undecided("a sample without a chain");
        } else if sample.is_inline() {
            // M7 judges it.
        } else if evidence.may_be_handed_over(event) {
            tally.undecided("whether the event was the next task's already, in a task switch");
        } else if facts.may_have_lost_its_exit(event) {
            tally.undecided(Facts::LOST_EXIT);
        } else {
            let message = format!(
                "a sample of thread {} has neither a cookie nor a user chain",
                event.tid.unwrap_or_default()
            );
            tally.violated(message, [event.index], facts.instruction(event));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::lab::{
        C, LabKit, NEXT, client, holds as holds_in_log, violated,
    };
    use crate::invariant::testkit::{
        Kit, check, check_in, holds, not_exercised, undecided, violations,
    };

    #[test]
    fn what_the_kernel_doc_says_holds() {
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.ask(1, client(0), 1, C);
        kit.with(|f| f.exiting = true).ask(1, client(0), -22, 0);
        kit.cancel(client(1));
        kit.ask(2, client(1), -22, 0);
        assert_eq!(holds_in_log("R6", &kit).0, 4);
    }

    #[test]
    fn any_other_value_does_not() {
        for ret in [-16, -22, -3, i32::MIN] {
            let mut kit = LabKit::new();
            let a = kit.ask(1, client(0), ret, 0);
            assert_eq!(violated("R6", &kit), [a], "{ret}");
        }
        let mut kit = LabKit::new();
        let a = kit.with(|f| f.exiting = true).ask(1, client(0), -16, 0);
        assert_eq!(violated("R6", &kit), [a]);
        let mut kit = LabKit::new();
        let a = kit.with(|f| f.exiting = true).ask(1, client(0), -22, C);
        assert_eq!(violated("R6", &kit), [a]);
    }

    #[test]
    fn the_request_that_overtook_it_is_shown() {
        let mut kit = LabKit::new();
        let inner = kit.nmi().ask(1, client(0), 0, C);
        let outer = kit.ask_since(1, client(0), i32::MIN, C, inner);
        assert_eq!(violated("R6", &kit), [inner, outer]);
        // Another client's, and another task's.
        let mut kit = LabKit::new();
        let inner = kit.nmi().ask(1, client(1), 0, C);
        kit.ask(2, client(0), 0, NEXT);
        let outer = kit.ask_since(1, client(0), i32::MIN, C, inner);
        assert_eq!(violated("R6", &kit), [outer]);
    }

    fn workload() -> Kit {
        let mut kit = Kit::new(1);
        kit.spec("nmi", |spec| spec.sample_type |= super::CALLCHAIN);
        kit.thread(0, 1001);
        kit
    }

    #[test]
    fn a_cookie_holds_and_nothing_does_not() {
        let mut kit = workload();
        kit.nmi(0, 1001, C);
        assert_eq!(holds("R6", &kit).0, 1);
        let at = kit.kernel_only(0, 1001);
        assert_eq!(violations("R6", &kit)[0].events, [at]);
    }

    #[test]
    fn who_need_not_be_asked_for_does_not_exercise_it() {
        let mut kit = workload();
        kit.kernel_only(0, 2);
        kit.sample(0, 1001, 1, vec![]);
        kit.inline(0, 1001, &[0x40]);
        kit.exit(0, 1001);
        kit.kernel_only(0, 1001);
        assert!(not_exercised("R6", &kit).contains("1 undecided"));
    }

    #[test]
    fn a_chain_without_room_for_a_cookie_is_not_decided() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.kernel_only(0, 1001);
        for (limit, decided) in [("1", false), ("2", true)] {
            let mut trace = kit.trace();
            let name = "perf_event_max_contexts_per_stack".to_owned();
            trace.sysctls.push((name, limit.to_owned()));
            let found = check("R6", &trace);
            assert_eq!(matches!(found, Check::Violated(_)), decided, "{found:?}");
        }
    }

    /// Only of an inherited event, and only in a switch.
    #[test]
    fn in_a_switch_an_inherited_event_may_be_the_next_tasks() {
        for (inherit, function, wrong) in [
            (true, "__schedule", 0),
            (false, "__schedule", 1),
            (true, "schedule", 1),
        ] {
            let mut kit = workload();
            kit.spec("nmi", |spec| spec.inherit = inherit);
            kit.kernel_only(0, 1001);
            let trace = kit.trace();
            let found = match check_in("R6", &trace, function) {
                Check::Violated(list) => list.len(),
                Check::NotExercised { undecided: 1, .. } => 0,
                other => panic!("{other:?}"),
            };
            assert_eq!(found, wrong, "{inherit} {function}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_refusal_is_told() {
        let mut kit = LabKit::new();
        kit.ask(1, client(0), -22, 0);
        let list = crate::invariant::testkit::violated("R6", &kit.trace());
        assert!(list[0].message.ends_with("the client is not cancelled"));
    }

    /// What overtook a request is searched from the record on before which it began.
    #[test]
    fn the_request_in_the_middle_is_found_in_a_long_log() {
        let mut kit = LabKit::new();
        let others = |kit: &mut LabKit| {
            for _ in 0..20 {
                kit.leave(2);
            }
        };
        // One that was over before.
        kit.ask(1, client(0), 0, C);
        others(&mut kit);
        let inner = kit.nmi_at(0x77).ask(1, client(0), 0, C);
        let outer = kit.ask_since(1, client(0), -22, 0, inner);
        others(&mut kit);
        assert_eq!(violated("R6", &kit), [inner, outer]);
    }

    /// A sample that asks for nothing has neither a cookie nor a chain.
    #[test]
    fn who_asks_defers_chains_with_a_user_part_for_all() {
        type Change = fn(&mut unwindlab_abi::plan::EventSpec);
        let changes: [(Change, usize); 5] = [
            (|_| (), 1),
            (|spec| spec.defer_callchain = false, 0),
            (|spec| spec.sample_type &= !super::CALLCHAIN, 0),
            (|spec| spec.exclude_callchain_user = true, 0),
            (
                |spec| spec.details.target = unwindlab_abi::EventTarget::Thread(0),
                0,
            ),
        ];
        for (number, (change, wrong)) in changes.into_iter().enumerate() {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            kit.spec("nmi", change);
            kit.kernel_only(0, 1001);
            let found = crate::invariant::testkit::violated("R6", &kit.trace());
            assert_eq!(found.len(), wrong, "{number}");
        }
    }

    #[test]
    fn where_the_exit_record_may_be_lost_a_sample_that_asked_nothing_is_undecided() {
        let mut kit = workload();
        kit.kernel_only(0, 1001);
        kit.lost(0, 1);
        assert_eq!(undecided("R6", &kit), 1);
        kit.nmi(0, 1001, C);
        violations("R6", &kit);
    }
}
