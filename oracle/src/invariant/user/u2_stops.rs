//! U2: the walk stops where the chain of frame pointers does.

use unwindlab_abi::Observation;
use unwindlab_abi::message::ExpectedStack;
use unwindlab_abi::observation::WildEnd;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, flaw};
use crate::trace::Trace;
use crate::trace::model::MAX_DEFERRED_FRAMES;

/// U2, as far as records show it. A record has return addresses, no frame addresses. But the root
/// of a workload thread ends its chain with a frame pointer below the stack pointer, and there the
/// walk must stop (`unwind_user_next_common`, kernel/unwind/user.c, 7.2): a D with frame 0 at the
/// leaf has no frame beyond the root, and none that is not a user address.
///
/// With `wild-ends` that frame pointer is also one of the outermost frame itself, of the frame
/// below it, a misaligned one above, one into the kernel, one that is not canonical, one to the second word of the outermost
/// frame, and one at the end of the address space; none of them leads to a frame. An unmapped one needs a workload of its own.
///
/// Evidence is a whole chain, up to the root and no further, of a thread whose root's frame pointer
/// would lead an unwinder that checks too little to one frame more: its own frame, or a word in it, the one below, a
/// misaligned one, or one in the kernel. Memory at 0, at a non-canonical address or at the end of the address space cannot be read,
/// so there any walk stops, and the chain is undecided. One that ends before the root is S1's.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for answer in &facts.answers {
        let stacks = facts.stacks_at_leaf(answer);
        let Some(depth) = stacks.iter().map(|stack| stack.depth()).max() else {
            continue;
        };
        let frames = &answer.chain.ips;
        let kernel = frames.iter().find(|&&ip| ip.cast_signed() < 0);
        let cookie = answer.chain.cookie;
        if let Some(ip) = kernel {
            let message = format!("the walk for cookie {cookie:#x} came to {ip:#x}");
            tally.violated(message, [answer.event.index], None);
        } else if frames.len() as u64 > depth {
            let message = format!(
                "the walk for cookie {cookie:#x} found {} frames on a stack of {depth}",
                frames.len()
            );
            tally.violated(message, [answer.event.index], None);
        } else if depth >= MAX_DEFERRED_FRAMES as u64 {
            // Cut before its end.
        } else if !stacks.iter().any(|it| whole(frames, it)) {
            tally.undecided("the walk did not come to the root (S1 judges that)");
        } else if !leads_on(facts.trace, answer.event.tid) {
            tally.undecided("the root's frame pointer leads to nothing that can be read");
        } else {
            tally.holds();
        }
    }
}

fn whole(frames: &[u64], stack: &ExpectedStack) -> bool {
    let frame0 = frames.first();
    frame0.is_some_and(|&frame0| flaw(frames, stack, frame0).is_none())
}

/// Whether the frame pointer at the root of this thread leads to memory that can be read.
fn leads_on(trace: &Trace, tid: Option<u32>) -> bool {
    let thread = trace
        .threads
        .iter()
        .find(|t| t.tid != 0 && Some(t.tid) == tid);
    let mut ends = trace.observations.iter().filter_map(|seen| match seen {
        Observation::WildEnd { thread, end } => Some((*thread, *end)),
        _ => None,
    });
    use WildEnd::{Backward, Kernel, Misaligned, OwnFrame, WithinFrame};
    ends.any(|(of, end)| {
        thread.is_some_and(|thread| thread.thread == of)
            && matches!(end, OwnFrame | Backward | Misaligned | Kernel | WithinFrame)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, check, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;
    const WHOLE: [u64; 4] = [0x1004, 0x2000, 0x2000, 0x3000];

    fn ending(frames: &[u64], end: WildEnd) -> Check {
        let mut trace = walk(frames).trace();
        let thread = 0;
        trace.observations = vec![Observation::WildEnd { thread, end }];
        check("U2", &trace)
    }

    fn walk(frames: &[u64]) -> Kit {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.deferred(0, 1001, C, frames);
        kit
    }

    #[test]
    fn stopping_at_the_root_holds() {
        for end in [WildEnd::OwnFrame, WildEnd::WithinFrame] {
            let check = ending(&WHOLE, end);
            assert!(matches!(check, Check::Holds { evidence: 1, .. }));
        }
    }

    /// Kernels that stop too early, or that follow any frame pointer, show these too.
    #[test]
    fn stopping_early_or_where_every_walk_stops_does_not_exercise_it() {
        for check in [
            ending(&WHOLE[..2], WildEnd::OwnFrame),
            ending(&WHOLE, WildEnd::Zero),
            ending(&WHOLE, WildEnd::NonCanonical),
            ending(&WHOLE, WildEnd::WrapsAround),
            check("U2", &walk(&WHOLE).trace()),
        ] {
            assert!(
                matches!(check, Check::NotExercised { undecided: 1, .. }),
                "{check:?}"
            );
        }
    }

    #[test]
    fn going_on_does_not() {
        violations("U2", &walk(&[0x1004, 0x2000, 0x2000, 0x3000, 0x3000]));
        violations("U2", &walk(&[0x1004, 0xffff_ffff_8100_0000]));
    }

    #[test]
    fn stacks_cut_at_510_and_other_tasks_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.deep_thread(0, 1001, 600);
        kit.deferred(0, 1001, C, &[0x1004; 510]);
        kit.deferred(0, 1002, C, &[0x1004]);
        not_exercised("U2", &kit);
    }

    #[test]
    fn an_address_of_zero_is_none_of_the_kernels() {
        let found = ending(&[0x1004, 0], WildEnd::OwnFrame);
        assert!(matches!(found, Check::NotExercised { undecided: 1, .. }));
    }

    #[test]
    fn the_end_of_another_thread_says_nothing() {
        let of = |thread| {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            kit.thread(1, 1002);
            kit.deferred(0, 1002, C, &WHOLE);
            let mut trace = kit.trace();
            let end = WildEnd::OwnFrame;
            trace.observations = vec![Observation::WildEnd { thread, end }];
            check("U2", &trace)
        };
        assert!(matches!(of(1), Check::Holds { evidence: 1, .. }));
        assert!(matches!(of(0), Check::NotExercised { undecided: 1, .. }));
    }
}
