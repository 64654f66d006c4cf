//! X6: an entry that runs task work without leaving is answered early, and once.

use std::collections::BTreeMap;

use unwindlab_abi::Observation;
use unwindlab_abi::message::ThreadAnnounce;

use crate::invariant::Tally;
use crate::invariant::evidence::{Answer, Evidence, Facts, Request, before};

/// X6. The kernel does not only run task work on the way to user mode: `ptrace_notify`
/// (kernel/signal.c, 7.2) runs it before the task stops, and `io_cqring_wait` (io_uring/) before it
/// waits. The D comes there, early. Only the way to user mode resets the cookie and
/// `unwind_completed` (`unwind_reset_info`, include/linux/unwind_deferred.h), so later requests of
/// the entry get the same cookie and no D of their own: they are late.
///
/// Judges pairs of requests of threads of workloads `traced` and `io-uring`, by injections of one
/// iteration, with a D between them. An iteration has one system call. The D shows that the first
/// was made in it: its frame 0 is the instruction after the `syscall`. The outermost frame of its
/// kernel chain shows the same for the second: it is that of the first, the entry code of system
/// calls. That the second has no D is evidence where a later record shows that the entry ended, with nothing lost before (XA).
///
/// A vCPU's ioctl needs a hypervisor in the guest.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    for seen in &trace.observations {
        let (Observation::Traced { thread } | Observation::IoUring { thread }) = *seen else {
            continue;
        };
        let thread = trace.threads.iter().find(|t| t.thread == thread);
        if let Some(thread) = thread.filter(|t| t.tid != 0) {
            judge_thread(facts, thread, tally);
        }
    }
}

fn judge_thread(facts: &Facts<'_>, thread: &ThreadAnnounce, tally: &mut Tally) {
    for requests in iterations(facts, thread).values() {
        let Some((first, later)) = requests.split_first() else {
            continue;
        };
        let Some(early) = early_answer(facts, thread, first) else {
            continue;
        };
        let outermost = first.sample.kernel_chain().last();
        for request in later {
            let of_entry = request.sample.kernel_chain().last() == outermost
                && before(early.event, request.event);
            if !of_entry {
                continue;
            }
            let again = answer(facts, request);
            let what = if request.cookie != first.cookie {
                format!("it carries {:#x}", request.cookie)
            } else if again.is_some() {
                "it is answered once more".to_owned()
            } else {
                no_other_answer(facts, request, tally);
                continue;
            };
            let message = format!(
                "tid {} asked with cookie {:#x}, was answered in the same entry, and asked again \
                 in it: {what}",
                thread.tid, first.cookie
            );
            let events = [first.event, early.event, request.event].map(|event| event.index);
            let events = events
                .into_iter()
                .chain(again.map(|answer| answer.event.index));
            tally.violated(message, events, facts.instruction(request.event));
        }
    }
}

/// A late request without an answer is evidence where the trace has its entry to the end.
fn no_other_answer(facts: &Facts<'_>, request: &Request<'_>, tally: &mut Tally) {
    let Some(over) = facts.entry_over_by(request) else {
        return tally.undecided("the trace does not show that the entry ended");
    };
    match facts.losses.between(request.event.time, over.time) {
        Some(why) => tally.excuse(format!("cookie {:#x}: {why}", request.cookie)),
        None => tally.holds(),
    }
}

/// The requests of a thread by injections into the kernel, by iteration.
fn iterations<'f, 't>(
    facts: &'f Facts<'t>,
    thread: &ThreadAnnounce,
) -> BTreeMap<u64, Vec<&'f Request<'t>>> {
    let mut found: BTreeMap<u64, Vec<&Request<'_>>> = BTreeMap::new();
    for request in &facts.requests {
        let injection = facts.injection(request.event).filter(|injection| {
            injection.cpl == 0
                && injection.thread == Some(thread.thread)
                && request.event.tid == Some(thread.tid)
        });
        if let Some(iteration) = injection.and_then(|injection| injection.iteration) {
            found.entry(iteration).or_default().push(request);
        }
    }
    found
}

