//! Hardware breakpoints and single steps, kept apart from the guest's own.
//!
//! While KVM debugs a guest for us, every debug exception (#DB) of the guest exits to us first.
//! The guest gets back those that no breakpoint or step of ours explains. KVM has two limits:
//! while a breakpoint of ours is set, the guest's own debug registers have no effect (so
//! [`crate::traps`] uses none once the guest does); and a guest that single-steps itself while we
//! single-step it loses its steps to us.

use kvm_bindings::{
    KVM_GUESTDBG_BLOCKIRQ, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_INJECT_DB, KVM_GUESTDBG_SINGLESTEP,
    KVM_GUESTDBG_USE_HW_BP, kvm_debug_exit_arch, kvm_guest_debug, kvm_regs,
};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::errno;

use super::{DataBreakpoint, Passed};
use crate::inject::NmiState;
use crate::x86::{RFLAGS_RESUME, RFLAGS_TRAP};

/// Hardware breakpoints of an x86 CPU.
pub(crate) const MAX_BREAKPOINTS: usize = 4;

/// Vector of the debug exception.
const DEBUG_VECTOR: u32 = 1;
/// DR6: the exception is a single step's.
const DR6_STEP: u64 = 1 << 14;
/// DR7: the enable bits, two for each breakpoint.
pub(crate) const DR7_ENABLED: u64 = 0xff;
/// DR7: bits that read as one, and exact-match bits for old CPUs.
const DR7_FIXED: u64 = 0x600;

/// A hardware breakpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Breakpoint {
    /// On the execution of the instruction at this address. It stops before the instruction.
    Code(u64),
    /// On data. It stops after the access.
    Data(DataBreakpoint),
}

impl Breakpoint {
    const fn address(self) -> u64 {
        match self {
            Self::Code(address) => address,
            Self::Data(data) => data.address(),
        }
    }

    /// Type and length for DR7. Those of an instruction are 0.
    const fn dr7(self) -> u64 {
        match self {
            Self::Code(_) => 0,
            Self::Data(data) => data.dr7(),
        }
    }
}

/// The hardware breakpoints of a CPU, one for each register.
pub(crate) type Breakpoints = [Option<Breakpoint>; MAX_BREAKPOINTS];

/// The registers for these breakpoints; `None` if they are too many.
pub(crate) fn breakpoints(code: &[u64], data: &[DataBreakpoint]) -> Option<Breakpoints> {
    let code = code.iter().copied().map(Breakpoint::Code);
    let all = code.chain(data.iter().copied().map(Breakpoint::Data));
    let mut registers = Breakpoints::default();
    for (at, breakpoint) in all.enumerate() {
        *registers.get_mut(at)? = Some(breakpoint);
    }
    Some(registers)
}

/// How to single-step over an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepMethod {
    /// By the trap flag.
    TrapFlag,
    /// By the trap flag, which is then cleared on the guest's stack.
    TrapFlagOnStack,
    /// By a breakpoint at this address.
    Landing(u64),
}

/// Breakpoints and step of a vCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DebugConfig {
    pub(crate) breakpoints: Breakpoints,
    pub(crate) step: Option<StepMethod>,
}

/// The origin of a debug exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Our single step.
    Step,
    /// Our breakpoint on an instruction.
    Breakpoint,
    /// Our breakpoint on data. If it was met by a single step of ours, then that is done as well.
    Data,
    /// The guest, or KVM.
    NotOurs,
}

impl DebugConfig {
    /// Contents of the debug registers. A step to a landing can meet no breakpoint before it.
    fn registers(&self) -> Breakpoints {
        match self.step {
            Some(StepMethod::Landing(address)) => {
                [Some(Breakpoint::Code(address)), None, None, None]
            }
            _ => self.breakpoints,
        }
    }

    /// The value for `KVM_SET_GUEST_DEBUG`.
    fn to_kvm(self) -> kvm_guest_debug {
        let mut debug = kvm_guest_debug::default();
        debug.control |= match self.step {
            Some(StepMethod::Landing(_)) => KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_BLOCKIRQ,
            Some(_) => KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP | KVM_GUESTDBG_BLOCKIRQ,
            None => 0,
        };
        let breakpoints = self.registers();
        if breakpoints.iter().all(Option::is_none) {
            return debug;
        }
        debug.control |= KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP;
        let [dr0, dr1, dr2, dr3, .., dr7] = &mut debug.arch.debugreg;
        *dr7 = DR7_FIXED;
        let registers = [dr0, dr1, dr2, dr3];
        for ((index, register), breakpoint) in (0..).zip(registers).zip(breakpoints) {
            if let Some(breakpoint) = breakpoint {
                *register = breakpoint.address();
                // Global enable, then type and length.
                *dr7 |= 2 << (2 * index);
                *dr7 |= breakpoint.dr7() << (16 + 4 * index);
            }
        }
        debug
    }

