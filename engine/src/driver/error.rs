//! What can fail between the host and a guest.

use unwindlab_vmm::{
    AccessError, BreakpointError, CheckpointError, InjectError, InspectError, OverflowError,
    PauseError, ResumeError, ReturnWatchError,
};

use super::session::SessionError;

/// A guest cannot be driven. The fault of the harness or the KVM host, never of the kernel under
/// test.
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
    /// The machine cannot be saved or put back.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Guest memory that the agent announced cannot be written.
    #[error(transparent)]
    Memory(#[from] AccessError),
    /// The agent does not keep to the protocol.
    #[error(transparent)]
    Session(#[from] SessionError),
}
