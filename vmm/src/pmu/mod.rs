//! Performance counters for the guest, on a KVM that has none.
//!
//! The guest's own driver is to find counters, program them, and handle their overflow, where
//! the host has nothing of the kind (a KVM inside of another, or one with counters switched
//! off). What the driver uses, and who answers:
//!
//! | the driver | the answer |
//! |---|---|
//! | reads and writes counter MSRs | KVM's MSR filter brings them here |
//! | reads a counter by `RDPMC` | an `out` stands in its place (see [`rdpmc_sites`]) |
//! | waits for an NMI at an overflow | the caller raises one ([`VcpuHandle::pmu_overflow`]) |
//!
//! The counters are those of [`counters`]: Linux takes them (`amd_pmu_init` in
//! arch/x86/events/amd/core.c, 7.2) on every AMD CPU whose CPUID has no `PerfCtrExtCore`, and
//! trusts them once it could change one and read it back (`check_hw_exists` in
//! arch/x86/events/core.c). Its handler takes a counter with a clear sign bit for overflowed.
//!
//! `RDPMC` in user mode is not stood in for.
//!
//! [`VcpuHandle::pmu_overflow`]: crate::VcpuHandle::pmu_overflow

mod counters;
mod sites;

use kvm_bindings::KVM_MSR_EXIT_REASON_FILTER;
use kvm_bindings::{
    CpuId, KVM_CAP_PMU_CAPABILITY, KVM_PMU_CAP_DISABLE, kvm_enable_cap, kvm_lapic_state,
};
use kvm_ioctls::{Cap, Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VmFd};
use vmm_sys_util::errno;

use crate::inject::{self, InjectError, NmiReceipt};
use crate::msr;
use crate::vcpu::{InspectError, Vcpu};

pub(crate) use counters::Counters;
use counters::{FIRST_MSR, MSRS, NoOverflow};
pub(crate) use sites::{RDPMC_PORT, replace};
pub use sites::{SiteError, rdpmc_sites};

/// Which performance counters the guest has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pmu<'a> {
    /// None, whatever the host has.
    #[default]
    None,
    /// Those of this crate. They need a host CPU of AMD (or Hygon), emulated or not: the guest's
    /// driver is chosen by the CPU's vendor.
    Synthetic {
        /// Virtual addresses of the kernel's `RDPMC` instructions, as [`rdpmc_sites`] finds them.
        rdpmc: &'a [u64],
    },
    /// The host's, which KVM offers where it can.
    Host,
}

/// Why a guest cannot have the counters asked for.
#[derive(Debug, thiserror::Error)]
pub enum PmuError {
    /// Not AMD's CPU.
    #[error(
        "synthetic performance counters are AMD's, and the KVM host's CPU is of {vendor:?}: \
         use an emulated KVM host"
    )]
    Vendor {
        /// What CPUID says.
        vendor: String,
    },
    /// KVM has none to offer.
    #[error("the KVM host offers no performance counters: use synthetic ones, or another host")]
    NoHostPmu,
    /// KVM is too old.
    #[error(
        "KVM lacks {capability}, which synthetic performance counters need: use a newer kernel"
    )]
    Capability {
        /// The kernel's name for it.
        capability: &'static str,
    },
    /// KVM refused.
    #[error("failed to {step}: {source}")]
    Kvm {
        /// The step.
        step: &'static str,
        /// The kernel's reason.
        source: errno::Error,
    },
    /// The kernel's instructions.
    #[error(transparent)]
    Site(#[from] SiteError),
}

