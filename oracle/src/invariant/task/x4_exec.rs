//! X4: an exec has one cookie before and after.

use unwindlab_abi::plan::{EventSource, EventSpec};

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts, Request, before, earlier, later, spec};
use crate::trace::{Event, EventKind, Trace};

/// X4. A task that calls exec stays in its entry: only the way to user mode resets the cookie
/// (`unwind_reset_info`, include/linux/unwind_deferred.h, 7.2), and `begin_new_exec` (fs/exec.c)
/// leaves `unwind_task_info` alone. So a request after exec gets the cookie of the one before.
///
/// Judges each comm record of an exec. The last request of its task before it must be of a sampler
/// of the call of exec (`syscalls:sys_enter_execve`, or a probe of `__x64_sys_execve`). That call
/// succeeded, because the record comes after it: undecided if the request was answered before the record, because it may have
/// failed then, and a call that is not sampled succeeded (`execveat`). A lost sample of another call excuses (XA). The first
/// request after the record must be of `sched:sched_process_exec`, which fires before exec returns.
///
/// The walk is made when exec is over, and shows the new program. No invariant says so; a scenario
/// pins it.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    for event in &trace.events {
        let EventKind::Comm { exec: true, .. } = event.kind else {
            continue;
        };
        let Some(task) = facts.tasks.of(event) else {
            continue;
        };
        let requests = facts.requests_of(task);
        let first = earlier(requests, event, |it| it.event).next();
        let second = later(requests, event, |it| it.event).next();
        let (Some(first), Some(second)) = (first, second) else {
            continue;
        };
        if !asked_by(trace, first, calls_exec) || !asked_by(trace, second, ends_exec) {
            continue;
        }
        if let Some(why) = facts.losses.between(first.event.time, second.event.time) {
            tally.excuse(format!("cookie {:#x}: {why}", first.cookie));
            continue;
        }
        if is_answered(facts, first, event) {
            tally
                .undecided("the call that asked may have failed before, and another one succeeded");
            continue;
        }
        if first.cookie == second.cookie {
            tally.holds();
            continue;
        }
        let message = format!(
            "tid {} has cookie {:#x} when it calls exec and {:#x} when exec has succeeded",
            task.tid, first.cookie, second.cookie
        );
        let events = [first.event, event, second.event].map(|event| event.index);
        tally.violated(message, events, None);
    }
}

/// Whether a request was answered before a record.
fn is_answered(facts: &Facts<'_>, request: &Request<'_>, event: &Event) -> bool {
    let exchange = facts.exchanges.get(&request.cookie);
    let answer = exchange.and_then(|it| it.answer_after(request.event));
    answer.is_some_and(|it| !before(event, it.event))
}

fn asked_by(trace: &Trace, request: &Request<'_>, what: fn(&EventSpec) -> bool) -> bool {
    spec(trace, request.event).is_some_and(what)
}

fn calls_exec(spec: &EventSpec) -> bool {
    match &spec.source {
        EventSource::Tracepoint { system, name } => {
            system == "syscalls" && name == "sys_enter_execve"
        }
        EventSource::Kprobe {
            function,
            offset: 0,
            at_return: false,
            ..
        } => function == "__x64_sys_execve",
        _ => false,
    }
}

fn ends_exec(spec: &EventSpec) -> bool {
    matches!(
        &spec.source,
        EventSource::Tracepoint { system, name }
            if system == "sched" && name == "sched_process_exec"
    )
}

#[cfg(test)]
mod tests {
    use super::EventSource;
    use crate::invariant::testkit::{
        Kit, holds, not_exercised, spec, tracepoint, undecided, violations,
    };
    use crate::trace::model::CONTEXT_USER_DEFERRED;

    const C: u64 = 3 << 32 | 1;
    const OTHER: u64 = 5 << 32 | 1;

    fn exec(first: u64, second: u64) -> Kit {
        let mut kit = Kit::new(1);
        let call = kit.open(spec("call", tracepoint("syscalls", "sys_enter_execve")));
        let done = kit.open(spec("done", tracepoint("sched", "sched_process_exec")));
        kit.sample(0, 1001, call, vec![CONTEXT_USER_DEFERRED, first]);
        kit.exec(0, 1001);
        kit.sample(0, 1001, done, vec![CONTEXT_USER_DEFERRED, second]);
        kit
    }

    #[test]
    fn one_cookie_holds() {
        assert_eq!(holds("X4", &exec(C, C)).0, 1);
    }

    #[test]
    fn two_cookies_do_not() {
        assert_eq!(violations("X4", &exec(C, OTHER))[0].events, [0, 1, 2]);
    }

    #[test]
    fn requests_of_other_entries_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.exec(0, 1001);
        kit.nmi(0, 1001, OTHER);
        not_exercised("X4", &kit);
    }

    /// Another request may be of another entry.
    #[test]
    fn both_requests_are_of_the_call_and_of_its_end() {
        let asked = |first: EventSource, second: EventSource| {
            let mut kit = Kit::new(1);
            let [first, second] = [("first", first), ("second", second)]
                .map(|(name, source)| kit.open(spec(name, source)));
            kit.sample(0, 1001, first, vec![CONTEXT_USER_DEFERRED, C]);
            kit.exec(0, 1001);
            kit.sample(0, 1001, second, vec![CONTEXT_USER_DEFERRED, C]);
            kit
        };
        let probe = |function: &str, offset, at_return| EventSource::Kprobe {
            function: function.to_owned(),
            offset,
            at_return,
            optimized: false,
        };
        let call = || tracepoint("syscalls", "sys_enter_execve");
        let done = || tracepoint("sched", "sched_process_exec");
        let probed = asked(probe("__x64_sys_execve", 0, false), done());
        assert_eq!(holds("X4", &probed).0, 1);
        for (first, second) in [
            (call(), tracepoint("sched", "sched_process_fork")),
            (call(), tracepoint("other", "sched_process_exec")),
            (tracepoint("syscalls", "sys_enter_getppid"), done()),
            (tracepoint("other", "sys_enter_execve"), done()),
            (probe("__x64_sys_execveat", 0, false), done()),
            (probe("__x64_sys_execve", 4, false), done()),
            (probe("__x64_sys_execve", 0, true), done()),
            (EventSource::Dummy, done()),
        ] {
            not_exercised("X4", &asked(first, second));
        }
    }

    /// The call that was sampled may have failed, and another one succeeded of which the sample was lost, or which is not sampled.
    #[test]
    fn a_call_that_may_not_be_the_one_that_succeeded_decides_nothing() {
        for second in [C, OTHER] {
            let mut kit = Kit::new(1);
            let call = kit.open(spec("call", tracepoint("syscalls", "sys_enter_execve")));
            let done = kit.open(spec("done", tracepoint("sched", "sched_process_exec")));
            kit.sample(0, 1001, call, vec![CONTEXT_USER_DEFERRED, C]);
            let exec = |mut kit: Kit| {
                kit.exec(0, 1001);
                kit.sample(0, 1001, done, vec![CONTEXT_USER_DEFERRED, second]);
                kit
            };
            let mut lossy = kit.clone();
            lossy.lost(0, 1);
            assert!(not_exercised("X4", &exec(lossy)).contains("XA"));
            let mut answered = kit.clone();
            answered.deferred(0, 1001, C, &[0x40]);
            assert_eq!(undecided("X4", &exec(answered)), 1);
        }
    }
}
