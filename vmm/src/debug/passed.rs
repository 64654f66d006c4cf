//! The code that was let past a breakpoint of the CPU's own, by RFLAGS.RF.
//!
//! An NMI or interrupt may come before that code executes the instruction. Its frame has RF, so the
//! code is let past again when `iret` returns to it. QEMU's TCG also sets RF in the frame of an
//! interrupt that comes at an instruction at which no breakpoint has stopped yet
//! (`exception_is_fault` in target/i386/tcg/seg_helper.c takes each vector but a few for a fault's;
//! a CPU sets it for faults). The breakpoint would miss. Where the
//! `iret` is executed by this VMM, the two are told apart here.

/// Most code that is remembered.
const MOST: usize = 64;

/// Code that was let past a breakpoint: by the instruction and the stack pointer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Passed(Vec<(u64, u64)>);

impl Passed {
    /// Code is let past the breakpoint at this instruction.
    pub(crate) fn add(&mut self, pc: u64, stack: u64) {
        self.0.retain(|it| *it != (pc, stack));
        if self.0.len() >= MOST {
            self.0.remove(0);
        }
        self.0.push((pc, stack));
    }

    /// Whether this code was.
    pub(crate) fn contains(&self, pc: u64, stack: u64) -> bool {
        self.0.contains(&(pc, stack))
    }

    /// Code in user mode ran, which had been let past nothing in the kernel.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_known_by_instruction_and_stack() {
        let mut passed = Passed::default();
        passed.add(0x1000, 0x7000);
        assert!(passed.contains(0x1000, 0x7000));
        assert!(!passed.contains(0x1000, 0x7008) && !passed.contains(0x1004, 0x7000));
        passed.clear();
        assert_eq!(passed, Passed::default());
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let mut passed = Passed::default();
        for pc in 0..=MOST as u64 {
            passed.add(pc, 0);
            passed.add(pc, 0);
        }
        assert!(!passed.contains(0, 0) && passed.contains(1, 0));
    }
}
