//! U4: a walk brings in the pages of the stack that are not present.

use super::known_leaf::judge_at;
use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// The leaf of the workload that drops its stack from the page tables before its system call.
const LEAF: &str = "missing_leaf";

/// U4. The walk runs in the exit work loop, where it may fault (`unwind_user_faultable`,
/// kernel/unwind/deferred.c, 7.2): a page that is missing from the page tables does not end it.
///
/// Judges the D of threads of workload `missing-pages` whose frame 0 is the instruction after their
/// `syscall`. No page of their stack was mapped when they executed it, and user mode has touched
/// none since, so the walk brought in the page of every frame but the first. The chain is known by
/// construction.
///
/// Pages on a swap device, and files that end before the page, need workloads of their own.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let walked = (LEAF, "pages that were not present");
    judge_at(evidence.facts(), tally, walked, |stack, ip| {
        ip == stack.syscall_return
    });
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::check;
    use crate::trace::Trace;
    use unwindlab_abi::message::UserSymbol;

    use super::*;
    use crate::invariant::testkit::Kit;

    const C: u64 = 3 << 32 | 1;
    /// As [`Kit::thread`] lays out its threads.
    const CALLERS: [u64; 3] = [0x2000, 0x2000, 0x3000];

    fn trace(frame0: Option<u64>, callers: &[u64]) -> Trace {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        let mut trace = kit.trace();
        let stack = &mut trace.threads[0].stack;
        stack.syscall_return = stack.leaf_start + 4;
        let frame0 = frame0.unwrap_or(stack.syscall_return);
        let start = stack.leaf_start;
        let threads = trace.threads.clone();
        let frames: Vec<u64> = std::iter::once(frame0)
            .chain(callers.iter().copied())
            .collect();
        kit.deferred(0, 1001, C, &frames);
        let mut trace = kit.trace();
        trace.threads = threads;
        trace.user_symbols = vec![UserSymbol {
            name: LEAF.into(),
            start,
            end: start + 1,
        }];
        trace
    }

    #[test]
    fn the_whole_stack_holds() {
        let check = check("U4", &trace(None, &CALLERS));
        assert!(matches!(check, Check::Holds { evidence: 1, .. }));
    }

    #[test]
    fn a_walk_that_ends_at_a_page_does_not() {
        for callers in [&CALLERS[..0], &CALLERS[..2]] {
            let check = check("U4", &trace(None, callers));
            assert!(matches!(check, Check::Violated(_)), "{callers:x?}");
        }
    }

    #[test]
    fn elsewhere_in_the_leaf_and_other_workloads_do_not_exercise_it() {
        let mut other = trace(None, &[]);
        other.user_symbols.clear();
        for trace in [trace(Some(0x1000), &[]), other] {
            let check = check("U4", &trace);
            assert!(matches!(check, Check::NotExercised { .. }));
        }
    }
}
