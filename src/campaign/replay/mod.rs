//! One failing trial again, from its replay file.

mod run;
mod sweep;

use std::io;

use super::Context;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use super::replay_file::{ReplayFile, ReplayTrial, ReplayVerdict, UnpackedScenario};
use super::run::RunEvent;
use super::sweep::SweepEvent;
use crate::host::choice::KvmHost;
use crate::judge::outcome::OutcomeClass;

/// Which trial to make again, and where.
#[derive(Debug, Clone)]
pub struct ReplayRequest {
    /// The trial.
    pub file: ReplayFile,
    /// Another kernel than the one that the trial failed on.
    pub kernel: Option<KernelChoice>,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
}

/// What happens during a replay.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
#[derive(Clone, Copy)]
pub enum ReplayEvent<'a> {
    /// In the run that makes the trial.
    Run(RunEvent<'a>),
    /// In the sweep that makes the trial.
    Sweep(SweepEvent<'a>),
}

/// What came of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplaySummary {
    /// How the trial compares with the one in the file.
    pub result: ReplayResult,
    /// Where it was made, or why it was not: to be put behind the result.
    pub place: String,
}

/// How a trial compares with the one in its replay file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayResult {
    /// It fails in the same way.
    SameFailure {
        /// Whether the traces are the same to the byte, where both are deterministic.
        same_trace: Option<bool>,
    },
    /// It fails in another way.
    OtherFailure,
    /// It passes.
    Passes,
    /// It could not be made.
    NotMade,
}

impl ReplayResult {
    /// What it says of the kernel.
    #[must_use]
    pub const fn class(self) -> OutcomeClass {
        match self {
            Self::SameFailure { .. } => OutcomeClass::Bad,
            Self::Passes => OutcomeClass::Good,
            Self::OtherFailure | Self::NotMade => OutcomeClass::Untested,
        }
    }
}

/// Compares the failures among the trials that were made with the one in the file.
fn compare(verdict: &ReplayVerdict, made: usize, failures: &[ReplayVerdict]) -> ReplayResult {
    let same = failures.iter().find(|it| verdict.is_shown_by(it));
    match (same, failures.is_empty()) {
        (Some(same), _) => {
            let hashes = verdict
                .trace_sha256
                .as_ref()
                .zip(same.trace_sha256.as_ref());
            ReplayResult::SameFailure {
                same_trace: hashes.map(|(before, now)| before == now),
            }
        }
        (None, _) if made == 0 => ReplayResult::NotMade,
        (None, true) => ReplayResult::Passes,
        (None, false) => ReplayResult::OtherFailure,
    }
}

/// Makes the trial again.
///
/// # Errors
/// [`CampaignError`].
pub fn replay(
    request: &ReplayRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(ReplayEvent<'_>) -> io::Result<()>,
) -> Result<ReplaySummary, CampaignError> {
    let replay = &request.file.replay;
    let scenario = UnpackedScenario::of(replay)?;
    match &replay.trial {
        ReplayTrial::Sweep(trial) => sweep::replay(request, trial, &scenario.path, context, tell),
        ReplayTrial::Run(trial) => run::replay(request, trial, &scenario.path, context, tell),
    }
}

/// The kernel to replay on: another, if the request names one, else that of the file.
fn kernel(request: &ReplayRequest) -> KernelChoice {
    let own = || request.file.replay.kernel.choice.clone();
    request.kernel.clone().unwrap_or_else(own)
}
