//! Hardware breakpoints and single steps, and telling ours from the guest's own.
//!
//! While KVM debugs a guest for us, every debug exception (#DB) of the guest comes here first.
//! One that no breakpoint or step of ours explains is handed back to the guest. Limits, which
//! are KVM's: while a breakpoint of ours is set, the guest's own debug registers have no
//! effect (where it uses them, [`crate::traps`] does without); and a guest that single-steps
//! itself while we single-step it loses its steps to us.

use kvm_bindings::{
    KVM_GUESTDBG_BLOCKIRQ, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_INJECT_DB, KVM_GUESTDBG_SINGLESTEP,
    KVM_GUESTDBG_USE_HW_BP, kvm_debug_exit_arch, kvm_guest_debug,
};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::errno;

use crate::exit::Stop;
use crate::inject::NmiState;
use crate::slot::{PauseError, ResumeError};
use crate::step::Way;
use crate::vcpu::Vcpu;

/// Hardware breakpoints an x86 CPU has.
pub const MAX_BREAKPOINTS: usize = 4;

/// Vector of the debug exception.
const DEBUG_VECTOR: u32 = 1;
/// DR6: a single step was done.
const DR6_STEP: u64 = 1 << 14;
/// DR7: a breakpoint is enabled, two bits for each.
pub(crate) const DR7_ENABLED: u64 = 0xff;
/// DR7: bits that read as one, and exact-match bits for old CPUs.
const DR7_FIXED: u64 = 0x600;
/// RFLAGS.TF: a debug exception after each instruction.
pub(crate) const RFLAGS_TRAP: u64 = 1 << 8;
/// RFLAGS.RF: do not take instruction breakpoints for one instruction.
const RFLAGS_RESUME: u64 = 1 << 16;

/// Why breakpoints could not be set.
#[derive(Debug, thiserror::Error)]
pub enum BreakpointError {
    /// More than the CPU has, and traps do not help.
    #[error(
        "{asked} of the places need a breakpoint of the CPU's own (they are in user mode, or instructions \
         of one byte, which take no trap), a CPU has {MAX_BREAKPOINTS}"
    )]
    TooMany {
        /// How many were asked for.
        asked: usize,
    },
    /// The guest uses the CPU's own.
    #[error(
        "{asked} of the places need a breakpoint of the CPU's own (they are in user mode, or instructions \
         of one byte, which take no trap), and the guest has set some: they would have no effect meanwhile"
    )]
    NoneLeft {
        /// How many were asked for.
        asked: usize,
    },
    /// The guest has set its own while ours were set.
    #[error(
        "the guest has set breakpoints of its own on vCPU {vcpu} while there were ours, without effect"
    )]
    GuestsOwn {
        /// Which.
        vcpu: u8,
    },
    /// No RAM there, or nothing mapped.
    #[error("there is no code at {address:#x} in guest memory to plant a trap in")]
    Unmapped {
        /// Where.
        address: u64,
    },
    /// The guest has written where a trap was, or writes just now.
    #[error(
        "the guest has changed the code at {address:#x}, where a trap was planted: found {found:02x?}, \
         expected {expected:02x?}"
    )]
    Changed {
        /// Where.
        address: u64,
        /// What is there.
        found: [u8; 2],
        /// What was to be there.
        expected: [u8; 2],
    },
    /// A vCPU cannot be stopped.
    #[error(transparent)]
    Pause(#[from] PauseError),
    /// A vCPU cannot be let go.
    #[error(transparent)]
    Resume(#[from] Box<ResumeError>),
    /// KVM refused.
    #[error("failed to get the debug registers of vCPU {vcpu}: {source}")]
    Kvm {
        /// Which.
        vcpu: u8,
        /// The kernel's reason.
        source: errno::Error,
    },
    /// Only a stopped vCPU can be changed.
    #[error("vCPU {vcpu} is not stopped: pause it first")]
    NotStopped {
        /// Which.
        vcpu: u8,
    },
}

/// What a vCPU's debug hardware is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    breakpoints: [Option<u64>; MAX_BREAKPOINTS],
    step: Option<Way>,
}

/// What a debug exception was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    Ours(Stop),
    Guests,
}

impl Wanted {
    /// Replaces all breakpoints.
    pub(crate) fn set_breakpoints(&mut self, addresses: &[u64]) -> Result<(), BreakpointError> {
        if addresses.len() > MAX_BREAKPOINTS {
            return Err(BreakpointError::TooMany {
                asked: addresses.len(),
            });
        }
        let mut wanted = addresses.iter().copied();
        self.breakpoints.fill_with(|| wanted.next());
        Ok(())
    }

