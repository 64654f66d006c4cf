//! Injects an NMI or an interrupt into a stopped vCPU, and confirms that it is pending.
//!
//! `KVM_NMI` alone confirms nothing: KVM silently merges a second NMI with a pending one. So the
//! event state is read before and after, and the number of pending NMIs must have risen by
//! exactly one.

use kvm_bindings::{KVM_VCPUEVENT_VALID_NMI_PENDING, kvm_lapic_state, kvm_msi, kvm_vcpu_events};
use kvm_ioctls::{VcpuFd, VmFd};
use vmm_sys_util::errno;

use crate::x86::LAPIC_ADDRESS;

/// KVM's NMI state of a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NmiState {
    /// Number of NMIs that are pending.
    pub pending: u8,
    /// KVM is delivering an NMI: the vCPU takes it when it next enters the guest.
    pub injected: bool,
    /// The guest handles an NMI. It takes a pending one when that handler returns.
    pub masked: bool,
    /// The previous instruction was `sti`, `mov ss` or `pop ss`: the guest takes a pending NMI
    /// after the next one (AMD APM vol. 2, 15.21.5; KVM: `svm_nmi_blocked`).
    pub shadow: bool,
}

impl NmiState {
    /// Whether the guest takes an NMI before the instruction at which the vCPU is stopped.
    #[must_use]
    pub fn takes_one_here(self) -> bool {
        !self.masked && !self.shadow
    }
}

/// Proof that exactly one more NMI is pending in a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NmiReceipt {
    /// The state before the injection.
    pub before: NmiState,
    /// The state after it. If masked, the guest takes the NMI not at the next instruction but
    /// when the handler that runs now returns.
    pub after: NmiState,
}

/// Why an NMI or interrupt was not injected, or is not confirmed.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum InjectError {
    /// Only a stopped vCPU takes an injection.
    #[error("vCPU {vcpu} is not stopped: pause it first")]
    NotStopped { vcpu: u8 },
    /// An NMI is pending: KVM would merge a second one with it. Nothing was injected.
    #[error("an NMI already waits in the vCPU ({state:?}): let the guest take it first")]
    AlreadyPending { state: NmiState },
    /// KVM took the call, but does not show one more NMI.
    #[error("KVM does not confirm the NMI: {before:?} before, {after:?} after")]
    NotConfirmed { before: NmiState, after: NmiState },
    /// The vector is pending in the local APIC, which would merge a second one with it.
    #[error(
        "interrupt {vector:#x} already waits in the vCPU's local APIC: let the guest take it first"
    )]
    AlreadyRequested { vector: u8 },
    /// KVM took the message, but the vector is not pending in the local APIC.
    #[error(
        "the vCPU's local APIC did not take interrupt {vector:#x}: it is off, or no such vector"
    )]
    NotRequested { vector: u8 },
    /// KVM refused.
    #[error("failed to {what}: {source}")]
    Kvm {
        what: &'static str,
        source: errno::Error,
    },
}

impl NmiState {
    pub(crate) fn of(fd: &VcpuFd) -> Result<Self, errno::Error> {
        let events = fd.get_vcpu_events()?;
        let nmi = events.nmi;
        Ok(Self {
            shadow: events.interrupt.shadow != 0,
            pending: nmi.pending,
            injected: nmi.injected != 0,
            masked: nmi.masked != 0,
        })
    }

    /// Whether the guest has yet to take an NMI.
    pub(crate) fn is_waiting(self) -> bool {
        self.waiting() != 0
    }

    /// Number of NMIs that the guest has yet to take.
    fn waiting(self) -> u16 {
        u16::from(self.pending) + u16::from(self.injected)
    }
}

/// The NMI state of a stopped vCPU.
pub(crate) fn nmi_state(fd: &VcpuFd) -> Result<NmiState, InjectError> {
    let what = "read the event state";
    NmiState::of(fd).map_err(|source| InjectError::Kvm { what, source })
}

/// Injects one NMI.
pub(crate) fn nmi(fd: &VcpuFd) -> Result<NmiReceipt, InjectError> {
    let before = nmi_state(fd)?;
    if before.is_waiting() {
        return Err(InjectError::AlreadyPending { state: before });
    }
    fd.nmi().map_err(|source| InjectError::Kvm {
        what: "inject an NMI",
        source,
    })?;
    let after = nmi_state(fd)?;
    match after.waiting() {
        1 => Ok(NmiReceipt { before, after }),
        _ => Err(InjectError::NotConfirmed { before, after }),
    }
}

