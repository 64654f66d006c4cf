//! F2: a frame that no section describes costs frames, and makes none up.

use super::known::{Place, in_order, known};
use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, difference};

/// F2. Where a frame is of code that no section describes, the walk ends there, or goes on by the
/// frame pointer. So the chain has every frame up to and including that one, and what follows are
/// frames of the program in their order, if anything does.
///
/// Evidence is a D in which sections led to such a frame: a kernel without sections does not come so
/// far. Where already the interrupted instruction is not described, it shows the same, so that D is
/// undecided. `rbp` leads to a frame of the program in this code, or nowhere.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    for place in known(evidence.facts()) {
        let Place::Known(known) = place else {
            continue;
        };
        let Some(gap) = known.gap else {
            continue;
        };
        let found = known.found();
        let known_part = known.truth.get(..=gap).unwrap_or_default();
        let wrong = if !found.starts_with(known_part) {
            difference(found, known_part)
        } else if let Some(made_up) = found.get(in_order(found, &known.truth)) {
            format!("{made_up:#x} is no frame of the program there")
        } else if gap == 0 {
            tally.undecided("no section describes the interrupted instruction");
            continue;
        } else {
            tally.holds();
            continue;
        };
        let message = format!(
            "record 22 of cookie {:#x}, whose frame {gap} no section describes: {wrong}",
            known.answer.chain.cookie
        );
        let events = [known.asked, known.answer.event.index];
        tally.violated(message, events, known.truth.first().copied());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use unwindlab_abi::message::{KnownStack, Program};

    use crate::invariant::testkit::{Hit, Kit, holds, not_exercised, user, violations};

    pub const IP: u64 = 0x1004;
    pub const STACK: u64 = 0x7f00;
    pub const CHAIN: [u64; 4] = [IP, 0x2000, 0x2000, 0x3000];
    const C: u64 = 3 << 32 | 1;

    /// Code at 0x1000 to 0x4000 with these sections, and an NMI with its D.
    pub fn kit(covered: &[(u64, u64)], hit: Hit, chain: &[u64]) -> Kit {
        let mut kit = Kit::new(1);
        let stack = |stack_pointer, levels| KnownStack {
            start: 0x1000,
            end: 0x1100,
            stack_pointer: Some(stack_pointer),
            callers: vec![(0x2000, levels), (0x3000, 1)],
        };
        kit.program(Program {
            stacks: vec![stack(STACK, 2), stack(STACK + 40, 1)],
            covered: covered.to_vec(),
        });
        kit.thread(0, 1001);
        kit.inject(0, 1001, C, hit);
        kit.deferred(0, 1001, C, chain);
        kit
    }

    /// The callers at 0x2000 are not described.
    const GAP: &[(u64, u64)] = &[(0x1000, 0x1100), (0x2800, 0x3800)];

    #[test]
    fn up_to_the_gap_and_perhaps_more_holds() {
        for chain in [
            &[IP, 0x2000][..],
            &[IP, 0x2000, 0x3000],
            &[IP, 0x2000, 0x2000, 0x3000],
        ] {
            let kit = kit(GAP, user(IP).with_stack(STACK), chain);
            assert_eq!(holds("F2", &kit).0, 1);
        }
    }

    #[test]
    fn fewer_frames_or_wrong_ones_do_not() {
        for chain in [
            &[IP][..],
            &[IP, 0x3000],
            &[IP, 0x2000, 0x2008],
            &[IP, 0x2000, 0x3000, 0x2000],
        ] {
            violations("F2", &kit(GAP, user(IP).with_stack(STACK), chain));
        }
    }

    /// A kernel that knows no sections shows this, too.
    #[test]
    fn an_instruction_without_a_section_or_a_whole_chain_does_not_exercise_it() {
        let none = kit(&[], user(IP).with_stack(STACK), &[IP]);
        assert!(not_exercised("F2", &none).contains("1 undecided"));
        violations("F2", &kit(&[], user(IP).with_stack(STACK), &[IP, 0x9000]));
        let all = kit(&[(0x1000, 0x4000)], user(IP).with_stack(STACK), &CHAIN);
        not_exercised("F2", &all);
    }
}
