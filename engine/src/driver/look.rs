//! Looking at vCPUs that stand still: where they are, which task is current, where an instruction
//! leads.

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use unwindlab_oracle::trace::recording::VcpuPlace;
use unwindlab_vmm::{InspectError, NmiState, Sregs, VcpuHandle};

use super::{Driver, DriverError};

/// `MSR_KERNEL_GS_BASE`: the kernel's GS base while user mode runs (AMD APM vol. 2, SWAPGS).
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;
/// The smallest page.
pub(super) const PAGE: u64 = 4096;

/// Where a stopped vCPU stands.
pub(crate) fn place(vcpu: &VcpuHandle<'_>) -> Result<VcpuPlace, InspectError> {
    let regs = vcpu.regs()?;
    Ok(VcpuPlace {
        vcpu: u32::from(vcpu.index()),
        rip: regs.rip,
        stack_pointer: regs.rsp,
        // SS.DPL is the CPL (AMD APM vol. 2, 4.9.1).
        cpl: vcpu.sregs()?.ss.dpl,
        interrupt_waits: vcpu.irq_pending()?,
    })
}

/// The 8 bytes at a virtual address of a stopped vCPU, little-endian.
pub(crate) fn word(vcpu: &VcpuHandle<'_>, address: u64) -> Result<u64, InspectError> {
    word_with(vcpu, &vcpu.sregs()?, address)
}

/// The same of a vCPU that has these system registers.
fn word_with(vcpu: &VcpuHandle<'_>, sregs: &Sregs, address: u64) -> Result<u64, InspectError> {
    let mut word = [0; 8];
    vcpu.read_virt_with(sregs, address, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// The GS base with which the kernel runs on a stopped vCPU with these registers; 0 where it has none yet.
fn kernel_gs_base(vcpu: &VcpuHandle<'_>, sregs: &Sregs) -> Result<u64, InspectError> {
    // A kernel address is in the upper half. In the first instructions of an entry GS is still
    // the user's, as in user mode.
    match sregs.gs.base {
        gs if gs >> 63 == 1 => Ok(gs),
        _ => vcpu.msr(MSR_KERNEL_GS_BASE),
    }
}

impl Driver {
    /// Where a stopped vCPU stands.
    pub fn place(&mut self, index: u8) -> Result<VcpuPlace, DriverError> {
        Ok(place(&self.vcpu(index)?)?)
    }

    /// The stack pointer of a stopped vCPU.
    pub fn stack_pointer(&mut self, index: u8) -> Result<u64, DriverError> {
        Ok(self.vcpu(index)?.regs()?.rsp)
    }

    /// Where a vCPU stands, which is stopped for the moment of looking.
    pub fn stop_and_look(&mut self, index: u8) -> Result<VcpuPlace, DriverError> {
        self.while_stopped(index, |vcpu| Ok(place(vcpu)?))
    }

    /// Where all vCPUs stand. Each is stopped for the moment of looking.
    pub fn places(&mut self) -> Result<Vec<VcpuPlace>, DriverError> {
        (0..self.machine.vcpu_count())
            .map(|index| self.stop_and_look(index))
            .collect()
    }

    /// What a stopped vCPU would make of an NMI.
    pub fn nmi_state(&mut self, index: u8) -> Result<NmiState, DriverError> {
        Ok(self.vcpu(index)?.nmi_state()?)
    }

    /// The GS base with which the kernel runs on a stopped vCPU; 0 where it has none yet.
    pub fn kernel_gs_base(&mut self, index: u8) -> Result<u64, DriverError> {
        let vcpu = self.vcpu(index)?;
        Ok(kernel_gs_base(&vcpu, &vcpu.sregs()?)?)
    }

    /// The `task_struct` that is current on a stopped vCPU, by the kernel's per-CPU
    /// `current_task`; 0 where the kernel has no GS base yet.
    pub fn current_task(&mut self, index: u8) -> Result<u64, DriverError> {
        let current_task = self.symbols.current_task;
        let vcpu = self.vcpu(index)?;
        let sregs = vcpu.sregs()?;
        let base = kernel_gs_base(&vcpu, &sregs)?;
        if base == 0 {
            return Ok(0);
        }
        Ok(word_with(&vcpu, &sregs, base.wrapping_add(current_task))?)
    }

    /// Where the instruction at `pc` can lead to: one place, two for a conditional branch, none for
    /// a return or an indirect branch, and none where there is no instruction.
    pub fn successors(&mut self, index: u8, pc: u64) -> Result<Vec<u64>, DriverError> {
        /// The longest x86 instruction.
        const LONGEST: usize = 15;
        let vcpu = self.vcpu(index)?;
        let mut code = [0; LONGEST];
        // The instruction may end right before an unmapped page.
        let in_page = usize::try_from(PAGE - pc % PAGE).unwrap_or(usize::MAX);
        if vcpu.read_virt(pc, &mut code).is_err() {
            vcpu.read_virt(pc, code.get_mut(..in_page).unwrap_or_default())?;
        }
        let instruction = Decoder::with_ip(64, &code, pc, DecoderOptions::NONE).decode();
        Ok(match instruction.flow_control() {
            FlowControl::Next => vec![instruction.next_ip()],
            FlowControl::UnconditionalBranch | FlowControl::Call => {
                vec![instruction.near_branch_target()]
            }
            FlowControl::ConditionalBranch => {
                vec![instruction.next_ip(), instruction.near_branch_target()]
            }
            _ => Vec::new(),
        })
    }
}