/// Why no overflow was raised. The counter and the vCPU are as they were.
#[derive(Debug, thiserror::Error)]
pub enum OverflowError {
    /// Only a stopped vCPU takes one.
    #[error("vCPU {vcpu} is not stopped: pause it first")]
    NotStopped {
        /// Which.
        vcpu: u8,
    },
    /// The machine was made without.
    #[error("the machine has no synthetic performance counters")]
    NoPmu,
    /// The guest counts nothing that could interrupt it here.
    #[error(
        "no performance counter of vCPU {vcpu} is enabled to interrupt at privilege level {cpl} \
         ({counters})"
    )]
    Disabled {
        /// Which vCPU.
        vcpu: u8,
        /// Its privilege level now.
        cpl: u8,
        /// What the guest has written to the selectors.
        counters: String,
    },
    /// The last one is not handled yet.
    #[error(
        "counter {counter} of vCPU {vcpu} has overflowed, and the guest has not handled it yet"
    )]
    StillOverflowed {
        /// Which vCPU.
        vcpu: u8,
        /// Which counter.
        counter: u8,
    },
    /// The guest does not want to hear of overflows, or not by an NMI.
    #[error("the local APIC of vCPU {vcpu} does not turn overflows into NMIs (LVTPC {lvtpc:#x})")]
    NotDelivered {
        /// Which vCPU.
        vcpu: u8,
        /// The register.
        lvtpc: u32,
    },
    /// The NMI.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// The vCPU cannot be looked at.
    #[error(transparent)]
    Inspect(#[from] InspectError),
}

impl OverflowError {
    /// Whether it can be raised a little later, without anything being done about it: one is on
    /// its way to the guest, or the guest counts nothing at the moment.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Disabled { .. }
                | Self::StillOverflowed { .. }
                | Self::Inject(InjectError::AlreadyPending { .. })
        )
    }
}

/// An overflow that was raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverflowReceipt {
    /// The counter that overflowed.
    pub counter: u8,
    /// Proof of its NMI.
    pub nmi: NmiReceipt,
}

/// Prepares a VM without vCPUs as yet.
pub(crate) fn prepare(kvm: &Kvm, vm: &VmFd, pmu: &Pmu<'_>, cpuid: &CpuId) -> Result<(), PmuError> {
    let offered = kvm.check_extension_raw(u64::from(KVM_CAP_PMU_CAPABILITY));
    match pmu {
        // KVMs that cannot be asked (before Linux 5.18) are taken at CPUID's word.
        Pmu::Host if offered == 0 && !cpuid.as_slice().iter().any(tells_of_counters) => {
            return Err(PmuError::NoHostPmu);
        }
        Pmu::Host => return Ok(()),
        Pmu::None | Pmu::Synthetic { .. } => {}
    }
    if offered.cast_unsigned() & KVM_PMU_CAP_DISABLE != 0 {
        let disable = capability(KVM_CAP_PMU_CAPABILITY, KVM_PMU_CAP_DISABLE);
        vm.enable_cap(&disable)
            .map_err(failed("switch KVM's performance counters off"))?;
    }
    match pmu {
        Pmu::Synthetic { .. } => intercept(vm, cpuid),
        Pmu::None | Pmu::Host => Ok(()),
    }
}

/// Has KVM ask us about the counters' MSRs.
fn intercept(vm: &VmFd, cpuid: &CpuId) -> Result<(), PmuError> {
    let vendor = vendor(cpuid);
    if !["AuthenticAMD", "HygonGenuine"].contains(&vendor.as_str()) {
        return Err(PmuError::Vendor { vendor });
    }
    for (needed, capability) in [
        (Cap::X86UserSpaceMsr, "KVM_CAP_X86_USER_SPACE_MSR"),
        (Cap::X86MsrFilter, "KVM_CAP_X86_MSR_FILTER"),
    ] {
        if !vm.check_extension(needed) {
            return Err(PmuError::Capability { capability });
        }
    }
    let exits = capability(Cap::X86UserSpaceMsr as u32, KVM_MSR_EXIT_REASON_FILTER);
    vm.enable_cap(&exits)
        .map_err(failed("have accesses to MSRs brought here"))?;
    let counters = MsrFilterRange {
        flags: MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE,
        base: FIRST_MSR,
        msr_count: MSRS,
        // A bit that is clear: not KVM's to answer.
        bitmap: &[0],
    };
    vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &[counters])
        .map_err(failed("filter the counters' MSRs"))
}

