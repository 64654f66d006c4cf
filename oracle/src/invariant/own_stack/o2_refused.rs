//! O2: a call for one's own stack that cannot be answered is refused.

use unwindlab_abi::own_stack::OwnStackCase;

use super::{calls, what};
use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// O2. EINVAL without room and for an unknown flag; EFAULT for a buffer that cannot be written to its end, whatever
/// part of it can. A buffer beside it is not written to.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    for call in calls(evidence) {
        let (wanted, name) = match call.case {
            OwnStackCase::NoRoom | OwnStackCase::Flags => (-22, "EINVAL"),
            OwnStackCase::BeyondAddressSpace | OwnStackCase::ReadOnly | OwnStackCase::IntoHole => {
                (-14, "EFAULT")
            }
            OwnStackCase::Whole
            | OwnStackCase::NotPresent
            | OwnStackCase::StackNotPresent
            | OwnStackCase::Cut
            | OwnStackCase::Unmapped
            | OwnStackCase::InHandler => continue,
        };
        let written = call.frames.len();
        let flaw = match () {
            () if call.answer != wanted => format!("it returned {}, not {name}", call.answer),
            () if written > 0 => format!("it wrote up to word {written} of another buffer"),
            () => {
                tally.holds_on(usize::try_from(call.count).unwrap_or(usize::MAX));
                continue;
            }
        };
        tally.violated(format!("{}: {flaw}", what(call)), [], None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::one;
    use super::*;
    use crate::invariant::Check;

    #[test]
    fn refusals_are_those_of_the_interface() {
        for (case, errno) in [
            (OwnStackCase::NoRoom, -22),
            (OwnStackCase::Flags, -22),
            (OwnStackCase::BeyondAddressSpace, -14),
            (OwnStackCase::ReadOnly, -14),
            (OwnStackCase::IntoHole, -14),
        ] {
            assert!(matches!(one("O2", case, errno, &[]), Check::Holds { .. }));
            for (answer, frames) in [(6, &[][..]), (0, &[]), (-1, &[]), (errno, &[0x1080])] {
                let check = one("O2", case, answer, frames);
                assert!(matches!(check, Check::Violated(_)), "{case:?} {answer}");
            }
        }
    }

    #[test]
    fn what_may_succeed_is_not_judged_here() {
        let check = one("O2", OwnStackCase::Whole, -14, &[]);
        assert!(matches!(check, Check::NotExercised { .. }));
    }
}
