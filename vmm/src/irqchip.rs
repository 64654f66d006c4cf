//! KVM's own interrupt controllers and timer.

use kvm_bindings::{KVM_PIT_SPEAKER_DUMMY, kvm_pit_config};
use kvm_ioctls::VmFd;

use crate::vm::VmError;

/// The I/O APIC's address; KVM's is fixed there.
pub(crate) const IOAPIC_ADDRESS: u32 = 0xfec0_0000;
/// The local APICs' address after reset.
pub(crate) const LAPIC_ADDRESS: u32 = 0xfee0_0000;

/// Makes the two PICs, the I/O APIC, a local APIC for each vCPU to come, and the PIT. The PIT
/// answers port 0x61 too, which a kernel's NMI handler reads to learn the NMI's reason.
pub(crate) fn create(vm: &VmFd) -> Result<(), VmError> {
    vm.create_irq_chip().map_err(|source| VmError {
        step: "create the interrupt controllers",
        source,
    })?;
    let config = kvm_pit_config {
        flags: KVM_PIT_SPEAKER_DUMMY,
        ..Default::default()
    };
    vm.create_pit2(config).map_err(|source| VmError {
        step: "create the timer",
        source,
    })
}