fn capability(cap: u32, argument: u32) -> kvm_enable_cap {
    kvm_enable_cap {
        cap,
        args: [u64::from(argument), 0, 0, 0],
        ..Default::default()
    }
}

fn failed(step: &'static str) -> impl Fn(errno::Error) -> PmuError {
    move |source| PmuError::Kvm { step, source }
}

/// Whether a CPUID leaf tells of counters with a version: Intel's architectural ones, AMD's core
/// extension or AMD's version 2.
fn tells_of_counters(leaf: &kvm_bindings::kvm_cpuid_entry2) -> bool {
    match leaf.function {
        0xa => leaf.eax & 0xff != 0,
        0x8000_0001 => leaf.ecx & crate::cpuid::PERF_CTR_EXT_CORE != 0,
        0x8000_0022 => leaf.eax & 1 != 0,
        _ => false,
    }
}

/// The CPU's vendor, as leaf 0 spells it.
fn vendor(cpuid: &CpuId) -> String {
    let leaf = cpuid.as_slice().iter().find(|leaf| leaf.function == 0);
    let words = leaf.map_or([0; 3], |leaf| [leaf.ebx, leaf.edx, leaf.ecx]);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Lets a counter of a stopped vCPU overflow: the one that is `wanted`, or the lowest that may
/// interrupt.
pub(crate) fn overflow(
    vcpu: &mut Vcpu,
    wanted: Option<u8>,
) -> Result<OverflowReceipt, OverflowError> {
    let index = vcpu.index;
    // SS.DPL is the CPL (AMD APM vol. 2, 4.9.1).
    let cpl = vcpu.sregs()?.ss.dpl;
    let now =
        msr::tsc(&vcpu.fd).map_err(|source| vcpu.failed("get the time stamp counter", source))?;
    let counters = vcpu.counters.as_ref().ok_or(OverflowError::NoPmu)?;
    let counter = counters
        .ready(wanted, cpl, now)
        .map_err(|reason| match reason {
            NoOverflow::Waits(counter) => OverflowError::StillOverflowed {
                vcpu: index,
                counter,
            },
            NoOverflow::Disabled => OverflowError::Disabled {
                vcpu: index,
                cpl,
                counters: counters.to_string(),
            },
        })?;
    let lapic = vcpu.fd.get_lapic();
    let lapic = lapic.map_err(|source| vcpu.failed("get the local APIC", source))?;
    let lvtpc = lvtpc(&lapic);
    if !makes_nmi(lvtpc) {
        return Err(OverflowError::NotDelivered { vcpu: index, lvtpc });
    }
    let nmi = inject::nmi(&vcpu.fd)?;
    if let Some(counters) = &mut vcpu.counters {
        counters.overflow(counter, now);
    }
    Ok(OverflowReceipt { counter, nmi })
}

/// The local APIC's entry for performance counters (AMD APM vol. 2, 16.4.1).
fn lvtpc(lapic: &kvm_lapic_state) -> u32 {
    const OFFSET: usize = 0x340;
    lapic
        .regs
        .iter()
        .skip(OFFSET)
        .take(4)
        .rev()
        .fold(0, |word, byte| word << 8 | u32::from(byte.cast_unsigned()))
}

/// Not masked, and of message type NMI.
fn makes_nmi(lvtpc: u32) -> bool {
    const MASKED: u32 = 1 << 16;
    const TYPE: u32 = 7 << 8;
    const NMI: u32 = 4 << 8;
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

    #[test]
    fn a_vendor_is_spelt_by_three_registers() {
        let leaf = kvm_bindings::kvm_cpuid_entry2 {
            ebx: u32::from_le_bytes(*b"Auth"),
            edx: u32::from_le_bytes(*b"enti"),
            ecx: u32::from_le_bytes(*b"cAMD"),
            ..Default::default()
        };
        assert_eq!(
            vendor(&CpuId::from_entries(&[leaf]).unwrap()),
            "AuthenticAMD"
        );
    }
}