    /// Whether any are set.
    pub(crate) fn has_breakpoints(&self) -> bool {
        self.breakpoints.iter().any(Option::is_some)
    }

    /// One instruction, and how; or no step.
    pub(crate) fn set_step(&mut self, step: Option<Way>) {
        self.step = step;
    }

    /// The step that is wanted.
    pub(crate) fn step(&self) -> Option<Way> {
        self.step
    }

    /// What the debug registers are to hold. While an instruction leads somewhere, nothing
    /// else can be met.
    fn registers(&self) -> [Option<u64>; MAX_BREAKPOINTS] {
        match self.step {
            Some(Way::Landing(address)) => [Some(address), None, None, None],
            _ => self.breakpoints,
        }
    }

    /// The value for `KVM_SET_GUEST_DEBUG`.
    fn to_kvm(self) -> kvm_guest_debug {
        let mut debug = kvm_guest_debug::default();
        debug.control |= match self.step {
            Some(Way::Landing(_)) => KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_BLOCKIRQ,
            Some(_) => KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP | KVM_GUESTDBG_BLOCKIRQ,
            None => 0,
        };
        let addresses = self.registers();
        if addresses.iter().all(Option::is_none) {
            return debug;
        }
        debug.control |= KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP;
        let [dr0, dr1, dr2, dr3, .., dr7] = &mut debug.arch.debugreg;
        *dr7 = DR7_FIXED;
        let registers = [dr0, dr1, dr2, dr3];
        for ((index, register), address) in (0..).zip(registers).zip(addresses) {
            if let Some(address) = address {
                *register = address;
                // Global enable; type and length 0: execution of one instruction.
                *dr7 |= 2 << (2 * index);
            }
        }
        debug
    }

    /// Whose debug exception that is.
    pub(crate) fn cause(&self, exit: &kvm_debug_exit_arch) -> Cause {
        let pc = exit.pc;
        if exit.exception != DEBUG_VECTOR {
            return Cause::Guests;
        }
        let hit = (0..)
            .zip(self.registers())
            .any(|(index, address)| address == Some(pc) && exit.dr6 & (1 << index) != 0);
        match self.step {
            Some(Way::Landing(_)) if hit => Cause::Ours(Stop::Stepped { pc }),
            Some(Way::Trap | Way::TrapOnStack) if exit.dr6 & DR6_STEP != 0 => {
                Cause::Ours(Stop::Stepped { pc })
            }
            _ if hit => Cause::Ours(Stop::Breakpoint { pc }),
            _ => Cause::Guests,
        }
    }
}

/// Whether a step has met breakpoints of the guest's own too, which are in effect while there are none
/// of ours: what DR6 is to tell of them.
fn met_with_step(wanted: &Wanted, exit: &kvm_debug_exit_arch) -> Option<u64> {
    let mut met = (0..4).filter(|index| {
        let enabled = exit.dr7 >> (2 * index) & 3 != 0;
        enabled && exit.dr6 >> index & 1 != 0
    });
    let guests = wanted.registers().iter().all(Option::is_none);
    (guests && met.next().is_some()).then_some(exit.dr6 & !DR6_STEP)
}

/// The debug state KVM has for a vCPU, changed only where it must be.
#[derive(Debug, Default)]
pub(crate) struct Armed {
    current: Wanted,
}

impl Armed {
    /// Makes KVM do what is wanted. A step is armed each time: KVM sets the trap flag then.
    pub(crate) fn arm(&mut self, fd: &VcpuFd, wanted: Wanted) -> Result<(), errno::Error> {
        if wanted != self.current || wanted.step.is_some() {
            fd.set_guest_debug(&wanted.to_kvm())?;
            self.current = wanted;
        }
        Ok(())
    }

    fn hand_back(&self, fd: &VcpuFd, dr6: u64) -> Result<(), errno::Error> {
        let mut registers = fd.get_debug_regs()?;
        registers.dr6 = dr6;
        fd.set_debug_regs(&registers)?;
        let mut debug = self.current.to_kvm();
        debug.control |= KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_INJECT_DB;
        fd.set_guest_debug(&debug)
    }
}

/// Gives the guest the debug exception that was its own, unless it was KVM's.
pub(crate) fn give_to_guest(vcpu: &Vcpu, exit: &kvm_debug_exit_arch) -> Result<(), errno::Error> {
    match is_kvms(&vcpu.fd, exit)? {
        true => Ok(()),
        false => vcpu.armed.hand_back(&vcpu.fd, exit.dr6),
    }
}

