//! Checkpoints: the state of a machine, saved once and restored often.
//!
//! The first checkpoint copies all of RAM. From then on KVM logs the pages that the guest writes,
//! and [`Memory`](crate::Memory) those that the VMM writes. A restore copies back the pages that
//! differ, and a later checkpoint holds only those. So checkpoints can be nested: take one, run on
//! from it, take another, and restore them in any order.
//!
//! The state contains RAM, the vCPUs' registers (general, system, FPU, debug, MSRs, LAPIC, pending
//! events), the interrupt controllers, the timer, both clocks of the guest (TSC and kvmclock
//! continue from their saved values) and the serial port. The console keeps what it printed.
//! Breakpoints are not part of the state: they belong to the caller, not to the guest.

mod chips;
mod cpu;
mod habits;
mod lapic;
mod planted;
mod ram;

use std::io;

use vmm_sys_util::errno;

use crate::debug::TrapError;
use crate::memory::AccessError;
use crate::threads::PauseError;
use crate::vcpu::InspectError;

pub(crate) use chips::{Chips, advance_clock, nanoseconds};
pub(crate) use cpu::CpuState;
pub use cpu::host_tsc;
pub(crate) use planted::Planted;
pub(crate) use ram::{Pages, Ram};

/// Why a machine could not be saved or restored.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum CheckpointError {
    /// A vCPU cannot be stopped.
    #[error(transparent)]
    Pause(#[from] PauseError),
    /// A vCPU's thread has ended.
    #[error("vCPU {0} is gone")]
    Gone(u8),
    /// The checkpoint is of another machine.
    #[error("the checkpoint is of another machine")]
    Foreign,
    /// KVM refused.
    #[error("failed to {what}: {source}")]
    Kvm {
        what: &'static str,
        source: errno::Error,
    },
    /// KVM refused the value of an MSR that it returned before.
    #[error("KVM does not take back MSR {0:#x}")]
    Msr(u32),
    /// The serial port.
    #[error("failed to restore the serial port: {0}")]
    Serial(io::Error),
    /// A vCPU.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// A planted trap, which is not part of a checkpoint.
    #[error(transparent)]
    Trap(#[from] TrapError),
    /// Guest memory that does not exist: a bug of this crate.
    #[error(transparent)]
    Memory(#[from] AccessError),
}

/// The error of a failed request to KVM.
fn failed(what: &'static str) -> impl Fn(errno::Error) -> CheckpointError + Copy {
    move |source| CheckpointError::Kvm { what, source }
}

/// A machine's state.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    pub(crate) cpus: Vec<CpuState>,
    pub(crate) chips: Chips,
    pub(crate) pages: Pages,
}

/// The work of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Pages that may have differed: written since the last restore, or still in KVM's log.
    pub looked_at: usize,
    /// Pages copied back.
    pub copied: usize,
}
