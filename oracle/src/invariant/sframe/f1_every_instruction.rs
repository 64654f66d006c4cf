//! F1: where sections describe all frames, the chain is that of the program.

use super::known::{Place, known};
use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, difference};

/// F1. The D of an NMI at an instruction of code without frame pointers, all frames of which a
/// registered SFrame section describes, is the stack of the program, frame by frame. The stack is
/// known by construction from the instruction and the stack pointer, which the VMM read when it
/// made the NMI: at every instruction of a prologue, a body and an epilogue.
///
/// Evidence is each such D. The register `rbp` leads nowhere in this code, so a kernel that walks by
/// frame pointers shows less, and the levels of a recursion differ in their number, so that one
/// which keeps an earlier chain shows another.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let mut uncovered = 0;
    for place in known(evidence.facts()) {
        let known = match place {
            Place::Elsewhere => {
                tally.undecided("the stack pointer is none of the construction");
                continue;
            }
            Place::Known(known) => known,
        };
        if known.gap.is_some() {
            uncovered += 1;
        } else if known.found() == known.truth {
            tally.holds();
        } else {
            let message = format!(
                "record 22 of cookie {:#x} is not the stack of the program: {}",
                known.answer.chain.cookie,
                difference(known.found(), &known.truth)
            );
            let events = [known.asked, known.answer.event.index];
            tally.violated(message, events, known.truth.first().copied());
        }
    }
    tally.note(
        uncovered,
        "records 22 of stacks with a frame that no section describes",
    );
}

#[cfg(test)]
mod tests {
    use crate::invariant::sframe::f2_not_covered::tests::{CHAIN, IP, STACK, kit};
    use crate::invariant::testkit::{holds, not_exercised, user, violations};

    const ALL: &[(u64, u64)] = &[(0x1000, 0x4000)];

    #[test]
    fn the_stack_of_the_program_holds() {
        let kit = kit(ALL, user(IP).with_stack(STACK), &CHAIN);
        assert_eq!(holds("F1", &kit).0, 1);
    }

    #[test]
    fn any_other_chain_does_not() {
        for chain in [
            &[IP][..],
            &[IP, 0x2000, 0x2000],
            &[IP, 0x2000, 0x3000, 0x3000],
            &[IP, 0x2000, 0x2000, 0x3008],
        ] {
            let kit = kit(ALL, user(IP).with_stack(STACK), chain);
            assert_eq!(violations("F1", &kit)[0].instruction, Some(IP));
        }
    }

    /// At another level of the recursion the same instruction has another stack.
    #[test]
    fn the_stack_pointer_says_which_stack() {
        let kit = kit(ALL, user(IP).with_stack(STACK + 40), &CHAIN[1..]);
        violations("F1", &kit);
        let shorter = super::super::f2_not_covered::tests::kit(
            ALL,
            user(IP).with_stack(STACK + 40),
            &[IP, 0x2000, 0x3000],
        );
        assert_eq!(holds("F1", &shorter).0, 1);
    }

    #[test]
    fn without_sections_or_elsewhere_on_the_stack_it_is_not_exercised() {
        let chain = kit(&[], user(IP).with_stack(STACK), &[IP]);
        assert!(not_exercised("F1", &chain).contains("; 1 records 22 of stacks with a frame"));
        let chain = kit(ALL, user(IP).with_stack(STACK - 8), &[IP]);
        assert!(not_exercised("F1", &chain).contains("1 undecided"));
    }
}
