//! Saving and restoring a machine.

use super::Machine;
use crate::checkpoint::{self, Checkpoint, CheckpointError, Chips, CpuState, Planted, Restored};
use crate::kvm::msr;
use crate::threads::State;
use crate::vcpu::{Stop, Vcpu};

impl Machine {
    /// Saves the machine. Stops all vCPUs; they stay stopped.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn checkpoint(&mut self) -> Result<Checkpoint, CheckpointError> {
        self.vcpus.pause_all()?;
        let cpus = (0..self.vcpu_count()).map(|index| self.cpu_state(index));
        let cpus = cpus.collect::<Result<_, _>>()?;
        let chips = Chips::of(&self.vm, self.ports.uart())?;
        self.traps.lift()?;
        self.returns.lift(&self.memory)?;
        self.sysenter.lift(&self.memory)?;
        let pages = self.ram.save(&self.vm, &self.memory)?;
        self.traps.put_back()?;
        self.returns.put_back(&self.memory)?;
        self.sysenter.put_back(&self.memory)?;
        Ok(Checkpoint { cpus, chips, pages })
    }

    /// Restores the machine to a checkpoint. Stops all vCPUs; they stay stopped, and undelivered
    /// events are dropped.
    ///
    /// # Errors
    /// [`CheckpointError`]. The machine is unusable then.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<Restored, CheckpointError> {
        self.vcpus.pause_all()?;
        if checkpoint.cpus.len() != usize::from(self.vcpu_count()) {
            return Err(CheckpointError::Foreign);
        }
        checkpoint.chips.restore(&self.vm, self.ports.uart())?;
        let now = checkpoint::host_tsc();
        let elapsed = now.wrapping_sub(checkpoint.chips.host_tsc());
        let mut khz = None;
        for (index, state) in (0..).zip(&checkpoint.cpus) {
            let slot = self.vcpus.get_mut(index);
            let Some(State::Stopped {
                vcpu, stop, seen, ..
            }) = slot.map(|slot| &mut slot.state)
            else {
                return Err(CheckpointError::Gone(index));
            };
            state.restore(vcpu, elapsed)?;
            khz = Some(vcpu.tsc_khz()?);
            (*stop, *seen) = (Stop::Paused, true);
        }
        if let Some(khz) = khz {
            checkpoint.chips.restore_clock(&self.vm, now, khz)?;
        }
        self.vcpus.forget_events();
        // Last, because KVM writes to RAM when some MSRs are set (the wall clock's, for one).
        let traps = { self.traps.planted() }.chain(self.returns.planted());
        let planted = Planted::of(traps.chain(self.sysenter.planted()));
        let restored = self
            .ram
            .restore(&self.vm, &self.memory, &checkpoint.pages, &planted)?;
        self.traps.after_restore(&mut self.vcpus)?;
        self.returns.put_back(&self.memory)?;
        self.sysenter.put_back(&self.memory)?;
        Ok(restored)
    }

    /// Makes this machine, which was built alike and has never run, a twin of the checkpoint's
    /// machine: it can be restored to this checkpoint, and to all later ones of the other machine
    /// that are nested in the same first one.
    ///
    /// # Errors
    /// [`CheckpointError`]. The machine is unusable then.
    pub fn adopt(&mut self, checkpoint: &Checkpoint) -> Result<Restored, CheckpointError> {
        self.vcpus.pause_all()?;
        self.ram.adopt(&self.vm, &self.memory, &checkpoint.pages)?;
        self.restore(checkpoint)
    }

    /// Describes how the machine differs from a checkpoint: empty right after
    /// [`restore`](Self::restore). Ignores the clocks, which continue by themselves. Reads all of
    /// RAM. Stops all vCPUs; they stay stopped.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn differences(&mut self, checkpoint: &Checkpoint) -> Result<Vec<String>, CheckpointError> {
        self.vcpus.pause_all()?;
        self.returns.lift(&self.memory)?;
        self.sysenter.lift(&self.memory)?;
        let found = checkpoint.pages.differences(&self.memory);
        self.returns.put_back(&self.memory)?;
        self.sysenter.put_back(&self.memory)?;
        let mut found = found?;
        let chips = Chips::of(&self.vm, self.ports.uart())?;
        found.extend(chips.differences(&checkpoint.chips));
        for (index, saved) in (0..).zip(&checkpoint.cpus) {
            let of_cpu = self.cpu_state(index)?.differences(saved).into_iter();
            found.extend(of_cpu.map(|what| format!("vCPU {index}: {what}")));
        }
        Ok(found)
    }

    /// The words of RAM that differ from a checkpoint that was taken of this machine, or adopted by
    /// it: their guest-physical addresses in order, with their values now (little-endian). Stops
    /// all vCPUs; they stay stopped.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn changed(&mut self, since: &Checkpoint) -> Result<Vec<(u64, u64)>, CheckpointError> {
        self.vcpus.pause_all()?;
        self.ram.changed(&self.vm, &self.memory, &since.pages)
    }

    /// Has the guest's clocks go on from where the TSC of a vCPU is `tsc`, if it is behind that. The
    /// armed timers of the LAPICs, in TSC-deadline mode, stay as far away as they are. All vCPUs must
    /// be stopped.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn advance_clocks(&mut self, vcpu: u8, tsc: u64) -> Result<(), CheckpointError> {
        let leader = self.still(vcpu)?;
        let behind = tsc.saturating_sub(leader.msr(msr::TSC)?);
        if behind == 0 {
            return Ok(());
        }
        let khz = leader.tsc_khz()?;
        for index in 0..self.vcpu_count() {
            self.still(index)?.advance_tsc(behind)?;
        }
        checkpoint::advance_clock(&self.vm, checkpoint::nanoseconds(behind, khz))
    }

    /// Of each vCPU, its TSC minus the host's. All must be stopped.
    pub(crate) fn tsc_offsets(&self) -> Result<Vec<u64>, CheckpointError> {
        { 0..self.vcpu_count() }
            .map(|index| self.still(index)?.tsc_offset())
            .collect()
    }

    fn cpu_state(&self, index: u8) -> Result<CpuState, CheckpointError> {
        CpuState::of(self.still(index)?, &self.msrs)
    }

    /// A vCPU that stands still.
    fn still(&self, index: u8) -> Result<&Vcpu, CheckpointError> {
        let vcpu = self.vcpus.stopped(index);
        vcpu.ok_or(CheckpointError::Gone(index))
    }
}
