//! Where an instruction in user mode leads, the kernel's entries included.
//!
//! A single step sets the trap flag, and an exception would push it to the kernel's stack. So the
//! vCPU runs, with breakpoints at all places that the instruction can lead to.

use iced_x86::{Code, CodeSize, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use unwindlab_vmm::VcpuHandle;

use super::error::SweepError;
use crate::driver::{Driver, word};
use crate::plan::sweep::TICK;

/// Targets of `syscall` in 64-bit and in 32-bit code, and of `sysenter`.
const MSR_LSTAR: u32 = 0xc000_0082;
const MSR_CSTAR: u32 = 0xc000_0083;
const MSR_SYSENTER_EIP: u32 = 0x176;
/// The longest x86 instruction.
const LONGEST: usize = 15;
const TRAP_FLAG: u64 = 1 << 8;
const INTERRUPT_FLAG: u64 = 1 << 9;
/// Vectors of exceptions.
const DEBUG: u8 = 1;
const BREAKPOINT: u8 = 3;
const INVALID_OPCODE: u8 = 6;
const PROTECTION: u8 = 13;
const PAGE_FAULT: u8 = 14;

/// The first instruction of the handler of a vector, by the vCPU's interrupt descriptor table.
pub(super) fn gate(driver: &mut Driver, index: u8, vector: u8) -> Result<u64, SweepError> {
    let vcpu = driver.vcpu(index)?;
    let table = vcpu.sregs()?.idt.base;
    let at = table.wrapping_add(16 * u64::from(vector));
    let (low, high) = (word(&vcpu, at)?, word(&vcpu, at.wrapping_add(8))?);
    // The address is cut in three (AMD APM vol. 2, 4.8.3).
    Ok(low & 0xffff | (low >> 48) << 16 | (high & 0xffff_ffff) << 32)
}

/// The vector of an interrupt that waits to be taken. A tick is none: single steps take as long as
/// it is from one to the next.
pub(super) fn waiting(vcpu: &VcpuHandle<'_>) -> Result<Option<u8>, SweepError> {
    Ok(vcpu.next_vector()?.filter(|vector| *vector != TICK))
}

/// Where a vCPU that stands in user mode can come to next.
pub(super) fn targets(driver: &mut Driver, index: u8) -> Result<Vec<u64>, SweepError> {
    let sysenter = driver.sysenter();
    let vcpu = driver.vcpu(index)?;
    let (regs, sregs) = (vcpu.regs()?, vcpu.sregs()?);
    if regs.rflags & INTERRUPT_FLAG != 0
        && let Some(vector) = waiting(&vcpu)?
    {
        return Ok(vec![gate(driver, index, vector)?]);
    }
    let bits = if sregs.cs.l == 1 { 64 } else { 32 };
    let instruction = decoded(&vcpu, regs.rip, bits);
    let mut targets = direct(&vcpu, &instruction, sysenter, regs.rsp)?;
    let mut vectors = vectors(&instruction);
    if regs.rflags & TRAP_FLAG != 0 {
        vectors.push(DEBUG);
    }
    for vector in vectors {
        targets.push(gate(driver, index, vector)?);
    }
    targets.sort_unstable();
    targets.dedup();
    Ok(targets)
}

/// The instruction at an address; an invalid one where nothing is mapped.
pub(super) fn decoded(vcpu: &VcpuHandle<'_>, rip: u64, bits: u32) -> Instruction {
    let mut code = [0; LONGEST];
    let length = (1..=LONGEST).rev().find(|length| {
        let part = code.get_mut(..*length);
        part.is_some_and(|part| vcpu.read_virt(rip, part).is_ok())
    });
    let code = code.get(..length.unwrap_or(0)).unwrap_or_default();
    Decoder::with_ip(bits, code, rip, DecoderOptions::NONE).decode()
}

/// Whether the 64-bit instruction is there to enter the kernel, or none.
pub(super) fn enters_kernel(vcpu: &VcpuHandle<'_>, rip: u64) -> bool {
    let instruction = decoded(vcpu, rip, 64);
    let by_name = matches!(
        instruction.mnemonic(),
        Mnemonic::Syscall | Mnemonic::Sysenter
    );
    by_name || instruction.is_invalid() || instruction.flow_control() == FlowControl::Interrupt
}

/// The vectors of the exceptions that an instruction may raise.
fn vectors(instruction: &Instruction) -> Vec<u8> {
    let own = match (instruction.code(), instruction.mnemonic()) {
        (Code::Int_imm8, _) => vec![instruction.immediate8()],
        (Code::Int3, _) => vec![BREAKPOINT],
        (Code::Int1, _) => return vec![DEBUG],
        (Code::INVALID, _) | (_, Mnemonic::Ud2) => vec![INVALID_OPCODE],
        _ => Vec::new(),
    };
    [own, vec![PROTECTION, PAGE_FAULT]].concat()
}

/// Where an instruction leads that raises no exception.
fn direct(
    vcpu: &VcpuHandle<'_>,
    instruction: &Instruction,
    sysenter: Option<u64>,
    stack: u64,
) -> Result<Vec<u64>, SweepError> {
    let bits = instruction.code_size();
    let next = instruction.next_ip();
    Ok(match (instruction.mnemonic(), instruction.flow_control()) {
        (Mnemonic::Syscall, _) if bits == CodeSize::Code64 => vec![vcpu.msr(MSR_LSTAR)?],
        (Mnemonic::Syscall, _) => vec![vcpu.msr(MSR_CSTAR)?],
        // Of a guest that says AMD, KVM shows the lower half (`svm_set_msr()`,
        // arch/x86/kvm/svm/svm.c).
        (Mnemonic::Sysenter, _) => vec![sysenter.map_or_else(|| vcpu.msr(MSR_SYSENTER_EIP), Ok)?],
        (_, FlowControl::Next | FlowControl::XbeginXabortXend) => vec![next],
        (_, FlowControl::UnconditionalBranch | FlowControl::Call)
            if instruction.near_branch_target() != 0 =>
        {
            vec![instruction.near_branch_target()]
        }
        (_, FlowControl::ConditionalBranch) => vec![next, instruction.near_branch_target()],
        // Where nothing is mapped, the return faults.
        (_, FlowControl::Return) => match word(vcpu, stack) {
            Ok(target) if bits == CodeSize::Code64 => vec![target],
            Ok(target) => vec![target & 0xffff_ffff],
            Err(_) => Vec::new(),
        },
        (_, FlowControl::Interrupt | FlowControl::Exception) => Vec::new(),
        (_, FlowControl::IndirectBranch | FlowControl::IndirectCall) => {
            return Err(SweepError::LeadsAnywhere {
                place: instruction.ip(),
            });
        }
        _ => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised(code: &[u8]) -> Vec<u8> {
        vectors(&Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).decode())
    }

    #[test]
    fn exceptions_of_an_instruction_are_those_it_names_and_faults() {
        assert_eq!(raised(&[0xcd, 0x80]), [0x80, PROTECTION, PAGE_FAULT]);
        assert_eq!(raised(&[0xcc]), [BREAKPOINT, PROTECTION, PAGE_FAULT]);
        assert_eq!(raised(&[0xf1]), [DEBUG], "int1");
        assert_eq!(raised(&[0xf4]), [PROTECTION, PAGE_FAULT], "hlt");
        assert_eq!(raised(&[0x0f, 0x0b])[0], INVALID_OPCODE, "ud2");
        assert_eq!(raised(&[])[0], INVALID_OPCODE, "no code can be read");
    }
}
