//! Checkpoints: a machine's whole state, saved once and restored often.
//!
//! The first checkpoint copies all of RAM. From then on KVM logs which pages the guest writes, and
//! [`Memory`](crate::Memory) which the VMM writes; restoring copies back those that differ, and a
//! later checkpoint holds those alone. So checkpoints can be nested: one is made, the machine runs
//! on from it, another is made; each can be restored at any time, in any order.
//!
//! Part of the state are RAM, the vCPUs' registers (general, system, FPU, debug, MSRs, LAPIC,
//! pending events), the interrupt controllers, the timer, both clocks of the guest (TSC and kvmclock
//! go on from where they were) and the serial port. What the console printed is not taken back.
//! Breakpoints are not part of it: they are what the caller wants, not what the machine is.

mod chips;
mod cpu;
mod ram;

use kvm_ioctls::Kvm;
use vmm_sys_util::errno;

use crate::machine::Machine;
use crate::slot::{PauseError, State};

use chips::Chips;
use cpu::CpuState;
use ram::Pages;
pub(crate) use ram::{Ram, pages_of};

/// Why a machine could not be saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A vCPU cannot be stopped.
    #[error(transparent)]
    Pause(#[from] PauseError),
    /// A vCPU's thread is gone.
    #[error("vCPU {0} is gone")]
    Gone(u8),
    /// Of another machine.
    #[error("the checkpoint is of another machine")]
    Foreign,
    /// KVM refused.
    #[error("failed to {what}: {source}")]
    Kvm {
        /// What was asked for.
        what: &'static str,
        /// The kernel's reason.
        source: errno::Error,
    },
    /// KVM took fewer MSRs than it had given.
    #[error("KVM does not take back MSR {0:#x}")]
    Msr(u32),
    /// The serial port.
    #[error("failed to restore the serial port: {0}")]
    Serial(std::io::Error),
    /// A planted trap, which is not part of a checkpoint.
    #[error(transparent)]
    Trap(#[from] crate::debug::BreakpointError),
    /// Guest memory that is not there; a bug of this crate.
    #[error(transparent)]
    Memory(#[from] crate::memory::AccessError),
}

/// With what was asked of KVM.
fn failed(what: &'static str) -> impl Fn(errno::Error) -> CheckpointError + Copy {
    move |source| CheckpointError::Kvm { what, source }
}

/// A machine's state.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    cpus: Vec<CpuState>,
    chips: Chips,
    pages: Pages,
}

/// What restoring took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Pages that were looked at: written by anyone since the last time, or held in reserve.
    pub looked_at: usize,
    /// Pages that differed and were copied back.
    pub copied: usize,
}

/// The MSRs that KVM saves and restores, for a machine to remember.
pub(crate) fn msr_indices(kvm: &Kvm) -> Result<Vec<u32>, errno::Error> {
    Ok(kvm.get_msr_index_list()?.as_slice().to_vec())
}

impl Machine {
    /// Saves the machine. Stops all vCPUs; they stay stopped.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn checkpoint(&mut self) -> Result<Checkpoint, CheckpointError> {
        self.pause_all()?;
        let cpus = (0..self.vcpu_count()).map(|index| self.cpu_state(index));
        let cpus = cpus.collect::<Result<_, _>>()?;
        let chips = Chips::of(&self.vm, self.ports.uart())?;
        self.lift_traps()?;
        let pages = self.ram.save(&self.vm, &self.memory)?;
        self.put_traps_back()?;
        Ok(Checkpoint { cpus, chips, pages })
    }

    /// Makes the machine what it was. Stops all vCPUs; they stay stopped, and stops that nobody has
    /// seen yet are forgotten.
    ///
    /// # Errors
    /// [`CheckpointError`]; the machine is of no more use then.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<Restored, CheckpointError> {
        self.pause_all()?;
        if checkpoint.cpus.len() != usize::from(self.vcpu_count()) {
            return Err(CheckpointError::Foreign);
        }
        checkpoint.chips.restore(&self.vm, self.ports.uart())?;
        let now = cpu::host_tsc();
        for (index, state) in (0..).zip(&checkpoint.cpus) {
            let slot = self.slot_mut(index).ok_or(CheckpointError::Gone(index))?;
            let State::Stopped {
                vcpu, stop, seen, ..
            } = &mut slot.state
            else {
                return Err(CheckpointError::Gone(index));
            };
            state.restore(vcpu, now)?;
            (*stop, *seen) = (crate::exit::Stop::Paused, true);
        }
        self.forget_events();
        // Last: KVM writes into RAM when some MSRs are set (the wall clock's, for one).
        let restored = self
            .ram
            .restore(&self.vm, &self.memory, &checkpoint.pages)?;
        self.forget_passing();
        self.put_traps_back()?;
        Ok(restored)
    }

    /// Makes this machine, which has never run and is of the same making, the twin of the one that a
    /// checkpoint is of: it can be restored to that, and to every later checkpoint of the other one
    /// that is nested in the same first one.
    ///
    /// # Errors
    /// [`CheckpointError`]; the machine is of no more use then.
    pub fn adopt(&mut self, checkpoint: &Checkpoint) -> Result<Restored, CheckpointError> {
        self.pause_all()?;
        self.ram.adopt(&self.vm, &self.memory, &checkpoint.pages)?;
        self.restore(checkpoint)
    }

    /// What of the machine is not as in a checkpoint, in words: empty right after
    /// [`restore`](Self::restore). The clocks go on by themselves and are left out. Reads all of RAM.
    /// Stops all vCPUs; they stay stopped.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn differences(&mut self, checkpoint: &Checkpoint) -> Result<Vec<String>, CheckpointError> {
        self.pause_all()?;
        let mut found = checkpoint.pages.differences(&self.memory)?;
        let chips = Chips::of(&self.vm, self.ports.uart())?;
        found.extend(chips.differences(&checkpoint.chips));
        for (index, saved) in (0..).zip(&checkpoint.cpus) {
            let of_cpu = self.cpu_state(index)?.differences(saved).into_iter();
            found.extend(of_cpu.map(|what| format!("vCPU {index}: {what}")));
        }
        Ok(found)
    }

    /// The words of RAM that differ from what they were in a checkpoint that was made of this machine,
    /// or adopted by it, in order of their guest-physical addresses; each with its value now,
    /// little-endian. Stops all vCPUs; they stay stopped.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn changed(&mut self, since: &Checkpoint) -> Result<Vec<(u64, u64)>, CheckpointError> {
        self.pause_all()?;
        self.ram.changed(&self.vm, &self.memory, &since.pages)
    }

    fn cpu_state(&self, index: u8) -> Result<CpuState, CheckpointError> {
        let vcpu = self.slot(index).and_then(|slot| slot.stopped());
        CpuState::of(vcpu.ok_or(CheckpointError::Gone(index))?, &self.msrs)
    }
}
