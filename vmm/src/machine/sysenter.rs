//! Has `sysenter` work on the KVM that QEMU's TCG emulates.

use super::Machine;
use crate::kvm::cpuid::on_tcg;
use crate::sysenter::SysenterError;
use crate::threads::{PauseError, ResumeError};

/// Why `sysenter` cannot be mended, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum MendError {
    /// The code is not as expected.
    #[error(transparent)]
    Plant(#[from] SysenterError),
    /// No vCPU is stopped whose page tables lead to the code.
    #[error("no vCPU is stopped")]
    NoneStopped,
    /// A vCPU's page tables cannot be looked at.
    #[error(transparent)]
    Inspect(#[from] crate::InspectError),
    /// A vCPU cannot be stopped.
    #[error(transparent)]
    Pause(#[from] PauseError),
    /// A vCPU cannot be resumed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
}

impl Machine {
    /// From now on mends CS behind each `sysenter`, which leads to `entry`, where the host is one
    /// that breaks it; elsewhere nothing is to be done. `None`: no longer.
    ///
    /// Two bytes of the instruction there are replaced meanwhile; a checkpoint has the original
    /// ones, and so has code that is read through a vCPU. Running vCPUs are stopped for a moment.
    /// No breakpoint may be at the instruction that has a trap
    /// ([`set_breakpoints`](Self::set_breakpoints)); later ones there are the CPU's own.
    ///
    /// # Errors
    /// [`MendError`]. Nothing is mended then.
    pub fn mend_sysenter(&mut self, entry: Option<u64>) -> Result<(), MendError> {
        let entry = entry.filter(|_| on_tcg());
        if entry == self.sysenter.address() {
            return Ok(());
        }
        let stopped = self.vcpus.stop_running()?;
        let planted = self.plant_sysenter(entry);
        self.tell_taken();
        self.vcpus.resume_all(&stopped)?;
        planted
    }

    fn plant_sysenter(&mut self, entry: Option<u64>) -> Result<(), MendError> {
        for vcpu in self.vcpus.all_stopped_mut() {
            vcpu.sysenter = None;
        }
        let removed = self.sysenter.remove(&self.memory);
        removed.map_err(SysenterError::from)?;
        let Some(address) = entry else {
            return Ok(());
        };
        let vcpu = { self.vcpus.all_stopped() }.next();
        let sregs = vcpu.ok_or(MendError::NoneStopped)?.sregs()?;
        let planted = self.sysenter.plant(&self.memory, &sregs, address)?;
        for vcpu in self.vcpus.all_stopped_mut() {
            vcpu.sysenter = Some(planted);
        }
        Ok(())
    }

    /// Tells which instructions take no trap because they are replaced by something else.
    pub(super) fn tell_taken(&mut self) {
        let taken = { self.returns.addresses() }.chain(self.sysenter.address());
        self.traps.set_taken(taken.collect());
    }
}
