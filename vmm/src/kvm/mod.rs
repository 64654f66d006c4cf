//! KVM's side of a machine: /dev/kvm, the VM, CPUID and MSRs.

pub(crate) mod cpuid;
pub(crate) mod exit_regs;
pub(crate) mod msr;
pub(crate) mod sregs;
pub(crate) mod vm;

use std::io;

use kvm_bindings::KVM_API_VERSION;
use kvm_ioctls::{Cap, Kvm};

/// KVM's device file.
const KVM_PATH: &str = "/dev/kvm";

/// The extensions that a KVM must offer, with their names for the error message.
const NEEDED: [(Cap, &str); 11] = [
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
    (Cap::SyncRegs, "KVM_CAP_SYNC_REGS"),
];

/// Why /dev/kvm cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum OpenKvmError {
    /// It does not exist.
    #[error(
        "{KVM_PATH} does not exist: load kvm_amd or kvm_intel, or switch virtualisation on in the firmware"
    )]
    Missing,
    /// This user may not open it.
    #[error("no permission to open {KVM_PATH}: add the user to the group kvm")]
    Permission,
    /// Another error on open.
    #[error("failed to open {KVM_PATH}: {0}")]
    Open(io::Error),
    /// Not the API that has been stable since Linux 2.6.22, or not KVM at all (a negative
    /// version).
    #[error(
        "{KVM_PATH} has API version {found}, this VMM needs {KVM_API_VERSION}: use a newer kernel"
    )]
    ApiVersion { found: i32 },
    /// KVM lacks an extension that this VMM needs.
    #[error("{KVM_PATH} lacks {capability}: use a newer kernel, or one with it configured in")]
    Capability { capability: &'static str },
}

/// Opens /dev/kvm and checks that it offers what this VMM needs.
pub fn open_kvm() -> Result<Kvm, OpenKvmError> {
    open_kvm_at(c"/dev/kvm")
}

fn open_kvm_at(path: &std::ffi::CStr) -> Result<Kvm, OpenKvmError> {
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
