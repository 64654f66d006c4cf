//! Model-specific registers as firmware leaves them.

use std::io;

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

/// IA32_MISC_ENABLE: fast string operations.
const MISC_ENABLE: u32 = 0x1a0;
const FAST_STRINGS: u64 = 1;
/// IA32_MTRR_DEF_TYPE: memory type ranges are on, and memory is write-back unless one says
/// otherwise.
const MTRR_DEF_TYPE: u32 = 0x2ff;
const MTRR_ENABLE: u64 = 1 << 11;
const MTRR_WRITE_BACK: u64 = 6;

/// Sets what a kernel expects firmware to have set. All else is right after reset.
pub(crate) fn set_boot(vcpu: &VcpuFd) -> io::Result<()> {
    let entry = |index, data| kvm_msr_entry {
        index,
        data,
        ..Default::default()
    };
    let entries = [
        entry(MISC_ENABLE, FAST_STRINGS),
        entry(MTRR_DEF_TYPE, MTRR_ENABLE | MTRR_WRITE_BACK),
    ];
    let msrs =
        Msrs::from_entries(&entries).map_err(|error| io::Error::other(format!("{error:?}")))?;
    match vcpu.set_msrs(&msrs) {
        Ok(set) if set == entries.len() => Ok(()),
        Ok(set) => Err(io::Error::other(format!(
            "KVM refused {:x?}",
            entries.get(set)
        ))),
        Err(error) => Err(io::Error::from_raw_os_error(error.errno())),
    }
}
