//! The registers that KVM hands over with each exit, and takes with the next entry, without a call for either
//! (`KVM_CAP_SYNC_REGS`; Documentation/virt/kvm/api.rst, 5. and 6.74).

use kvm_bindings::{kvm_regs, kvm_sregs};
use kvm_ioctls::{SyncReg, VcpuFd};

/// Has KVM hand them over from the next exit on.
pub(crate) fn hand_over(fd: &mut VcpuFd) {
    fd.set_sync_valid_reg(SyncReg::Register);
    fd.set_sync_valid_reg(SyncReg::SystemRegister);
}

/// Those of the last exit, which an instruction made. They are the vCPU's as long as nothing has set any since.
pub(crate) fn at_exit(fd: &VcpuFd) -> (kvm_regs, kvm_sregs) {
    let handed = fd.sync_regs();
    let mut sregs = handed.sregs;
    // KVM sets the bit of an interrupt on its way, and clears none (`__get_sregs()` by `store_regs()`, arch/x86/kvm/x86.c, 6.12).
    // Given back, the bit of an earlier exit would raise that interrupt again. Behind an instruction none is on its way.
    sregs.interrupt_bitmap = [0; 4];
    (handed.regs, sregs)
}

/// The registers that a vCPU is to have next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NextRegs {
    pub(crate) regs: kvm_regs,
    /// None: as before.
    pub(crate) sregs: Option<kvm_sregs>,
}

/// Has KVM set them when the vCPU next runs (before all else: `sync_regs()` in `kvm_arch_vcpu_ioctl_run()`, arch/x86/kvm/x86.c).
/// Until then, which must be the next thing that is done with the vCPU, any call finds what was before.
pub(crate) fn set_at_entry(fd: &mut VcpuFd, next: &NextRegs) {
    fd.sync_regs_mut().regs = next.regs;
    fd.set_sync_dirty_reg(SyncReg::Register);
    if let Some(sregs) = next.sregs {
        fd.sync_regs_mut().sregs = sregs;
        fd.set_sync_dirty_reg(SyncReg::SystemRegister);
    }
}
