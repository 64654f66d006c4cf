//! U2: the walk stops where the chain of frame pointers does.

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;
use crate::trace::model::MAX_DEFERRED_FRAMES;

/// U2, as far as records show it. A record has return addresses, no frame addresses. But the root
/// of a workload thread ends its chain with a frame pointer below the stack pointer, and there the
/// walk must stop (`unwind_user_next_common`, kernel/unwind/user.c, 7.2): a D with frame 0 at the
/// leaf has no frame beyond the root, and none that is not a user address.
///
/// With `wild-ends` that frame pointer is also one of the outermost frame itself, of the frame
/// below it, a misaligned one above, one into the kernel and one that is not canonical; none of
/// them leads to a frame. An unmapped one needs a workload of its own.
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
        } else if depth < MAX_DEFERRED_FRAMES as u64 {
            tally.holds();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;

    fn walk(frames: &[u64]) -> Kit {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.deferred(0, 1001, C, frames);
        kit
    }

    #[test]
    fn stopping_at_the_root_holds() {
        let kit = walk(&[0x1004, 0x2000, 0x2000, 0x3000]);
        assert_eq!(holds("U2", &kit).0, 1);
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
}
