//! Making the guest's ticks late.

use std::time::Duration;

use crate::machine::Machine;
use crate::msr;
use crate::slot::Slot;
use crate::vcpu::{InspectError, Vcpu};

/// `IA32_TSC_DEADLINE`: the guest's TSC at which the LAPIC's timer fires; 0 when it is not armed (Intel SDM vol. 3,
/// 12.5.4.1).
const MSR_TSC_DEADLINE: u32 = 0x6e0;

impl Machine {
    /// Postpones the timers of the LAPICs: none of them fires before `by` of the guest's time has passed, as on a host that
    /// is that late. (Of those in TSC-deadline mode that are armed; an interrupt that is pending already stays so.)
    ///
    /// # Errors
    /// [`InspectError`]: all vCPUs must be stopped.
    pub fn postpone_timers(&mut self, by: Duration) -> Result<(), InspectError> {
        for vcpu in 0..self.vcpu_count() {
            let stopped = self.slot(vcpu).and_then(Slot::stopped);
            let stopped = stopped.ok_or(InspectError::NotStopped { vcpu })?;
            stopped.postpone_timer(by)?;
        }
        Ok(())
    }
}

impl Vcpu {
    fn postpone_timer(&self, by: Duration) -> Result<(), InspectError> {
        let deadline = self.msr(MSR_TSC_DEADLINE)?;
        if deadline == 0 {
            return Ok(());
        }
        let khz = self.fd.get_tsc_khz();
        let khz = khz.map_err(|source| self.failed("get the TSC's rate", source))?;
        let ticks = by.as_nanos() * u128::from(khz) / 1_000_000;
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        let earliest = self.msr(msr::TSC)?.saturating_add(ticks);
        self.set_msr(MSR_TSC_DEADLINE, deadline.max(earliest))
    }
}
