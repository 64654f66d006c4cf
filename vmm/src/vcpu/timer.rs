//! Delays the guest's timer ticks.

use std::time::Duration;

use super::{InspectError, Vcpu};
use crate::inject;
use crate::kvm::msr;

impl Vcpu {
    /// Postpones the timer of the LAPIC, if it is armed in TSC-deadline mode: it does not fire
    /// before `by` of the guest's time has passed.
    pub(crate) fn postpone_timer(&self, by: Duration) -> Result<(), InspectError> {
        match self.msr(msr::TSC_DEADLINE)? {
            0 => Ok(()),
            deadline => self.fire_after(by, deadline),
        }
    }

    /// As [`Vcpu::postpone_timer`]. If the timer's interrupt waits in the LAPIC already, it is taken back, and
    /// comes when `by` has passed.
    pub(crate) fn take_back_timer(&self, by: Duration) -> Result<(), InspectError> {
        let waited = inject::take_back_timer(&self.fd);
        match waited.map_err(|source| self.failed("take back the timer's interrupt", source))? {
            true => self.fire_after(by, 0),
            false => self.postpone_timer(by),
        }
    }

    /// Arms the timer for `deadline`, but not before `by` of the guest's time has passed.
    fn fire_after(&self, by: Duration, deadline: u64) -> Result<(), InspectError> {
        let ticks = by.as_nanos() * u128::from(self.tsc_khz()?) / 1_000_000;
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        let earliest = self.msr(msr::TSC)?.saturating_add(ticks);
        self.set_msr(msr::TSC_DEADLINE, deadline.max(earliest))
    }

    /// Moves the timer, if it is armed so, by so many ticks of the TSC.
    pub(crate) fn advance_timer(&self, by: u64) -> Result<(), InspectError> {
        match self.msr(msr::TSC_DEADLINE)? {
            0 => Ok(()),
            deadline => self.set_msr(msr::TSC_DEADLINE, deadline.saturating_add(by)),
        }
    }

    /// The TSC's rate.
    pub(crate) fn tsc_khz(&self) -> Result<u32, InspectError> {
        if let Some(khz) = self.tsc_khz.get() {
            return Ok(*khz);
        }
        let khz = self.fd.get_tsc_khz();
        let khz = khz.map_err(|source| self.failed("get the TSC's rate", source))?;
        Ok(*self.tsc_khz.get_or_init(|| khz))
    }
}
