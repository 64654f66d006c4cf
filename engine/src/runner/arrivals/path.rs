//! The way of a sweep: the boundaries at which it injected, one more in each iteration.
//!
//! The next one is not stepped to from the place. The vCPU runs, with interrupts and NMIs held back as in
//! steps, to the last boundary whose instruction is met only once on the way, and steps from there. On a
//! way of 200 instructions that is two stops in place of 200.

use std::collections::BTreeMap;

/// Where to run before the first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    /// The instruction.
    pub pc: u64,
    /// The stack pointer there: with another one, it is the same code within a fault. `None` in user mode.
    pub stack_pointer: Option<u64>,
}

impl Anchor {
    /// Whether a vCPU at the instruction, with this stack pointer, is there.
    pub fn is_with(self, stack_pointer: u64) -> bool {
        self.stack_pointer.is_none_or(|it| it == stack_pointer)
    }
}

/// A boundary as every iteration has it.
#[derive(Debug, Clone, Copy)]
struct Boundary {
    pc: u64,
    /// How far the stack pointer is below that at the place, modulo 2^64: stacks differ in their offsets.
    depth: u64,
}

/// The boundaries that are known, from the place on.
#[derive(Debug, Default)]
pub(super) struct Path {
    boundaries: Vec<Boundary>,
    /// How often each instruction is among them.
    times: BTreeMap<u64, u32>,
    /// An iteration did not come by: nothing is known of the next one either.
    astray: bool,
}

impl Path {
    /// An injection was made at boundary `number`, where the place is 0.
    pub(super) fn note(&mut self, number: u64, pc: u64, depth: u64) {
        if self.boundaries.len() as u64 == number {
            self.boundaries.push(Boundary { pc, depth });
            *self.times.entry(pc).or_insert(0) += 1;
        }
    }

    /// How to get to boundary `number` from the place, where the stack pointer is `top`: the anchor, and the
    /// steps from there. `None`: by steps alone.
    pub(super) fn way_to(&self, number: u64, top: u64) -> Option<(Anchor, u64)> {
        if self.astray {
            return None;
        }
        let number = usize::try_from(number).ok()?;
        let is_met_once = |it: &Boundary| self.times.get(&it.pc) == Some(&1);
        let known = self.boundaries.iter().enumerate().take(number).skip(1);
        let (at, boundary) = known.rev().find(|(_, it)| is_met_once(it))?;
        let anchor = Anchor {
            pc: boundary.pc,
            // The kernel's addresses are those of the upper half.
            stack_pointer: (boundary.pc >> 63 == 1).then(|| top.wrapping_sub(boundary.depth)),
        };
        Some((anchor, (number - at) as u64))
    }

    /// An iteration did not come by an anchor.
    pub(super) fn go_astray(&mut self) {
        self.astray = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: u64 = 0xffff_ffff_8100_0000;

    /// A way into a loop of two instructions, and out of it.
    fn with_a_loop() -> Path {
        let mut path = Path::default();
        for (number, pc) in (0..).zip([0x10, 0x14, 0x20, 0x22, 0x20, 0x22, 0x30]) {
            path.note(number, KERNEL + pc, 8 * number);
        }
        path
    }

    #[test]
    fn the_anchor_is_the_last_instruction_that_is_met_once() {
        let path = with_a_loop();
        let to = |number| {
            path.way_to(number, 0x1000)
                .map(|(anchor, steps)| (anchor.pc - KERNEL, anchor.stack_pointer, steps))
        };
        assert_eq!(to(0), None);
        assert_eq!(to(1), None, "the vCPU stands at the place");
        assert_eq!(to(2), Some((0x14, Some(0xff8), 1)));
        assert_eq!(to(6), Some((0x14, Some(0xff8), 5)), "in the loop");
        assert_eq!(to(7), Some((0x30, Some(0xfd0), 1)));
        // Two threads are under way, and the first one's boundary is not known yet.
        assert_eq!(to(8), Some((0x30, Some(0xfd0), 2)));
    }

    #[test]
    fn what_is_not_the_next_boundary_is_not_noted() {
        let mut path = with_a_loop();
        path.note(9, KERNEL, 0);
        path.note(2, KERNEL, 0);
        assert_eq!(path.way_to(9, 0).map(|it| it.1), Some(3));
    }

    #[test]
    fn stacks_are_compared_in_the_kernel_only() {
        let mut path = with_a_loop();
        path.note(7, 0x40_0000, 0);
        let anchor = path.way_to(8, 0x1000).unwrap().0;
        assert!(anchor.pc == 0x40_0000 && anchor.is_with(1));
        let anchor = path.way_to(7, 0x1000).unwrap().0;
        assert!(anchor.is_with(0xfd0) && !anchor.is_with(0xfc8));
    }

    #[test]
    fn astray_means_by_steps() {
        let mut path = with_a_loop();
        path.go_astray();
        assert_eq!(path.way_to(7, 0), None);
    }
}
