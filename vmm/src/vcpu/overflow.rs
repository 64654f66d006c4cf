//! Overflows of synthetic performance counters, which the caller raises.
//!
//! The local APIC tells of them as its entry LVTPC says. One of Intel's masks that entry when it has
//! told of an overflow (Intel SDM vol. 3, 12.5.1), and a driver that forgot to allow overflows again
//! would never see another one. So this does it, too.

use kvm_bindings::kvm_lapic_state;

use super::{InspectError, Vcpu};
use crate::inject::{self, InjectError, NmiReceipt};
use crate::kvm::msr;
use crate::pmu::NoOverflow;

/// Why no overflow was raised. The counter and the vCPU are unchanged.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum OverflowError {
    /// Only a stopped vCPU takes an overflow.
    #[error("vCPU {vcpu} is not stopped: pause it first")]
    NotStopped { vcpu: u8 },
    /// The machine was built without synthetic counters.
    #[error("the machine has no synthetic performance counters")]
    NoPmu,
    /// No counter may interrupt the guest here.
    #[error(
        "no performance counter of vCPU {vcpu} is enabled to interrupt at privilege level {cpl} \
         ({counters})"
    )]
    Disabled { vcpu: u8, cpl: u8, counters: String },
    /// The guest has not handled the last overflow yet.
    #[error(
        "counter {counter} of vCPU {vcpu} has overflowed, and the guest has not handled it yet"
    )]
    StillOverflowed { vcpu: u8, counter: u8 },
    /// The guest has masked overflows, or receives them by an interrupt that is not an NMI.
    #[error("the local APIC of vCPU {vcpu} does not turn overflows into NMIs (LVTPC {lvtpc:#x})")]
    NotDelivered { vcpu: u8, lvtpc: u32 },
    /// The guest has not allowed overflows again since the last one.
    #[error("the local APIC of vCPU {vcpu} has overflows masked since the last one")]
    Masked { vcpu: u8 },
    /// The local APIC can only be changed as a whole, and other vCPUs may send it interrupts, which
    /// would be lost.
    #[error(
        "the local APIC of vCPU {vcpu} is not in x2APIC mode, and other vCPUs run: pause them first"
    )]
    OthersRun { vcpu: u8 },
    /// The NMI cannot be injected.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// The vCPU's registers cannot be read.
    #[error(transparent)]
    Inspect(#[from] InspectError),
}

impl OverflowError {
    /// Whether the overflow may succeed a little later without further action: an NMI is pending,
    /// or the guest has its counters off at the moment, or handles an overflow.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Disabled { .. }
                | Self::StillOverflowed { .. }
                | Self::Masked { .. }
                | Self::Inject(InjectError::AlreadyPending { .. })
        )
    }
}

/// Proof of an overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverflowReceipt {
    /// The counter that overflowed.
    pub counter: u8,
    /// Proof of its NMI.
    pub nmi: NmiReceipt,
}

impl Vcpu {
    /// Lets a counter overflow: `wanted`, or the lowest that may interrupt. `alone`: all vCPUs are
    /// stopped.
    pub(crate) fn overflow(
        &mut self,
        wanted: Option<u8>,
        alone: bool,
    ) -> Result<OverflowReceipt, OverflowError> {
        let vcpu = self.index;
        let sregs = self.sregs()?;
        // SS.DPL is the CPL (AMD APM vol. 2, 4.9.1).
        let cpl = sregs.ss.dpl;
        let now = msr::tsc(&self.fd)
            .map_err(|source| self.failed("get the time stamp counter", source))?;
        let counters = self.counters.as_ref().ok_or(OverflowError::NoPmu)?;
        let counter = counters
            .ready(wanted, cpl, now)
            .map_err(|reason| match reason {
                NoOverflow::StillOverflowed(counter) => {
                    OverflowError::StillOverflowed { vcpu, counter }
                }
                NoOverflow::Disabled => OverflowError::Disabled {
                    vcpu,
                    cpl,
                    counters: counters.to_string(),
                },
            })?;
        let masks = counters.model().masks_itself();
        let lapic = self.fd.get_lapic();
        let lapic = lapic.map_err(|source| self.failed("get the local APIC", source))?;
        match lvtpc(&lapic) {
            MASKED_NMI if masks => return Err(OverflowError::Masked { vcpu }),
            lvtpc if makes_nmi(lvtpc) => {}
            lvtpc => return Err(OverflowError::NotDelivered { vcpu, lvtpc }),
        }
        let x2apic = sregs.apic_base & X2APIC != 0;
        if masks && !x2apic && !alone {
            return Err(OverflowError::OthersRun { vcpu });
        }
        let nmi = inject::nmi(&self.fd)?;
        if let Some(counters) = &mut self.counters {
            counters.overflow(counter, now);
        }
        if masks {
            self.mask_overflows(x2apic)?;
        }
        Ok(OverflowReceipt { counter, nmi })
    }

    /// Masks LVTPC. In x2APIC mode it is an MSR of its own.
    fn mask_overflows(&self, x2apic: bool) -> Result<(), InspectError> {
        if x2apic {
            return self.set_msr(LVTPC_MSR, MASKED_NMI.into());
        }
        let lapic = self.fd.get_lapic();
        let mut lapic = lapic.map_err(|source| self.failed("get the local APIC", source))?;
        let entry = lapic.regs.iter_mut().skip(LVTPC);
        for (byte, new) in entry.zip(MASKED_NMI.to_le_bytes()) {
            *byte = new.cast_signed();
        }
        self.fd
            .set_lapic(&lapic)
            .map_err(|source| self.failed("set the local APIC", source))
    }
}

/// IA32_APIC_BASE: x2APIC mode.
const X2APIC: u64 = 1 << 10;
/// LVTPC among the registers of a local APIC...
const LVTPC: usize = 0x340;
/// ... and as an MSR (Intel SDM vol. 3, 12.12.1).
const LVTPC_MSR: u32 = 0x834;
/// LVTPC: masked.
const MASKED: u32 = 1 << 16;
/// LVTPC: message type NMI.
const NMI: u32 = 4 << 8;
const MASKED_NMI: u32 = MASKED | NMI;

/// The local APIC's entry for performance counters (AMD APM vol. 2, 16.4.1).
fn lvtpc(lapic: &kvm_lapic_state) -> u32 {
    lapic
        .regs
        .iter()
        .skip(LVTPC)
        .take(4)
        .rev()
        .fold(0, |word, byte| word << 8 | u32::from(byte.cast_unsigned()))
}

/// Whether the entry is not masked, and of message type NMI.
fn makes_nmi(lvtpc: u32) -> bool {
    const TYPE: u32 = 7 << 8;
    lvtpc & (MASKED | TYPE) == NMI
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_apic_decides_how_an_overflow_is_told() {
        let mut lapic = kvm_lapic_state::default();
        assert_eq!(lvtpc(&lapic), 0);
        for (at, byte) in [(0x340, -2), (0x341, 4), (0x342, 1), (0x343, 0)] {
            lapic.regs[at] = byte;
        }
        assert_eq!(lvtpc(&lapic), 0x1_04fe);
        assert!(makes_nmi(0x400), "what Linux writes");
        assert!(!makes_nmi(0x1_0400), "masked");
        assert!(!makes_nmi(0x0fe), "a vector");
        assert!(!makes_nmi(0x1_0000), "as after reset");
    }
}
