//! /dev/kvm and the VM: opening, what this VMM needs of them, memory slots.

use std::io;

use kvm_bindings::{KVM_API_VERSION, kvm_userspace_memory_region};
use kvm_ioctls::{Cap, Kvm, VmFd};
use vmm_sys_util::errno;

use crate::irqchip;
use crate::memory::Memory;

/// The device KVM is used through.
const KVM_PATH: &str = "/dev/kvm";

/// Three pages that KVM needs for guests in real mode on some Intel CPUs; nothing else lies
/// there in our memory layout.
const TSS_ADDRESS: usize = 0xfffb_d000;
/// A page for the same purpose.
const IDENTITY_MAP_ADDRESS: u64 = 0xfffb_c000;

/// What a KVM must offer, with the name to say when it does not.
const NEEDED: [(Cap, &str); 10] = [
    (Cap::Irqchip, "KVM_CAP_IRQCHIP"),
    (Cap::Pit2, "KVM_CAP_PIT2"),
    (Cap::Irqfd, "KVM_CAP_IRQFD"),
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    (Cap::ExtCpuid, "KVM_CAP_EXT_CPUID"),
    (Cap::SetTssAddr, "KVM_CAP_SET_TSS_ADDR"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
    (Cap::VcpuEvents, "KVM_CAP_VCPU_EVENTS"),
    (Cap::SetGuestDebug, "KVM_CAP_SET_GUEST_DEBUG"),
    (Cap::Debugregs, "KVM_CAP_DEBUGREGS"),
];

/// Why /dev/kvm is of no use.
#[derive(Debug, thiserror::Error)]
pub enum OpenKvmError {
    /// There is none.
    #[error(
        "{KVM_PATH} does not exist: load kvm_amd or kvm_intel, or switch virtualisation on in the firmware"
    )]
    Missing,
    /// Not for this user.
    #[error("no permission to open {KVM_PATH}: add the user to the group kvm")]
    Permission,
    /// The kernel gave another reason.
    #[error("failed to open {KVM_PATH}: {0}")]
    Open(io::Error),
    /// Not the API that has been stable since Linux 2.6.22, or not KVM at all.
    #[error(
        "{KVM_PATH} speaks API version {found}, {KVM_API_VERSION} is needed: use a newer kernel"
    )]
    ApiVersion {
        /// What it speaks; negative where it does not know the question.
        found: i32,
    },
    /// A part of KVM that this VMM cannot do without is missing.
    #[error("{KVM_PATH} lacks {capability}: use a newer kernel, or one with it configured in")]
    Capability {
        /// The kernel's name for it.
        capability: &'static str,
    },
}

/// Opens /dev/kvm and checks that it offers what this VMM needs.
pub fn open_kvm() -> Result<Kvm, OpenKvmError> {
    open_kvm_at(c"/dev/kvm")
}

pub(crate) fn open_kvm_at(path: &std::ffi::CStr) -> Result<Kvm, OpenKvmError> {
    let kvm = Kvm::new_with_path(path).map_err(|error| match error.errno() {
        libc::ENOENT | libc::ENODEV | libc::ENXIO => OpenKvmError::Missing,
        libc::EACCES | libc::EPERM => OpenKvmError::Permission,
        other => OpenKvmError::Open(io::Error::from_raw_os_error(other)),
    })?;
    let found = kvm.get_api_version();
    if i64::from(found) != i64::from(KVM_API_VERSION) {
        return Err(OpenKvmError::ApiVersion { found });
    }
    match NEEDED.iter().find(|(cap, _)| !kvm.check_extension(*cap)) {
        Some((_, capability)) => Err(OpenKvmError::Capability { capability }),
        None => Ok(kvm),
    }
}

/// Why a VM could not be made.
#[derive(Debug, thiserror::Error)]
#[error("KVM refused to {step}: {source}")]
pub struct VmError {
    /// The step.
    pub step: &'static str,
    /// The kernel's reason.
    pub source: errno::Error,
}

/// Makes a VM with interrupt controllers, timer, and `memory` as its RAM.
pub(crate) fn create(kvm: &Kvm, memory: &Memory) -> Result<VmFd, VmError> {
    let failed = |step| move |source| VmError { step, source };
    let vm = kvm.create_vm().map_err(failed("create a VM"))?;
    vm.set_identity_map_address(IDENTITY_MAP_ADDRESS)
        .map_err(failed("place the identity map"))?;
    vm.set_tss_address(TSS_ADDRESS)
        .map_err(failed("place the task state segment"))?;
    irqchip::create(&vm)?;
    set_memory(&vm, memory, 0).map_err(failed("take the guest's memory"))?;
    Ok(vm)
}

/// Makes `memory` the VM's RAM, or changes the flags (`KVM_MEM_*`) of what it is already.
pub(crate) fn set_memory(vm: &VmFd, memory: &Memory, flags: u32) -> Result<(), errno::Error> {
    for (slot, range) in (0..).zip(memory.ranges()) {
        let region = kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr: range.start,
            memory_size: range.len,
            userspace_addr: range.host,
        };
        // SAFETY: the range is a mapping that `memory` keeps. The machine holds a clone of
        // `memory` for as long as it holds the VM, and nothing in this process takes a
        // reference into it: all access is by volatile copies.
        unsafe { vm.set_user_memory_region(region) }?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_error() {
        assert!(matches!(
            open_kvm_at(c"/nonexistent/kvm"),
            Err(OpenKvmError::Missing)
        ));
        assert!(matches!(
            open_kvm_at(c"/dev/null"),
            Err(OpenKvmError::ApiVersion { .. })
        ));
        assert!(matches!(open_kvm_at(c"/proc"), Err(OpenKvmError::Open(_))));
    }
}
