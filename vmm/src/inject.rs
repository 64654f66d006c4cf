//! Putting an NMI into a stopped vCPU, and knowing that it is there.
//!
//! `KVM_NMI` alone says nothing: a second NMI on top of a pending one is merged in silence. So
//! KVM's event state is read before and after, and the number of NMIs that wait must have
//! risen by exactly one.

use kvm_ioctls::VcpuFd;
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
        let nmi = fd.get_vcpu_events()?.nmi;
        Ok(Self {
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
