//! Model-specific registers: access to single ones, and the values that firmware leaves.

use std::io;

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::errno;

/// IA32_TIME_STAMP_COUNTER.
pub(crate) const TSC: u32 = 0x10;

/// MSR_KVM_SYSTEM_TIME_NEW: the guest-physical address of a vCPU's kvmclock, and whether it is on
/// (Documentation/virt/kvm/x86/msr.rst).
pub(crate) const KVM_SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;
pub(crate) const KVMCLOCK_ENABLED: u64 = 1;

/// IA32_MISC_ENABLE: fast string operations.
const MISC_ENABLE: u32 = 0x1a0;
const FAST_STRINGS: u64 = 1;
/// `IA32_TSC_DEADLINE`: the guest's TSC at which the LAPIC's timer fires; 0 when it is not armed
/// (Intel SDM vol. 3, 12.5.4.1).
pub(crate) const TSC_DEADLINE: u32 = 0x6e0;
/// IA32_MTRR_DEF_TYPE: memory type ranges are on, and the default type is write-back.
const MTRR_DEF_TYPE: u32 = 0x2ff;
const MTRR_ENABLE: u64 = 1 << 11;
const MTRR_WRITE_BACK: u64 = 6;

/// SYSENTER_ESP and SYSENTER_EIP.
const SYSENTER_ADDRESSES: [u32; 2] = [0x175, 0x176];

/// Whether an MSR of KVM's list is part of a checkpoint. KVM on AMD's SVM, which is the one that
/// QEMU emulates, shows the lower halves of the addresses of `sysenter` only, and would set the upper
/// ones to 0 (`svm_get_msr()`, `svm_set_msr()`, arch/x86/kvm/svm/svm.c); a guest that says AMD
/// writes them past KVM. Linux sets them when it starts a CPU, and never again: left alone, they
/// stay right, but a machine that has never run has none.
pub(crate) fn is_saved(index: u32, on_tcg: bool) -> bool {
    !(on_tcg && SYSENTER_ADDRESSES.contains(&index))
}

const fn entry(index: u32, data: u64) -> kvm_msr_entry {
    kvm_msr_entry {
        index,
        reserved: 0,
        data,
    }
}

fn list(entries: &[kvm_msr_entry]) -> Result<Msrs, errno::Error> {
    Msrs::from_entries(entries).map_err(|_| errno::Error::new(libc::EINVAL))
}

/// Value of an MSR; `None` if the vCPU lacks it.
pub(crate) fn get(fd: &VcpuFd, index: u32) -> Result<Option<u64>, errno::Error> {
    Ok(get_all(fd, [index])?.map(|[value]| value))
}

/// Values of MSRs, by one call; `None` if the vCPU lacks one of them.
pub(crate) fn get_all<const N: usize>(
    fd: &VcpuFd,
    indices: [u32; N],
) -> Result<Option<[u64; N]>, errno::Error> {
    let mut msrs = list(&indices.map(|index| entry(index, 0)))?;
    let had = fd.get_msrs(&mut msrs)?;
    let found = msrs.as_slice().first_chunk::<N>().filter(|_| had == N);
    Ok(found.map(|them| them.map(|it| it.data)))
}

/// Sets an MSR. False if the vCPU lacks it, or KVM refuses the value.
pub(crate) fn set(fd: &VcpuFd, index: u32, data: u64) -> Result<bool, errno::Error> {
    Ok(fd.set_msrs(&list(&[entry(index, data)])?)? == 1)
}

/// The guest's time stamp counter.
pub(crate) fn tsc(fd: &VcpuFd) -> Result<u64, errno::Error> {
    get(fd, TSC)?.ok_or_else(|| errno::Error::new(libc::EINVAL))
}

/// Sets the MSRs that a kernel expects firmware to have set. All others are right after reset.
pub(crate) fn set_boot(vcpu: &VcpuFd) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::is_saved;

    #[test]
    fn what_kvm_would_cut_is_left_alone() {
        for index in [0x175, 0x176] {
            assert!(
                is_saved(index, false) && !is_saved(index, true),
                "{index:#x}"
            );
        }
        assert!(is_saved(0x174, true), "its 32 bits are all");
    }
}