/// Has the number of pending NMIs stay what it is when these events are set, which were read before:
/// another vCPU may have sent one since. (Whether NMIs are masked is set all the same,
/// `kvm_vcpu_ioctl_x86_set_vcpu_events()`, arch/x86/kvm/x86.c, 7.3.)
pub(crate) const fn keep_nmis(events: &mut kvm_vcpu_events) {
    events.flags &= !KVM_VCPUEVENT_VALID_NMI_PENDING;
}

/// RFLAGS.IF: interrupts are enabled.
const RFLAGS_INTERRUPTS: u64 = 1 << 9;
/// Offset of a local APIC's task priority register.
const TPR: usize = 0x80;
/// Offset of its first in-service register, as of the request registers.
const ISR: usize = 0x100;
/// Offset of a local APIC's first interrupt request register. There are eight, 16 bytes apart.
const IRR: usize = 0x200;
/// Offset of the local vector table's entry of the timer. Its low byte is the vector.
const LVT_TIMER: usize = 0x320;
/// End of these registers.
const IRR_END: usize = IRR + 8 * 16;

/// Injects one interrupt by the local APIC of vCPU `index`, whose APIC id is its number.
pub(crate) fn irq(vm: &VmFd, fd: &VcpuFd, index: u8, vector: u8) -> Result<(), InjectError> {
    let failed = |what| move |source| InjectError::Kvm { what, source };
    let requested = || match fd.get_lapic() {
        Ok(state) => Ok(is_requested(&state, vector)),
        Err(source) => Err(failed("read the state of a local APIC")(source)),
    };
    if requested()? {
        return Err(InjectError::AlreadyRequested { vector });
    }
    let message = kvm_msi {
        // The APIC id is in bits 12 to 19 (Intel SDM vol. 3, 12.11.1).
        address_lo: LAPIC_ADDRESS | u32::from(index) << 12,
        data: u32::from(vector),
        ..Default::default()
    };
    vm.signal_msi(message)
        .map_err(failed("send an interrupt message"))?;
    match requested()? {
        true => Ok(()),
        false => Err(InjectError::NotRequested { vector }),
    }
}

/// Takes the interrupt of the local APIC's timer back, if it waits there. Returns whether it did.
pub(crate) fn take_back_timer(fd: &VcpuFd) -> Result<bool, errno::Error> {
    let mut lapic = fd.get_lapic()?;
    let Some(at) = timer_request(&lapic) else {
        return Ok(false);
    };
    at.clear(&mut lapic);
    fd.set_lapic(&lapic)?;
    Ok(true)
}

/// Where the request of the timer's vector is noted, if it is.
fn timer_request(lapic: &kvm_lapic_state) -> Option<Bit> {
    let vector = lapic.regs.get(LVT_TIMER)?.cast_unsigned();
    is_requested(lapic, vector).then(|| Bit::of(IRR, vector))
}

/// Whether an interrupt is pending in the local APIC, or taken from there and not delivered yet.
pub(crate) fn irq_pending(fd: &VcpuFd) -> Result<bool, errno::Error> {
    let lapic = fd.get_lapic()?;
    // The bytes between the registers are 0.
    let requests = lapic.regs.get(IRR..IRR_END).unwrap_or_default();
    let injected = fd.get_vcpu_events()?.interrupt.injected;
    Ok(injected != 0 || requests.iter().any(|byte| *byte != 0))
}

/// The vector that a vCPU with interrupts enabled takes next: that of an interrupt taken from the
/// local APIC and not delivered yet, otherwise the highest one requested.
pub(crate) fn next_vector(fd: &VcpuFd) -> Result<Option<u8>, errno::Error> {
    let interrupt = fd.get_vcpu_events()?.interrupt;
    if interrupt.injected != 0 {
        return Ok(Some(interrupt.nr));
    }
    let lapic = fd.get_lapic()?;
    Ok(highest(&lapic, IRR))
}

/// Whether a vCPU takes an interrupt or NMI before its next instruction, where these flags are set
/// and it handles no NMI. KVM gives it one that waits when it enters the guest.
pub(crate) fn is_due(fd: &VcpuFd, rflags: u64) -> Result<bool, errno::Error> {
    let events = fd.get_vcpu_events()?;
    if events.nmi.pending != 0 || events.nmi.injected != 0 || events.interrupt.injected != 0 {
        return Ok(true);
    }
    Ok(rflags & RFLAGS_INTERRUPTS != 0 && is_deliverable(&fd.get_lapic()?))
}