fn answer<'f, 't>(facts: &'f Facts<'t>, request: &Request<'_>) -> Option<&'f Answer<'t>> {
    let exchange = facts.exchanges.get(&request.cookie)?;
    exchange.answer_after(request.event)
}

/// The first answer to a request, if it shows that that was made in the system call.
fn early_answer<'f, 't>(
    facts: &'f Facts<'t>,
    thread: &ThreadAnnounce,
    request: &Request<'t>,
) -> Option<&'f Answer<'t>> {
    let first = answer(facts, request)?;
    let frame0 = first.chain.ips.first()?;
    (*frame0 == thread.stack.syscall_return).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit;
    use crate::invariant::testkit::{Kit, kernel};

    const C: u64 = 3 << 32 | 1;
    const OTHER: u64 = 5 << 32 | 1;
    const FIRST: u64 = 0xffff_ffff_8100_1000;
    const SECOND: u64 = 0xffff_ffff_8100_2000;
    /// As [`Kit::thread`] lays out its threads.
    const WHOLE: [u64; 4] = [0x1080, 0x2000, 0x2000, 0x3000];

    fn early(kit: &mut Kit) {
        kit.thread(0, 1001);
        kit.inject(0, 1001, C, kernel(FIRST).iteration(0, 7));
        kit.deferred(0, 1001, C, &WHOLE);
    }

    fn check(kit: &Kit) -> Check {
        let mut trace = kit.trace();
        trace.observations.push(Observation::Traced { thread: 0 });
        testkit::check("X6", &trace)
    }

    #[test]
    fn a_late_request_with_the_same_cookie_holds() {
        let mut kit = Kit::new(1);
        early(&mut kit);
        kit.inject(0, 1001, C, kernel(SECOND).iteration(0, 7));
        kit.inject(0, 1001, OTHER, kernel(FIRST).iteration(0, 8));
        assert!(matches!(check(&kit), Check::Holds { evidence: 1, .. }));
    }

    #[test]
    fn another_cookie_or_another_answer_does_not() {
        let mut kit = Kit::new(1);
        early(&mut kit);
        kit.inject(0, 1001, OTHER, kernel(SECOND).iteration(0, 7));
        assert!(matches!(check(&kit), Check::Violated(_)));

        let mut kit = Kit::new(1);
        early(&mut kit);
        kit.inject(0, 1001, C, kernel(SECOND).iteration(0, 7));
        kit.deferred(0, 1001, C, &WHOLE);
        assert!(matches!(check(&kit), Check::Violated(_)));
    }

    #[test]
    fn the_next_iteration_or_an_answer_on_the_way_out_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        early(&mut kit);
        kit.inject(0, 1001, OTHER, kernel(SECOND).iteration(0, 8));
        assert!(matches!(check(&kit), Check::NotExercised { .. }));

        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.inject(0, 1001, C, kernel(FIRST).iteration(0, 7));
        kit.inject(0, 1001, C, kernel(SECOND).iteration(0, 7));
        kit.deferred(0, 1001, C, &WHOLE);
        assert!(matches!(check(&kit), Check::NotExercised { .. }));
    }

    /// Another answer may come behind the trace, or be lost on another CPU.
    #[test]
    fn where_the_entrys_end_is_not_seen_no_answer_is_no_evidence() {
        let mut kit = Kit::new(2);
        early(&mut kit);
        kit.inject(0, 1001, C, kernel(SECOND).iteration(0, 7));
        let ends = check(&kit);
        assert!(
            matches!(ends, Check::NotExercised { undecided: 1, .. }),
            "{ends:?}"
        );
        kit.lost(1, 1);
        kit.inject(0, 1001, OTHER, kernel(SECOND).iteration(0, 8));
        let lossy = check(&kit);
        assert!(matches!(lossy, Check::NotExercised { .. }), "{lossy:?}");
    }
}
