//! Single steps over the few instructions for which the trap flag is not enough.
//!
//! KVM steps by the trap flag. `syscall` and `sysret` replace the flags, so the step would end
//! some instructions later: they are stepped by a breakpoint at their target. `pushf` would leave
//! the flag on the guest's stack, so it is cleared there.

use kvm_bindings::{kvm_regs, kvm_sregs};

use super::{InspectError, Vcpu};
use crate::debug::StepMethod;
use crate::x86::RFLAGS_TRAP;

/// Target of `syscall` in 64-bit code.
const MSR_LSTAR: u32 = 0xc000_0082;
/// Target of `syscall` in 32-bit code.
const MSR_CSTAR: u32 = 0xc000_0083;

/// An instruction, as far as steps depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instruction {
    PushFlags,
    Syscall,
    /// To 64-bit code.
    Sysret64,
    /// To 32-bit code.
    Sysret32,
    Other,
}

fn decode(code: &[u8]) -> Instruction {
    match code {
        [0x9c, ..] | [0x66, 0x9c, ..] => Instruction::PushFlags,
        [0x0f, 0x05, ..] => Instruction::Syscall,
        [0x0f, 0x07, ..] => Instruction::Sysret32,
        [rex @ 0x40..=0x4f, 0x0f, 0x07, ..] if rex & 8 != 0 => Instruction::Sysret64,
        [0x40..=0x4f, 0x0f, 0x07, ..] => Instruction::Sysret32,
        [0x40..=0x4f, 0x0f, 0x05, ..] => Instruction::Syscall,
        _ => Instruction::Other,
    }
}

/// How to step over the next instruction.
pub(crate) fn method(vcpu: &Vcpu) -> Result<StepMethod, InspectError> {
    let (regs, sregs) = (vcpu.regs()?, vcpu.sregs()?);
    let mut code = [0; 3];
    // A short instruction may end right before an unmapped page, so fewer bytes do. If there are
    // none, the instruction faults.
    let length = (1..=code.len()).rev().find(|length| {
        let part = code.get_mut(..*length);
        part.is_some_and(|part| vcpu.read_virt_with(&sregs, regs.rip, part).is_ok())
    });
    let code = code.get(..length.unwrap_or(0)).unwrap_or_default();
    Ok(match decode(code) {
        Instruction::Other => StepMethod::TrapFlag,
        Instruction::PushFlags => push_flags(&regs, &sregs),
        Instruction::Syscall => match sregs.cs.l {
            0 => StepMethod::Landing(vcpu.msr(MSR_CSTAR)?),
            _ => StepMethod::Landing(vcpu.msr(MSR_LSTAR)?),
        },
        Instruction::Sysret64 => StepMethod::Landing(regs.rcx),
        Instruction::Sysret32 => StepMethod::Landing(regs.rcx & 0xffff_ffff),
    })
}

/// A guest that steps itself expects the flag on its stack.
fn push_flags(regs: &kvm_regs, sregs: &kvm_sregs) -> StepMethod {
    match regs.rflags & RFLAGS_TRAP == 0 && sregs.ss.base == 0 {
        true => StepMethod::TrapFlagOnStack,
        false => StepMethod::TrapFlag,
    }
}

/// Clears the trap flag in the flags that the guest has just pushed.
pub(crate) fn clear_pushed_trap_flag(vcpu: &Vcpu) -> Result<(), InspectError> {
    let sregs = vcpu.sregs()?;
    let flags = vcpu.regs()?.rsp;
    // The flag is bit 8, the lowest of the second byte.
    let address = flags.wrapping_add(1);
    let mut byte = [0];
    vcpu.read_virt_with(&sregs, address, &mut byte)?;
    vcpu.write_virt_with(&sregs, address, &byte.map(|byte| byte & !1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_need_care_are_recognised() {
        assert_eq!(decode(&[0x9c]), Instruction::PushFlags);
        assert_eq!(decode(&[0x66, 0x9c]), Instruction::PushFlags);
        assert_eq!(decode(&[0x0f, 0x05, 0]), Instruction::Syscall);
        assert_eq!(decode(&[0x48, 0x0f, 0x07]), Instruction::Sysret64);
        assert_eq!(decode(&[0x0f, 0x07, 0x48]), Instruction::Sysret32);
        assert_eq!(decode(&[0x0f]), Instruction::Other);
        assert_eq!(decode(&[]), Instruction::Other);
        assert_eq!(decode(&[0x9d, 0x9c, 0x9c]), Instruction::Other);
    }
}
