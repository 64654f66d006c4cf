//! Single steps over the few instructions that a CPU's trap flag does not step over.
//!
//! A step is the trap flag, set by KVM. `syscall` and `sysret` replace the flags as they run,
//! so that the step would end somewhere behind them: those are stepped by a breakpoint where
//! they lead. And `pushf` would leave the flag on the guest's stack: it is taken off there.

use kvm_bindings::{kvm_regs, kvm_sregs};

use crate::debug::RFLAGS_TRAP;
use crate::vcpu::{InspectError, Vcpu};

/// Where `syscall` of 64-bit code leads.
const MSR_LSTAR: u32 = 0xc000_0082;
/// Where `syscall` of 32-bit code leads.
const MSR_CSTAR: u32 = 0xc000_0083;

/// How the next instruction is stepped over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By the trap flag.
    Trap,
    /// By the trap flag, which is cleared on the stack afterwards.
    TrapOnStack,
    /// By a breakpoint here.
    Landing(u64),
}

/// An instruction that needs care.
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

/// Looks at the instruction that comes next.
pub(crate) fn plan(vcpu: &Vcpu) -> Result<Way, InspectError> {
    let (regs, sregs) = (vcpu.regs()?, vcpu.sregs()?);
    let mut code = [0; 3];
    // Where nothing can be read the instruction faults; fewer bytes may be before the end of
    // what is mapped, and are enough for a short instruction.
    let length = (1..=code.len()).rev().find(|length| {
        let part = code.get_mut(..*length);
        part.is_some_and(|part| vcpu.read_virt_with(&sregs, regs.rip, part).is_ok())
    });
    let code = code.get(..length.unwrap_or(0)).unwrap_or_default();
    Ok(match decode(code) {
        Instruction::Other => Way::Trap,
        Instruction::PushFlags => push_flags(&regs, &sregs),
        Instruction::Syscall => match sregs.cs.l {
            0 => Way::Landing(vcpu.msr(MSR_CSTAR)?),
            _ => Way::Landing(vcpu.msr(MSR_LSTAR)?),
        },
        Instruction::Sysret64 => Way::Landing(regs.rcx),
        Instruction::Sysret32 => Way::Landing(regs.rcx & 0xffff_ffff),
    })
}

/// A guest that steps itself has the flag on its stack by right.
fn push_flags(regs: &kvm_regs, sregs: &kvm_sregs) -> Way {
    match regs.rflags & RFLAGS_TRAP == 0 && sregs.ss.base == 0 {
        true => Way::TrapOnStack,
        false => Way::Trap,
    }
}

/// Takes the trap flag off the flags that the guest has just pushed.
pub(crate) fn clear_pushed_trap_flag(vcpu: &Vcpu) -> Result<(), InspectError> {
    let sregs = vcpu.sregs()?;
    let flags = vcpu.regs()?.rsp;
    // The flag is bit 8: the lowest of the second byte.
    let address = flags.wrapping_add(1);
    let mut byte = [0];
    vcpu.read_virt_with(&sregs, address, &mut byte)?;
    vcpu.write_virt_with(&sregs, address, &byte.map(|byte| byte & !1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_need_care_are_known() {
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
