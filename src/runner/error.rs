//! What can fail in the controller of a trial.

use crate::driver::vcpu::VcpuError;

/// The controller's own failure, as against the guest's: ends in infra-error.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A vCPU does not do what KVM promises.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// The machine cannot be put back to where its agent said hello.
    #[error(transparent)]
    Checkpoint(#[from] unwindlab_vmm::CheckpointError),
    /// Two injections of a kind that goes from instruction to instruction, on one vCPU.
    #[error("two bursts, sweeps or points of a schedule lead vCPU {0} on at the same time")]
    TwoLead(u8),
    /// A thaw without a freeze.
    #[error("vCPU {target} is to be thawed (by what vCPU {by} met) but is not frozen")]
    NotFrozen {
        /// Which.
        target: u8,
        /// Where the trigger was met.
        by: u8,
    },
    /// A variable that does not hold what was written into it.
    #[error("the variable at {address:#x} does not hold what was written into it")]
    NotPoked {
        /// Where.
        address: u64,
    },
    /// A frame pointer of nobody.
    #[error(
        "no workload thread is in user mode on vCPU {0}, whose frame pointer could be corrupted"
    )]
    NotInUserMode(u8),
    /// A command for nobody.
    #[error("injection {} is for a thread that is not known: give `of`", .0 + 1)]
    NoThread(u32),
    /// The command words are not in guest memory.
    #[error("injection {}: the guest's command words cannot be used", .0 + 1)]
    NoCommand(u32),
    /// The helper did not answer.
    #[error("injection {}: the guest's helper did not carry it out in time", .0 + 1)]
    NoAnswer(u32),
    /// The helper could not do it.
    #[error("injection {}: the guest's helper could not carry it out: {source}", .spec + 1)]
    Command {
        /// The injection.
        spec: u32,
        /// What the guest's kernel said.
        source: std::io::Error,
    },
    /// A symbol that the agent did not announce.
    #[error("the workload has no symbol {0:?}")]
    NoUserSymbol(String),
}