/// Whether an interrupt is pending whose priority class is above that of the task and of what is
/// in service (Intel SDM vol. 3, 12.8.3).
fn is_deliverable(state: &kvm_lapic_state) -> bool {
    let class = |vector: u8| vector >> 4;
    let task = state.regs.get(TPR).map_or(0, |it| it.cast_unsigned());
    highest(state, IRR).is_some_and(|requested| {
        let serviced = highest(state, ISR).unwrap_or(0);
        class(requested) > class(task).max(class(serviced))
    })
}

/// The highest vector whose bit is set in eight registers, of 32 bits, 16 bytes apart.
fn highest(state: &kvm_lapic_state, registers: usize) -> Option<u8> {
    (0..8_u8).rev().find_map(|register| {
        let at = registers + usize::from(register) * 16;
        let bytes = state.regs.get(at..)?.first_chunk::<4>()?;
        let bits = u32::from_le_bytes(bytes.map(i8::cast_unsigned));
        let bit = u8::try_from(bits.checked_ilog2()?).ok()?;
        Some(register * 32 + bit)
    })
}

fn is_requested(state: &kvm_lapic_state, vector: u8) -> bool {
    is_set(state, IRR, vector)
}

fn is_set(state: &kvm_lapic_state, registers: usize, vector: u8) -> bool {
    let bit = Bit::of(registers, vector);
    let byte = state.regs.get(bit.byte).copied().unwrap_or(0);
    byte.cast_unsigned() & bit.mask != 0
}

/// A vector's bit in eight registers of 32 bits, 16 bytes apart.
struct Bit {
    byte: usize,
    mask: u8,
}

impl Bit {
    fn of(registers: usize, vector: u8) -> Self {
        let bit = usize::from(vector);
        Self {
            byte: registers + bit / 32 * 16 + bit % 32 / 8,
            mask: 1 << (bit % 8),
        }
    }

    fn clear(&self, state: &mut kvm_lapic_state) {
        if let Some(byte) = state.regs.get_mut(self.byte) {
            *byte &= !self.mask.cast_signed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_the_timer_is_found_and_cleared() {
        let mut state = kvm_lapic_state::default();
        state.regs[LVT_TIMER] = 0xec_u8.cast_signed();
        // Vector 0xfd: register 7, bit 29; 0xec: register 7, bit 12.
        state.regs[0x273] = 1 << 5;
        assert!(timer_request(&state).is_none());
        state.regs[0x271] = 1 << 4;
        timer_request(&state).unwrap().clear(&mut state);
        assert!(!is_requested(&state, 0xec) && is_requested(&state, 0xfd));
    }

    #[test]
    fn a_vector_is_found_in_its_register() {
        let mut state = kvm_lapic_state::default();
        // Vector 0xfd: register 7, bit 29.
        state.regs[0x273] = 1 << 5;
        assert!(is_requested(&state, 0xfd));
        assert!(!is_requested(&state, 0xfc) && !is_requested(&state, 0x1d));
    }

    #[test]
    fn the_highest_vector_is_found() {
        let mut state = kvm_lapic_state::default();
        assert_eq!(highest(&state, IRR), None);
        // Register 0, bit 0, and in turn one above the other; bytes between the registers do not count.
        for (byte, bit, vector) in [
            (0, 0, 0x00),
            (0x11, 1, 0x29),
            (0x70, 0, 0xe0),
            (0x73, 7, 0xff),
        ] {
            state.regs[IRR + byte] |= (1_u8 << bit).cast_signed();
            state.regs[IRR + 0x74] = -1;
            assert_eq!(highest(&state, IRR), Some(vector));
        }
        assert_eq!(highest(&state, ISR), None);
    }

    #[test]
    fn an_interrupt_is_due_above_what_is_in_service() {
        let mut state = kvm_lapic_state::default();
        assert!(!is_deliverable(&state));
        // Vector 0x31 is requested: register 1, bit 17.
        state.regs[IRR + 0x12] = 1 << 1;
        assert!(is_deliverable(&state));
        // Vector 0x32, of the same class, is in service.
        state.regs[ISR + 0x12] = 1 << 2;
        assert!(!is_deliverable(&state));
        // Vector 0x41 is requested too.
        state.regs[IRR + 0x20] = 1 << 1;
        assert!(is_deliverable(&state));
        state.regs[TPR] = 0x40;
        assert!(!is_deliverable(&state));
    }
}