/// Gives the guest what it has to hear of a step of ours: that it met breakpoints of its own.
pub(crate) fn tell_of_step(vcpu: &Vcpu, exit: &kvm_debug_exit_arch) -> Result<(), errno::Error> {
    match met_with_step(&vcpu.wanted, exit) {
        Some(dr6) => vcpu.armed.hand_back(&vcpu.fd, dr6),
        None => Ok(()),
    }
}

/// On AMD CPUs without virtual NMIs, KVM single-steps the guest out of an NMI handler while
/// another NMI waits, and where breakpoints are set it lets us see that step (Linux 7.2,
/// `db_interception` in arch/x86/kvm/svm/svm.c). A guest that steps itself has the trap flag
/// set; one that has just cleared it, with an NMI waiting, would be mistaken.
fn is_kvms(fd: &VcpuFd, exit: &kvm_debug_exit_arch) -> Result<bool, errno::Error> {
    if exit.dr6 & DR6_STEP == 0 || fd.get_regs()?.rflags & RFLAGS_TRAP != 0 {
        return Ok(false);
    }
    Ok(NmiState::of(fd)?.is_waiting())
}

/// Lets the vCPU execute the instruction it stopped at for a breakpoint, which would
/// otherwise stop it there again.
pub(crate) fn pass_breakpoint(fd: &VcpuFd) -> Result<(), errno::Error> {
    let mut regs = fd.get_regs()?;
    regs.rflags |= RFLAGS_RESUME;
    fd.set_regs(&regs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(dr6: u64, pc: u64) -> kvm_debug_exit_arch {
        kvm_debug_exit_arch {
            exception: 1,
            pc,
            dr6,
            ..Default::default()
        }
    }

    fn wanted(addresses: &[u64], step: Option<Way>) -> Wanted {
        let mut wanted = Wanted::default();
        wanted.set_breakpoints(addresses).unwrap();
        wanted.set_step(step);
        wanted
    }

    #[test]
    fn ours_are_told_from_the_guests() {
        let w = wanted(&[0x1000, 0x2000], None);
        assert_eq!(
            w.cause(&exit(0xffff_0ff2, 0x2000)),
            Cause::Ours(Stop::Breakpoint { pc: 0x2000 })
        );
        assert_eq!(
            w.cause(&exit(0xffff_0ff1, 0x2000)),
            Cause::Guests,
            "not the register's address"
        );
        assert_eq!(
            w.cause(&exit(0xffff_4ff0, 0x2000)),
            Cause::Guests,
            "the guest steps itself"
        );
        assert_eq!(
            w.cause(&exit(0xffff_0ff4, 0)),
            Cause::Guests,
            "a register we do not use"
        );
        let w = wanted(&[0x1000], Some(Way::Trap));
        assert_eq!(
            w.cause(&exit(0xffff_4ff0, 0x30)),
            Cause::Ours(Stop::Stepped { pc: 0x30 })
        );
        assert_eq!(
            w.cause(&exit(0xffff_4ff1, 0x1000)),
            Cause::Ours(Stop::Stepped { pc: 0x1000 })
        );
        assert_eq!(
            w.cause(&exit(0xffff_0ff1, 0x1000)),
            Cause::Ours(Stop::Breakpoint { pc: 0x1000 })
        );
    }

    #[test]
    fn a_landing_is_a_step() {
        let w = wanted(&[0x1000, 0x2000], Some(Way::Landing(0x3000)));
        let stepped = Cause::Ours(Stop::Stepped { pc: 0x3000 });
        assert_eq!(w.cause(&exit(0xffff_0ff1, 0x3000)), stepped);
        assert_eq!(w.cause(&exit(0xffff_0ff1, 0x1000)), Cause::Guests);
        assert_eq!(w.to_kvm().control & KVM_GUESTDBG_SINGLESTEP, 0);
    }

    #[test]
    fn registers_are_laid_out_as_the_cpu_wants_them() {
        let debug = wanted(&[0x10, 0x20, 0x30, 0x40], None).to_kvm();
        assert_eq!(
            debug.arch.debugreg,
            [0x10, 0x20, 0x30, 0x40, 0, 0, 0, 0x6aa]
        );
        assert_eq!(debug.control, KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP);
        assert_eq!(Wanted::default().to_kvm().control, 0);
        assert!(Wanted::default().set_breakpoints(&[0; 5]).is_err());
    }
}
