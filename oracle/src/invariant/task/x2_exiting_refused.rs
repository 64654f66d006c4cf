//! X2: a request of an exiting task is refused.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts, Role, role, spec};
use crate::trace::model::Sample;
use crate::trace::{Event, EventKind};

/// X2. After its exit record a task has `PF_EXITING` (`exit_signals` comes before
/// `perf_event_exit_task` in kernel/exit.c, 7.2), so no sample of it may have a cookie. Neither may
/// a sample of a task that has left the pid hash, for which perf writes tid -1. The trace cannot
/// show that a request between `PF_EXITING` and the exit record is refused, because nothing marks
/// the former.
///
/// Evidence is a sample of an event that defers, after the exit record, with an inline chain: perf
/// asked, because the task still had its mm, and got no cookie (`perf_callchain`,
/// kernel/events/core.c, 7.2). A kernel that accepts the request shows the cookie. It would show an
/// inline chain if it accepted with cookie 0, but then the answer carries that, so a task with such
/// an answer is no evidence. A sample without any user part is undecided: without an mm perf does
/// not ask. So is an inline chain shortly before the exit record: a kernel that refuses too early
/// shows it too.
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
            if defers && facts.exiting(event) {
                refusal(facts, event, sample, tally);
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

/// Whether a sample without a cookie, of a task that exits, shows a refusal.
fn refusal<'t>(facts: &Facts<'t>, event: &'t Event, sample: &Sample, tally: &mut Tally) {
    let none = facts.exchanges.get(&0);
    let mut none = none.into_iter().flat_map(|exchange| &exchange.answers);
    if facts.behind_exit(event).is_none() {
        if sample.is_inline() {
            tally.undecided("an inline chain just before the exit record may come too early");
        }
    } else if !sample.is_inline() {
        tally
            .undecided("a sample behind the exit record has no user part: perf may not have asked");
    } else if none.any(|answer| answer.event.tid == event.tid) {
        tally.undecided("an inline chain of a task with an answer of cookie 0");
    } else {
        tally.holds();
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, spec, tracepoint, violations};
    use crate::trace::model::CONTEXT_USER_DEFERRED;

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn an_inline_chain_behind_the_exit_record_holds() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.exit(0, 1001);
        kit.inline(0, 1001, &[0x40]);
        assert_eq!(holds("X2", &kit).0, 1);
    }

    /// All of this a kernel that accepts such requests shows too.
    #[test]
    fn samples_that_asked_nothing_or_came_before_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.inline(0, 1001, &[0x40]);
        kit.exit(0, 1001);
        kit.kernel_only(0, 1001);
        let reason = not_exercised("X2", &kit);
        assert_eq!(reason.matches("1 undecided").count(), 2, "{reason}");
        // Accepted, with cookie 0.
        let mut kit = Kit::new(1);
        kit.exit(0, 1001);
        kit.inline(0, 1001, &[0x40]);
        kit.deferred(0, 1001, 0, &[0x40]);
        not_exercised("X2", &kit);
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

    /// Whatever it counts, and an NMI's sample whether it defers or not.
    #[test]
    fn a_cookie_of_any_event_behind_the_exit_record_does_not() {
        let mut kit = Kit::new(1);
        let fork = kit.open(spec("fork", tracepoint("sched", "sched_process_fork")));
        kit.spec("fork", |spec| spec.defer_callchain = true);
        kit.exit(0, 1001);
        let at = kit.sample(0, 1001, fork, vec![CONTEXT_USER_DEFERRED, C]);
        let list = violations("X2", &kit);
        assert_eq!(list[0].events, [0, at]);
        assert!(list[0].message.starts_with("task 1001 got cookie"));

        let mut kit = Kit::new(1);
        kit.spec("nmi", |spec| spec.defer_callchain = false);
        kit.nmi(0, u32::MAX, C);
        let list = violations("X2", &kit);
        assert!(list[0].message.starts_with("a dead task got cookie"));
    }

    #[test]
    fn an_inline_chain_of_an_event_that_does_not_defer_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.spec("nmi", |spec| spec.defer_callchain = false);
        kit.exit(0, 1001);
        kit.inline(0, 1001, &[0x40]);
        not_exercised("X2", &kit);
    }
}
