//! The VM: memory slots, interrupt controllers, timer.

use kvm_bindings::{KVM_PIT_SPEAKER_DUMMY, kvm_pit_config, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use vmm_sys_util::errno;

use crate::memory::Memory;

/// Three pages that KVM needs for guests in real mode on some Intel CPUs. Our memory layout has
/// nothing else there.
const TSS_ADDRESS: usize = 0xfffb_d000;
/// A page for the same purpose.
const IDENTITY_MAP_ADDRESS: u64 = 0xfffb_c000;

/// Why a VM could not be created.
#[derive(Debug, thiserror::Error)]
#[error("KVM refused to {step}: {source}")]
#[expect(missing_docs, reason = "the message says what the fields are")]
pub struct VmError {
    pub step: &'static str,
    pub source: errno::Error,
}

/// Creates a VM with interrupt controllers, timer, and `memory` as its RAM.
pub(crate) fn create(kvm: &Kvm, memory: &Memory) -> Result<VmFd, VmError> {
    let failed = |step| move |source| VmError { step, source };
    let vm = kvm.create_vm().map_err(failed("create a VM"))?;
    vm.set_identity_map_address(IDENTITY_MAP_ADDRESS)
        .map_err(failed("place the identity map"))?;
    vm.set_tss_address(TSS_ADDRESS)
        .map_err(failed("place the task state segment"))?;
    vm.create_irq_chip()
        .map_err(failed("create the interrupt controllers"))?;
    // It answers port 0x61 too, where a kernel's NMI handler reads the reason of the NMI.
    let timer = kvm_pit_config {
        flags: KVM_PIT_SPEAKER_DUMMY,
        ..Default::default()
    };
    vm.create_pit2(timer).map_err(failed("create the timer"))?;
    set_memory(&vm, memory, 0).map_err(failed("take the guest's memory"))?;
    Ok(vm)
}

/// A VM with one vCPU that never runs. Its local APIC is disabled by software, as after a reset.
///
/// While such a vCPU exists, KVM need not patch its own code when the others enable theirs: the static key
/// `apic_sw_disabled` stays set (arch/x86/kvm/lapic.c, 6.12), and so does `preempt_notifier_key`, as
/// long as there is a VM (kernel/sched/core.c).
#[derive(Debug)]
#[expect(dead_code, reason = "it only has to exist")]
pub struct StillVm {
    vcpu: VcpuFd,
    vm: VmFd,
}

impl StillVm {
    /// Makes one.
    ///
    /// # Errors
    /// [`VmError`].
    pub fn new(kvm: &Kvm) -> Result<Self, VmError> {
        let failed = |step| move |source| VmError { step, source };
        let vm = kvm.create_vm().map_err(failed("create a VM"))?;
        vm.create_irq_chip()
            .map_err(failed("create the interrupt controllers"))?;
        let vcpu = vm.create_vcpu(0).map_err(failed("create a vCPU"))?;
        Ok(Self { vcpu, vm })
    }
}

/// Makes `memory` the VM's RAM, or changes its flags (`KVM_MEM_*`) if it is already.
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
        // `memory` as long as it holds the VM, and nothing in this process takes a reference
        // into it: all access is by volatile copies.
        unsafe { vm.set_user_memory_region(region) }?;
    }
    Ok(())
}
