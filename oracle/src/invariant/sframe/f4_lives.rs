//! F4: a forked process inherits sections; exec, unmapping and removal drop them.

use super::asks;
use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// F4. Workload `sframe-lives` asks in a forked child, which must show the whole stack; in the parent
/// after the child has removed its own; after exec, munmap, mmap over it and mremap of the section,
/// each with the same bytes put back at the same place, and after removal. There frame 0 must be all:
/// a kernel that kept the section would find it again, for code that is where it was.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    asks::judge(evidence, tally, |case| case.is_of_life());
}

#[cfg(test)]
mod tests {
    use super::super::asks::tests::{WHOLE, one};
    use crate::invariant::Check;
    use unwindlab_abi::sframe::{SframeCase, SframeExpects};

    #[test]
    fn a_child_without_its_parents_section_does_not_hold() {
        let shown = |ips: &[u64]| one("F4", SframeCase::Forked, SframeExpects::Whole, ips);
        assert!(matches!(shown(&WHOLE), Check::Holds { evidence: 1, .. }));
        assert!(matches!(shown(&WHOLE[..1]), Check::Violated(_)));
    }

    #[test]
    fn a_section_that_outlives_its_memory_does_not_hold() {
        for case in [SframeCase::Executed, SframeCase::Moved, SframeCase::Removed] {
            let shown = |ips: &[u64]| one("F4", case, SframeExpects::Alone, ips);
            assert!(matches!(shown(&WHOLE[..1]), Check::Holds { .. }));
            assert!(matches!(shown(&WHOLE), Check::Violated(_)));
        }
    }

    #[test]
    fn hostile_sections_are_no_matter_of_it() {
        let check = one("F4", SframeCase::Cut, SframeExpects::Alone, &WHOLE);
        assert!(matches!(check, Check::NotExercised { .. }));
    }
}