    /// The breakpoints on data that a debug exception of ours reports.
    pub(crate) fn met_data(&self, exit: &kvm_debug_exit_arch) -> Vec<DataBreakpoint> {
        { (0..).zip(self.registers()) }
            .filter(|(index, _)| exit.dr6 & (1 << index) != 0)
            .filter_map(|(_, breakpoint)| match breakpoint? {
                Breakpoint::Data(data) => Some(data),
                Breakpoint::Code(_) => None,
            })
            .collect()
    }

    /// The origin of a debug exception. A breakpoint on data comes first: it belongs to the
    /// instruction before, and one on the next instruction is met when the vCPU is resumed.
    pub(crate) fn cause(&self, exit: &kvm_debug_exit_arch) -> Cause {
        if exit.exception != DEBUG_VECTOR {
            return Cause::NotOurs;
        }
        if !self.met_data(exit).is_empty() {
            return Cause::Data;
        }
        let here = Some(Breakpoint::Code(exit.pc));
        let hit = (0..)
            .zip(self.registers())
            .any(|(index, breakpoint)| breakpoint == here && exit.dr6 & (1 << index) != 0);
        match self.step {
            Some(StepMethod::Landing(_)) if hit => Cause::Step,
            Some(StepMethod::TrapFlag | StepMethod::TrapFlagOnStack)
                if exit.dr6 & DR6_STEP != 0 =>
            {
                Cause::Step
            }
            _ if hit => Cause::Breakpoint,
            _ => Cause::NotOurs,
        }
    }

    /// DR6 for the guest if our step also met breakpoints of its own, which are in effect while
    /// we have none.
    fn guests_dr6(&self, exit: &kvm_debug_exit_arch) -> Option<u64> {
        let mut met = (0..4).filter(|index| {
            let enabled = exit.dr7 >> (2 * index) & 3 != 0;
            enabled && exit.dr6 >> index & 1 != 0
        });
        let guests = self.registers().iter().all(Option::is_none);
        (guests && met.next().is_some()).then_some(exit.dr6 & !DR6_STEP)
    }
}

/// The debug hardware of a vCPU: its configuration, and the one that KVM has.
#[derive(Debug, Default)]
pub(crate) struct DebugState {
    pub(crate) config: DebugConfig,
    armed: DebugConfig,
}

impl DebugState {
    /// Tells KVM, if something changed. A step is armed each time: KVM sets the trap flag then.
    pub(crate) fn arm(&mut self, fd: &VcpuFd) -> Result<(), errno::Error> {
        if self.config != self.armed || self.config.step.is_some() {
            fd.set_guest_debug(&self.config.to_kvm())?;
            self.armed = self.config;
        }
        Ok(())
    }

    /// Gives the guest a debug exception that is not ours, unless it is KVM's.
    pub(crate) fn give_to_guest(
        &self,
        fd: &VcpuFd,
        exit: &kvm_debug_exit_arch,
    ) -> Result<(), errno::Error> {
        match is_kvms(fd, exit)? {
            true => Ok(()),
            false => self.inject(fd, exit.dr6),
        }
    }

    /// After our own debug exception, gives the guest the breakpoints of its own that it met.
    pub(crate) fn give_guest_its_part(
        &self,
        fd: &VcpuFd,
        exit: &kvm_debug_exit_arch,
    ) -> Result<(), errno::Error> {
        match self.config.guests_dr6(exit) {
            Some(dr6) => self.inject(fd, dr6),
            None => Ok(()),
        }
    }

    fn inject(&self, fd: &VcpuFd, dr6: u64) -> Result<(), errno::Error> {
        let mut registers = fd.get_debug_regs()?;
        registers.dr6 = dr6;
        fd.set_debug_regs(&registers)?;
        let mut debug = self.armed.to_kvm();
        debug.control |= KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_INJECT_DB;
        fd.set_guest_debug(&debug)
    }
}

/// Whether a debug exception is KVM's. On AMD CPUs without virtual NMIs, KVM single-steps the
/// guest out of an NMI handler while another NMI is pending, and with breakpoints set it reports
/// that step to us (Linux 7.2, `db_interception` in arch/x86/kvm/svm/svm.c). A guest that steps
/// itself has the trap flag set. A guest that has just cleared it, with an NMI pending, is
/// misjudged here.
fn is_kvms(fd: &VcpuFd, exit: &kvm_debug_exit_arch) -> Result<bool, errno::Error> {
    if exit.dr6 & DR6_STEP == 0 || fd.get_regs()?.rflags & RFLAGS_TRAP != 0 {
        return Ok(false);
    }
    Ok(NmiState::of(fd)?.is_waiting())
}

/// Lets the vCPU execute the instruction at which a breakpoint stopped it, and would stop it
/// again.
pub(crate) fn pass_breakpoint(fd: &VcpuFd, passed: &mut Passed) -> Result<(), errno::Error> {
    let mut regs = fd.get_regs()?;
    passed.add(regs.rip, regs.rsp);
    regs.rflags |= RFLAGS_RESUME;
    fd.set_regs(&regs)
}

