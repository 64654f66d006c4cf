//! Putting an NMI or an interrupt into a stopped vCPU, and knowing that it is there.
//!
//! `KVM_NMI` alone says nothing: a second NMI on top of a pending one is merged in silence. So
//! KVM's event state is read before and after, and the number of NMIs that wait must have
//! risen by exactly one.

use kvm_bindings::{kvm_lapic_state, kvm_msi};
use kvm_ioctls::{VcpuFd, VmFd};
use vmm_sys_util::errno;

/// A vCPU's NMI state, as KVM has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NmiState {
    /// NMIs that wait to be taken.
    pub pending: u8,
    /// An NMI is on its way in: it is taken when the vCPU next enters the guest.
    pub injected: bool,
    /// The guest handles an NMI now; one that waits is taken when that handler returns.
    pub masked: bool,
    /// The instruction before was `sti`, `mov ss` or `pop ss`: one that waits is taken behind the
    /// next (AMD APM vol. 2, 15.21.5; KVM holds NMIs back there, `svm_nmi_blocked`).
    pub shadow: bool,
}

impl NmiState {
    /// Whether an NMI is taken before the very instruction at which the vCPU stands.
    #[must_use]
    pub fn takes_one_here(self) -> bool {
        !self.masked && !self.shadow
    }
}

/// Proof that exactly one NMI more waits in a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NmiReceipt {
    /// Before.
    pub before: NmiState,
    /// After. Where it is masked, the NMI is not taken at the next instruction but when the
    /// handler that runs now returns.
    pub after: NmiState,
}

/// Why an NMI was not injected, or is not known to be.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// Only a stopped vCPU takes an injection.
    #[error("vCPU {vcpu} is not stopped: pause it first")]
    NotStopped {
        /// Which.
        vcpu: u8,
    },
    /// One already waits: a second would be merged with it. Nothing was injected.
    #[error("an NMI already waits in the vCPU ({state:?}): let it be taken first")]
    AlreadyPending {
        /// KVM's state.
        state: NmiState,
    },
    /// KVM took the call, but does not show one NMI more.
    #[error("KVM does not confirm the NMI: {before:?} before, {after:?} after")]
    NotConfirmed {
        /// Before.
        before: NmiState,
        /// After.
        after: NmiState,
    },
    /// The local APIC asks for that vector already: a second one would be merged with it.
    #[error("interrupt {vector:#x} already waits in the vCPU's local APIC: let it be taken first")]
    AlreadyRequested {
        /// Which.
        vector: u8,
    },
    /// KVM took the message, but the local APIC does not ask for the vector.
    #[error(
        "the vCPU's local APIC did not take interrupt {vector:#x}: it is off, or no such vector"
    )]
    NotRequested {
        /// Which.
        vector: u8,
    },
    /// KVM refused.
    #[error("failed to {what}: {source}")]
    Kvm {
        /// What was asked for.
        what: &'static str,
        /// The kernel's reason.
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

    /// Whether an NMI has yet to be taken.
    pub(crate) fn is_waiting(self) -> bool {
        self.waiting() != 0
    }

    /// NMIs not yet taken.
    fn waiting(self) -> u16 {
        u16::from(self.pending) + u16::from(self.injected)
    }
}

/// Injects one NMI.
pub(crate) fn nmi(fd: &VcpuFd) -> Result<NmiReceipt, InjectError> {
    let state = || {
        NmiState::of(fd).map_err(|source| InjectError::Kvm {
            what: "read the event state",
            source,
        })
    };
    let before = state()?;
    if before.is_waiting() {
        return Err(InjectError::AlreadyPending { state: before });
    }
    fd.nmi().map_err(|source| InjectError::Kvm {
        what: "inject an NMI",
        source,
    })?;
    let after = state()?;
    match after.waiting() {
        1 => Ok(NmiReceipt { before, after }),
        _ => Err(InjectError::NotConfirmed { before, after }),
    }
}

/// Where messages to local APICs go (Intel SDM vol. 3, 12.11.1); the APIC's ID is in bits 12 to 19.
const MSI_ADDRESS: u32 = 0xfee0_0000;
/// The first interrupt request register of a local APIC; there are eight, 16 bytes apart.
const IRR: usize = 0x200;
/// Where they end.
const IRR_END: usize = IRR + 8 * 16;

/// Injects one interrupt by the local APIC of vCPU `index`, whose APIC ID is its number.
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
        address_lo: MSI_ADDRESS | u32::from(index) << 12,
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

/// Whether an interrupt is on its way: in the local APIC, or taken from there and not delivered yet.
pub(crate) fn irq_pending(fd: &VcpuFd) -> Result<bool, errno::Error> {
    let lapic = fd.get_lapic()?;
    // What is between the registers is 0.
    let requests = lapic.regs.get(IRR..IRR_END).unwrap_or_default();
    let injected = fd.get_vcpu_events()?.interrupt.injected;
    Ok(injected != 0 || requests.iter().any(|byte| *byte != 0))
}

fn is_requested(state: &kvm_lapic_state, vector: u8) -> bool {
    let bit = usize::from(vector);
    let at = IRR + bit / 32 * 16 + bit % 32 / 8;
    let byte = state.regs.get(at).copied().unwrap_or(0);
    byte.cast_unsigned() >> (bit % 8) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_found_in_its_register() {
        let mut state = kvm_lapic_state::default();
        // Vector 0xfd: register 7, bit 29.
        state.regs[0x273] = 1 << 5;
        assert!(is_requested(&state, 0xfd));
        assert!(!is_requested(&state, 0xfc) && !is_requested(&state, 0x1d));
    }
}
