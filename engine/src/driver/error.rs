//! What can fail between the host and a guest.

use unwindlab_abi::ABI_VERSION;
use unwindlab_abi::mailbox::MailboxError;
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_oracle::trace::ring::RingError;
use unwindlab_vmm::{
    AccessError, BreakpointError, CheckpointError, InjectError, InspectError, MendError,
    OverflowError, PauseError, ResumeError, ReturnWatchError,
};

use super::announced::Mismatch;
use super::protocol::OutOfTurn;

/// A guest cannot be driven.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    /// There is no such vCPU.
    #[error("the machine has no vCPU {0}")]
    Missing(u8),
    /// A vCPU cannot be stopped.
    #[error(transparent)]
    Pause(#[from] PauseError),
    /// A vCPU cannot be resumed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// A vCPU cannot be looked at.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// A vCPU takes no breakpoints.
    #[error(transparent)]
    Breakpoint(#[from] BreakpointError),
    /// A vCPU takes no NMI.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// The performance counters of a vCPU do not overflow.
    #[error(transparent)]
    Overflow(#[from] OverflowError),
    /// Returns to user mode are noted for ever.
    #[error(transparent)]
    Returns(#[from] ReturnWatchError),
    /// The host breaks `sysenter`, and it cannot be mended, or is for ever.
    #[error("failed to mend sysenter: {0}")]
    Sysenter(#[from] MendError),
    /// The machine cannot be saved or put back.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Guest memory that the agent announced cannot be written.
    #[error(transparent)]
    Memory(#[from] AccessError),
    /// The kernel's choice of a mutant cannot be made.
    #[error("failed to choose a mutant at {0:#x}")]
    NotChosen(u64),
    /// The agent does not keep to the protocol.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl DriverError {
    /// Whether the guest caused it: the host was led to where the guest has no memory, or was told what cannot be.
    pub fn is_the_guests(&self) -> bool {
        matches!(
            self,
            Self::Session(_)
                | Self::Memory(_)
                | Self::Inspect(InspectError::Unmapped { .. })
                // Its local APIC was on when it announced its CPUs, and no kernel turns one off that it uses.
                | Self::Inject(InjectError::NotRequested { .. })
                // It lets a counter interrupt it, and not by an NMI: no driver does.
                | Self::Overflow(OverflowError::NotDelivered { .. })
        )
    }
}

impl From<SessionError> for TrialEnd {
    fn from(error: SessionError) -> Self {
        Self::Misbehaved {
            what: error.to_string(),
        }
    }
}

/// A guest that does not keep to the protocol, or not to its plan: the guest's fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The mailbox is no mailbox.
    #[error("the agent's mailbox: {0}")]
    Mailbox(#[from] MailboxError),
    /// An announced address is not guest RAM.
    #[error("the agent announced an address that is not its RAM: {0}")]
    Memory(#[from] AccessError),
    /// The agent was built from another tree.
    #[error("agent speaks ABI version {0}, not {ABI_VERSION}")]
    Version(u32),
    /// What the agent announced as a ring is none.
    #[error("the agent announced a ring that cannot be read: {0}")]
    Ring(#[from] RingError),
    /// The agent asks for a page that its page tables do not have.
    #[error("nothing is mapped at the agent's address {0:#x}")]
    Unmapped(u64),
    /// More of something than any plan can need.
    #[error("the agent announced too many {0}")]
    TooMany(&'static str),
    /// More than is kept of a trial.
    #[error("{0}")]
    OverBudget(String),
    /// A message that has no place where it comes.
    #[error(transparent)]
    OutOfTurn(#[from] OutOfTurn),
    /// An announcement that is not what the plan asks for.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// A message or a mark of another size than the ports have.
    #[error("{0} bytes written to port {1:#x}, which takes 4")]
    Size(u8, u16),
    /// A record of a CPU that is none.
    #[error("the lab client's log has a record of CPU {0}, which the machine has not")]
    Cpu(u8),
    /// A mark of no thread.
    #[error("a mark of thread {0}, which the plan has not, or not yet")]
    Mark(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_the_guest_can_have_done_is_its_own() {
        let guests: [DriverError; 3] = [
            SessionError::Cpu(200).into(),
            InjectError::NotRequested { vector: 0xfd }.into(),
            OverflowError::NotDelivered { vcpu: 0, lvtpc: 0 }.into(),
        ];
        for error in guests {
            assert!(error.is_the_guests(), "{error}");
        }
        // Debuggers and perf set breakpoints in a right guest, too.
        let others: [DriverError; 3] = [
            DriverError::Missing(200),
            BreakpointError::GuestsOwn { vcpu: 0 }.into(),
            OverflowError::NoPmu.into(),
        ];
        for error in others {
            assert!(!error.is_the_guests(), "{error}");
        }
    }
}
