//! Performance counters for the guest, on a KVM that has none.
//!
//! The guest's own driver finds counters, programs them, and handles their overflow, on a host
//! that lacks them (a nested KVM, or one with counters switched off):
//!
//! | the driver | this VMM |
//! |---|---|
//! | reads and writes counter MSRs | has KVM's MSR filter forward them |
//! | reads a counter by `RDPMC` | has an `out` in its place (see [`rdpmc_sites`]) |
//! | waits for an NMI at an overflow | lets the caller raise it ([`VcpuHandle::pmu_overflow`]) |
//!
//! The guest selects its driver by the CPU's vendor, so the counters are of the host CPU's:
//!
//! - [`k7`]: Linux uses these on every AMD CPU whose CPUID lacks `PerfCtrExtCore` (`amd_pmu_init`
//!   in arch/x86/events/amd/core.c, 7.2), if it can change one and read it back
//!   (`check_hw_exists` in arch/x86/events/core.c). Its handler considers a counter with a clear
//!   sign bit overflowed.
//! - [`architectural`]: Linux uses these on every Intel CPU whose CPUID has leaf 10. Its handler
//!   reads a register which counters have overflowed, and clears it.
//!
//! `RDPMC` in user mode is not replaced.
//!
//! [`VcpuHandle::pmu_overflow`]: crate::VcpuHandle::pmu_overflow

mod architectural;
mod count;
mod counters;
mod k7;
mod rdpmc;

use kvm_bindings::{
    CpuId, KVM_CAP_PMU_CAPABILITY, KVM_MSR_EXIT_REASON_FILTER, KVM_PMU_CAP_DISABLE, kvm_enable_cap,
};
use kvm_ioctls::{Cap, Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VmFd};
use vmm_sys_util::errno;

use crate::kvm::cpuid::PERF_CTR_EXT_CORE;

pub(crate) use architectural::LEAF as ARCHITECTURAL_LEAF;
pub use counters::CounterModel;
pub(crate) use counters::{Counters, NoOverflow, Written};
pub(crate) use rdpmc::replace;
pub use rdpmc::{SiteError, rdpmc_sites};

/// The guest's performance counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pmu<'a> {
    /// None, even if the host has some.
    #[default]
    None,
    /// Those of this crate.
    Synthetic {
        /// Virtual addresses of the kernel's `RDPMC` instructions, from [`rdpmc_sites`].
        rdpmc: &'a [u64],
        /// `None`: that of the host CPU's vendor, the only one for which a kernel has a driver
        /// there.
        model: Option<CounterModel>,
    },
    /// The host's, if KVM offers them.
    Host,
}

/// Why a guest cannot have the requested counters.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum PmuError {
    /// The CPU is neither AMD's nor Intel's.
    #[error(
        "synthetic performance counters are AMD's and Intel's, and the KVM host's CPU is of \
         {vendor:?}: use an emulated KVM host"
    )]
    Vendor { vendor: String },
    /// KVM offers no counters.
    #[error("the KVM host offers no performance counters: use synthetic ones, or another host")]
    NoHostPmu,
    /// KVM is too old.
    #[error(
        "KVM lacks {capability}, which synthetic performance counters need: use a newer kernel"
    )]
    Capability { capability: &'static str },
    /// KVM refused.
    #[error("failed to {step}: {source}")]
    Kvm {
        step: &'static str,
        source: errno::Error,
    },
    /// The kernel's `RDPMC` instructions.
    #[error(transparent)]
    Site(#[from] SiteError),
}

/// Prepares a VM that has no vCPUs yet. Returns which synthetic counters they are to have.
pub(crate) fn prepare(
    kvm: &Kvm,
    vm: &VmFd,
    pmu: &Pmu<'_>,
    cpuid: &CpuId,
) -> Result<Option<CounterModel>, PmuError> {
    let offered = kvm.check_extension_raw(u64::from(KVM_CAP_PMU_CAPABILITY));
    match pmu {
        // For a KVM without the capability (before Linux 5.18), CPUID decides.
        Pmu::Host if offered == 0 && !cpuid.as_slice().iter().any(announces_counters) => {
            return Err(PmuError::NoHostPmu);
        }
        Pmu::Host => return Ok(None),
        Pmu::None | Pmu::Synthetic { .. } => {}
    }
    if offered.cast_unsigned() & KVM_PMU_CAP_DISABLE != 0 {
        let disable = capability(KVM_CAP_PMU_CAPABILITY, KVM_PMU_CAP_DISABLE);
        vm.enable_cap(&disable)
            .map_err(failed("switch KVM's performance counters off"))?;
    }
    match pmu {
        Pmu::Synthetic { model, .. } => {
            let vendor = vendor(cpuid);
            let model = model.or_else(|| CounterModel::of(&vendor));
            let model = model.ok_or(PmuError::Vendor { vendor })?;
            intercept(vm, model)?;
            Ok(Some(model))
        }
        Pmu::None | Pmu::Host => Ok(None),
    }
}

/// Has KVM forward accesses to the counters' MSRs.
fn intercept(vm: &VmFd, model: CounterModel) -> Result<(), PmuError> {
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
        .map_err(failed("forward MSR accesses"))?;
    let ranges = model
        .msrs()
        .iter()
        .map(|&(base, msr_count)| MsrFilterRange {
            flags: MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE,
            base,
            msr_count,
            // A clear bit: KVM does not answer. No range has more than eight.
            bitmap: &[0],
        });
    let ranges: Vec<_> = ranges.collect();
    vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &ranges)
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

/// First MSR and number of MSRs of each range of synthetic counters, of any vendor.
pub fn synthetic_msrs() -> impl Iterator<Item = (u32, u32)> {
    let models = [CounterModel::K7, CounterModel::Architectural];
    models.into_iter().flat_map(|it| it.msrs().iter().copied())
}

/// Whether a CPUID leaf announces counters: Intel's architectural ones, AMD's core extension or
/// AMD's version 2.
fn announces_counters(leaf: &kvm_bindings::kvm_cpuid_entry2) -> bool {
    match leaf.function {
        0xa => leaf.eax & 0xff != 0,
        0x8000_0001 => leaf.ecx & PERF_CTR_EXT_CORE != 0,
        0x8000_0022 => leaf.eax & 1 != 0,
        _ => false,
    }
}

/// The CPU's vendor, from leaf 0.
fn vendor(cpuid: &CpuId) -> String {
    let leaf = cpuid.as_slice().iter().find(|leaf| leaf.function == 0);
    let words = leaf.map_or([0; 3], |leaf| [leaf.ebx, leaf.edx, leaf.ecx]);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

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
