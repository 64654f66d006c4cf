//! U3: a fault in the walk never signals the task.

use unwindlab_abi::Observation;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, at_leaf, flaw_of};

/// U3. The walk reads the user stack with `get_user` (kernel/unwind/user.c, 7.2), whose faults the
/// exception table handles: no SIGSEGV where there is no mapping or no permission, no SIGBUS where
/// the file ends before the page.
///
/// Judges the threads of workload `unreadable-ends`, the frame pointer at whose root leads to such
/// memory. A D with the whole chain and frame 0 at the leaf has read the root's frame, and the next
/// thing the walk did was to read there. User mode never does. The thread counts its signals.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    for seen in &trace.observations {
        let Observation::Unreadable {
            thread,
            memory,
            signals,
        } = *seen
        else {
            continue;
        };
        let Some(thread) = trace.threads.iter().find(|t| t.thread == thread) else {
            continue;
        };
        let whole = facts.answers.iter().filter(|answer| {
            answer.event.tid == Some(thread.tid)
                && answer.chain.ips.first().is_some_and(|&frame0| {
                    at_leaf(&thread.stack, frame0)
                        && flaw_of(answer.chain, &thread.stack, frame0).is_none()
                })
        });
        let walks: Vec<usize> = whole.map(|answer| answer.event.index).collect();
        if signals == 0 {
            tally.holds_on(walks.len());
            continue;
        }
        let message = format!(
            "thread {} (tid {}) got {signals} signals of faults; its chain ends at memory \
             that is {memory:?}",
            thread.thread, thread.tid
        );
        tally.violated(message, walks, None);
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit;
    use unwindlab_abi::observation::UnreadableMemory;

    use super::*;
    use crate::invariant::testkit::Kit;

    const C: u64 = 3 << 32 | 1;
    /// As [`Kit::thread`] lays out its threads.
    const WHOLE: [u64; 4] = [0x1080, 0x2000, 0x2000, 0x3000];

    fn check(frames: &[u64], signals: Option<u64>) -> Check {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, frames);
        let mut trace = kit.trace();
        trace
            .observations
            .extend(signals.map(|signals| Observation::Unreadable {
                thread: 0,
                memory: UnreadableMemory::Protected,
                signals,
            }));
        testkit::check("U3", &trace)
    }

    #[test]
    fn walks_without_a_signal_hold() {
        let check = check(&WHOLE, Some(0));
        assert!(matches!(check, Check::Holds { evidence: 1, .. }));
    }

    #[test]
    fn a_signal_does_not_whatever_the_walk_shows() {
        for frames in [&WHOLE[..], &WHOLE[..1]] {
            assert!(matches!(check(frames, Some(1)), Check::Violated(_)));
        }
    }

    #[test]
    fn a_walk_that_did_not_get_there_or_another_workload_does_not_exercise_it() {
        for check in [check(&WHOLE[..2], Some(0)), check(&WHOLE, None)] {
            assert!(matches!(check, Check::NotExercised { .. }));
        }
    }
}
