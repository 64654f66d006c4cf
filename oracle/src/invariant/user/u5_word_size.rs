//! U5: 32-bit code is walked with 4-byte words.

use super::known_leaf::judge_at;
use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, at_leaf};

/// The leaf of the workload in 32-bit code.
const LEAF: &str = "compat_leaf";

/// U5. Return addresses and frame pointers of 32-bit code are 4 bytes each, and the walk reads them
/// as such (`unwind_user_word_size`, arch/x86/include/asm/unwind_user.h, 7.2). The code segment
/// that the task was in counts, not the kind of program.
///
/// Judges the D of threads of workload `compat` with frame 0 at the leaf. Their chain is known by
/// construction; with 8-byte words the first return address would be two in one.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let walked = (LEAF, "a stack of 32-bit code");
    judge_at(evidence.facts(), tally, walked, at_leaf);
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit;
    use unwindlab_abi::message::UserSymbol;

    use super::*;
    use crate::invariant::testkit::Kit;

    const C: u64 = 3 << 32 | 1;

    fn check(frames: &[u64], leaf: &str) -> Check {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.deferred(0, 1001, C, frames);
        let mut trace = kit.trace();
        let start = trace.threads[0].stack.leaf_start;
        trace.user_symbols = vec![UserSymbol {
            name: leaf.into(),
            start,
            end: start + 1,
        }];
        testkit::check("U5", &trace)
    }

    #[test]
    fn the_stack_as_built_holds() {
        let check = check(&[0x1004, 0x2000, 0x2000, 0x3000], LEAF);
        assert!(matches!(check, Check::Holds { evidence: 1, .. }));
    }

    #[test]
    fn two_words_read_as_one_do_not() {
        for frames in [&[0x1004, 0x7fff_0000_2000][..], &[0x1004][..]] {
            assert!(matches!(check(frames, LEAF), Check::Violated(_)));
        }
    }

    #[test]
    fn elsewhere_and_64_bit_code_do_not_exercise_it() {
        for check in [check(&[0x5000], LEAF), check(&[0x1004], "deep_leaf")] {
            assert!(matches!(check, Check::NotExercised { .. }));
        }
    }
}
