//! X7: nothing leaks over 1,000 exits.

use std::collections::BTreeSet;

use unwindlab_abi::Observation;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts};

/// Exits of tasks with a cache that it takes: fewer are lost in what else the kernel allocates.
const EXITS: u64 = 1_000;
/// From this many exits on, rarer leaks stand out too.
const MANY_EXITS: u64 = 10_000;
/// Bytes of a task's unwind cache: `UNWIND_MAX_ENTRIES` (510) addresses and their count make up a
/// page (kernel/unwind/deferred.c, 7.2).
const CACHE: u64 = 4096;

/// In how many exits one cache that stays is a leak.
fn one_in(exits: u64) -> u64 {
    if exits < MANY_EXITS { 2 } else { 8 }
}

/// X7. What a task has for its unwinds goes with it: `unwind_task_free` frees the cache
/// (kernel/unwind/deferred.c, called by `free_task`, kernel/fork.c, 7.2), and a pending task work
/// holds no reference to the task.
///
/// Judges a trial in which at least 1,000 tasks exited of which a record 22 shows a walk: each had a cache, and a
/// task work pending when it exited if the record comes after that of the exit. The kernel's own
/// memory (slabs that cannot be reclaimed, which include the caches, and kernel stacks) may then
/// have grown by one cache in two exits at most; over 10,000 or more, by one in eight. What else the kernel allocates meanwhile
/// does not grow with the exits; a task that leaks leaves more than its cache.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let memory = trace.observations.iter().find_map(|seen| match seen {
        Observation::Memory { before, after } => Some((before.kib(), after.kib())),
        _ => None,
    });
    let Some((earlier, later)) = memory else {
        return;
    };
    let exits = exits_with_a_cache(evidence.facts());
    if exits < EXITS {
        return tally.lacks(format!(
            "{exits} exits of tasks that were unwound, {EXITS} are needed"
        ));
    }
    let grown = later.saturating_sub(earlier);
    if grown.saturating_mul(1024) <= exits * CACHE / one_in(exits) {
        tally.holds();
    } else {
        let message = format!(
            "the kernel's memory grew by {grown} KiB, from {earlier}, over {exits} exits of \
             tasks that were unwound: {} bytes each",
            grown.saturating_mul(1024) / exits
        );
        tally.violated(message, [], None);
    }
}

/// Tasks that exited and have a D.
fn exits_with_a_cache(facts: &Facts<'_>) -> u64 {
    let walked: BTreeSet<_> = facts
        .answers
        .iter()
        .filter_map(|answer| answer.task)
        .collect();
    let exited = walked
        .into_iter()
        .filter(|task| facts.exit(*task).is_some());
    exited.count() as u64
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit;
    use unwindlab_abi::KernelMemory;

    use super::*;
    use crate::invariant::testkit::Kit;

    #[derive(Clone, Copy, PartialEq)]
    enum Answered {
        Before,
        AfterExit,
        Never,
    }
    use Answered::{AfterExit, Before, Never};

    fn check(exits: u32, answered: Answered, grown_kib: u64) -> Check {
        let mut kit = Kit::new(1);
        for n in 0..exits {
            let (tid, cookie) = (2000 + n, u64::from(2 * n + 1) << 32 | 1);
            kit.nmi(0, tid, cookie);
            if answered == Before {
                kit.deferred(0, tid, cookie, &[0x40]);
            }
            kit.exit(0, tid);
            if answered == AfterExit {
                kit.deferred(0, tid, cookie, &[0x40]);
            }
        }
        let mut trace = kit.trace();
        let memory = |slab_kib| KernelMemory {
            slab_kib,
            stack_kib: 1000,
        };
        trace.observations.push(Observation::Memory {
            before: memory(5000),
            after: memory(5000 + grown_kib),
        });
        testkit::check("X7", &trace)
    }

    #[test]
    fn memory_that_stays_holds() {
        for answered in [Before, AfterExit] {
            for (exits, grown) in [(1000, 2000), (10_000, 4000)] {
                let check = check(exits, answered, grown);
                assert!(matches!(check, Check::Holds { evidence: 1, .. }));
            }
        }
    }

    #[test]
    fn a_cache_of_every_task_or_of_every_sixth_does_not() {
        for (exits, grown) in [(1000, 2001), (1000, 4000), (10_000, 40_000), (10_000, 6700)] {
            let check = check(exits, Before, grown);
            assert!(matches!(check, Check::Violated(_)));
        }
    }

    #[test]
    fn few_exits_or_none_of_a_task_that_was_unwound_do_not_exercise_it() {
        for check in [check(999, AfterExit, 40_000), check(10_000, Never, 40_000)] {
            assert!(matches!(check, Check::NotExercised { .. }));
        }
    }
}
