//! Making the guest's ticks late, and finding out whether one is under way.

use std::time::Duration;

use kvm_bindings::{Msrs, kvm_msr_entry};

use crate::handle::VcpuHandle;
use crate::machine::Machine;
use crate::slot::Slot;
use crate::vcpu::{InspectError, Vcpu};

/// The guest's time-stamp counter.
const MSR_TSC: u32 = 0x10;
/// `IA32_TSC_DEADLINE`: the guest's TSC at which the LAPIC's timer fires; 0 when it is not armed (Intel SDM vol. 3,
/// 12.5.4.1).
const MSR_TSC_DEADLINE: u32 = 0x6e0;
/// The LAPIC's interrupt request register: eight words of 32 bits, 16 bytes apart (Intel SDM vol. 3, table 12-1).
const LAPIC_IRR: std::ops::Range<usize> = 0x200..0x280;

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

impl VcpuHandle<'_> {
    /// Whether an interrupt is on its way to the vCPU: in its LAPIC, or taken from there and not delivered yet.
    ///
    /// # Errors
    /// [`InspectError`].
    pub fn irq_pending(&self) -> Result<bool, InspectError> {
        self.inspect()?.irq_pending()
    }
}

impl Vcpu {
    fn irq_pending(&self) -> Result<bool, InspectError> {
        let lapic = self.fd.get_lapic();
        let lapic = lapic.map_err(|source| self.failed("get the LAPIC", source))?;
        // What is between the words is 0.
        let irr = lapic.regs.get(LAPIC_IRR).unwrap_or_default();
        let events = self.fd.get_vcpu_events();
        let events = events.map_err(|source| self.failed("get the pending events", source))?;
        Ok(events.interrupt.injected != 0 || irr.iter().any(|byte| *byte != 0))
    }

    fn postpone_timer(&self, by: Duration) -> Result<(), InspectError> {
        let deadline = self.msr(MSR_TSC_DEADLINE)?;
        if deadline == 0 {
            return Ok(());
        }
        let khz = self.fd.get_tsc_khz();
        let khz = khz.map_err(|source| self.failed("get the TSC's rate", source))?;
        let ticks = by.as_nanos() * u128::from(khz) / 1_000_000;
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        let earliest = self.msr(MSR_TSC)?.saturating_add(ticks);
        self.set_msr(MSR_TSC_DEADLINE, deadline.max(earliest))
    }

    fn set_msr(&self, index: u32, data: u64) -> Result<(), InspectError> {
        let vcpu = self.index;
        let refused = InspectError::NoSuchMsr { vcpu, index };
        let entry = kvm_msr_entry {
            index,
            data,
            ..Default::default()
        };
        let Ok(msrs) = Msrs::from_entries(&[entry]) else {
            return Err(refused);
        };
        match self.fd.set_msrs(&msrs) {
            Ok(1) => Ok(()),
            Ok(_) => Err(refused),
            Err(source) => Err(self.failed("set an MSR", source)),
        }
    }
}