/// After an `iret` that was executed for the vCPU, which is to have these registers: has a breakpoint stop code that returns to
/// it and was not let past it.
pub(crate) fn heed_breakpoint(config: &DebugConfig, passed: &Passed, regs: &mut kvm_regs) {
    let is_set = |pc| config.breakpoints.contains(&Some(Breakpoint::Code(pc)));
    // A step to a landing has a breakpoint of its own.
    if config.step.is_none() && is_set(regs.rip) && !passed.contains(regs.rip, regs.rsp) {
        regs.rflags &= !RFLAGS_RESUME;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debug::DataAccess;

    fn exit(dr6: u64, pc: u64) -> kvm_debug_exit_arch {
        kvm_debug_exit_arch {
            exception: 1,
            pc,
            dr6,
            ..Default::default()
        }
    }

    fn config(addresses: &[u64], step: Option<StepMethod>) -> DebugConfig {
        let breakpoints = breakpoints(addresses, &[]).unwrap();
        DebugConfig { breakpoints, step }
    }

    #[test]
    fn ours_are_told_from_the_guests() {
        let c = config(&[0x1000, 0x2000], None);
        assert_eq!(c.cause(&exit(0xffff_0ff2, 0x2000)), Cause::Breakpoint);
        assert_eq!(
            c.cause(&exit(0xffff_0ff1, 0x2000)),
            Cause::NotOurs,
            "not the register's address"
        );
        assert_eq!(
            c.cause(&exit(0xffff_4ff0, 0x2000)),
            Cause::NotOurs,
            "the guest steps itself"
        );
        assert_eq!(
            c.cause(&exit(0xffff_0ff4, 0)),
            Cause::NotOurs,
            "a register we do not use"
        );
        let c = config(&[0x1000], Some(StepMethod::TrapFlag));
        assert_eq!(c.cause(&exit(0xffff_4ff0, 0x30)), Cause::Step);
        assert_eq!(c.cause(&exit(0xffff_4ff1, 0x1000)), Cause::Step);
        assert_eq!(c.cause(&exit(0xffff_0ff1, 0x1000)), Cause::Breakpoint);
    }

    #[test]
    fn a_landing_is_a_step() {
        let c = config(&[0x1000, 0x2000], Some(StepMethod::Landing(0x3000)));
        assert_eq!(c.cause(&exit(0xffff_0ff1, 0x3000)), Cause::Step);
        assert_eq!(c.cause(&exit(0xffff_0ff1, 0x1000)), Cause::NotOurs);
        assert_eq!(c.to_kvm().control & KVM_GUESTDBG_SINGLESTEP, 0);
    }

    #[test]
    fn registers_are_laid_out_as_the_cpu_wants_them() {
        let debug = config(&[0x10, 0x20, 0x30, 0x40], None).to_kvm();
        assert_eq!(
            debug.arch.debugreg,
            [0x10, 0x20, 0x30, 0x40, 0, 0, 0, 0x6aa]
        );
        assert_eq!(debug.control, KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP);
        assert_eq!(DebugConfig::default().to_kvm().control, 0);
        assert!(breakpoints(&[0; 5], &[]).is_none());
    }

    #[test]
    fn data_and_instructions_share_the_registers() {
        let data = DataBreakpoint::new(0x7000, 8, DataAccess::Write).unwrap();
        let breakpoints = breakpoints(&[0x10], &[data]).unwrap();
        let mut c = DebugConfig {
            breakpoints,
            step: None,
        };
        // Register 1: enabled, type 01 (writes), length 10 (8 bytes).
        let debug = c.to_kvm();
        assert_eq!(debug.arch.debugreg[..2], [0x10, 0x7000]);
        assert_eq!(debug.arch.debugreg[7], 0x600 | 0b1010 | 0b1001 << 20);
        assert_eq!(
            c.cause(&exit(0xffff_0ff2, 0x1234)),
            Cause::Data,
            "wherever the instruction is"
        );
        assert_eq!(c.met_data(&exit(0xffff_0ff2, 0x1234)), [data]);
        assert_eq!(
            c.cause(&exit(0xffff_0ff3, 0x10)),
            Cause::Data,
            "the instruction at 0x10 is yet to be executed"
        );
        assert_eq!(c.cause(&exit(0xffff_0ff1, 0x10)), Cause::Breakpoint);
        assert!(c.met_data(&exit(0xffff_0ff1, 0x10)).is_empty());
        assert_eq!(
            c.cause(&exit(0xffff_0ff1, 0x7000)),
            Cause::NotOurs,
            "code where the data are"
        );
        c.step = Some(StepMethod::TrapFlag);
        assert_eq!(
            c.cause(&exit(0xffff_4ff2, 0x1234)),
            Cause::Data,
            "the step made the access"
        );
        c.step = Some(StepMethod::Landing(0x3000));
        assert_eq!(c.cause(&exit(0xffff_0ff1, 0x3000)), Cause::Step);
        assert!(super::breakpoints(&[0; 4], &[data]).is_none());
    }
}
