//! F3: a hostile section costs the task nothing but frames.

use super::asks;
use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// F3. A section is user memory: it may say anything, and change while it is read. Workloads register
/// sections that are wrong in a known way, ask for the stack of known code, and say what may come of
/// it:
///
/// * A section that is refused describes nothing: the chain is frame 0.
/// * One that says nothing wrong, or goes away, gives the stack, or its first frames.
/// * One that lies gives the first frames of the stack, or of what it says. That was worked out by a
///   reader of our own, which follows the specification. Where that does not say what the section
///   means (functions that are not sorted, words that nobody has read), other frames are undecided.
///
/// That the task goes on shows by the requests that follow, and by the end of the workload, without
/// which a trial is no `pass`. What the kernel says in its log is W0's.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    asks::judge(evidence, tally, |case| !case.is_of_life());
}

#[cfg(test)]
mod tests {
    use super::super::asks::tests::{WHOLE, one};
    use crate::invariant::Check;
    use unwindlab_abi::sframe::{SframeCase, SframeExpects};

    #[test]
    fn first_frames_of_the_stack_hold_and_others_do_not() {
        let shown = |ips: &[u64]| one("F3", SframeCase::RowsBeyond, SframeExpects::Shorter, ips);
        assert!(matches!(shown(&WHOLE), Check::Holds { evidence: 1, .. }));
        assert!(matches!(shown(&WHOLE[..2]), Check::Holds { .. }));
        assert!(matches!(shown(&[0x1080, 0x2001]), Check::Violated(_)));
        // A walk that goes on behind the root.
        let more = [0x1080, 0x2000, 0x2000, 0x3000, 0x3000];
        assert!(matches!(shown(&more), Check::Violated(_)));
    }

    #[test]
    fn a_refused_section_that_is_used_does_not() {
        let shown = |ips: &[u64]| one("F3", SframeCase::NotSorted, SframeExpects::Alone, ips);
        assert!(matches!(shown(&WHOLE[..1]), Check::Holds { .. }));
        assert!(matches!(shown(&WHOLE[..2]), Check::Violated(_)));
    }

    #[test]
    fn what_nobody_has_worked_out_is_undecided() {
        let shown = |ips: &[u64]| one("F3", SframeCase::Unsorted, SframeExpects::Unknown, ips);
        let check = shown(&[0x1080, 0x77]);
        assert!(matches!(check, Check::NotExercised { undecided: 1, .. }));
        assert!(matches!(shown(&WHOLE), Check::Holds { .. }));
    }
}
