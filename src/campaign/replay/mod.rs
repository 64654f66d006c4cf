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
    /// That the kernel which the file names is another one now, if it is.
    pub other_kernel: Option<String>,
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

/// That the kernel which the file names is another one now: its tree was edited, or the archive has a newer one.
fn other_kernel(request: &ReplayRequest, hash: &str, release: &str) -> Option<String> {
    let failed = &request.file.replay.kernel;
    let is_other = request.kernel.is_none() && failed.hash != hash;
    let short = |hash: &str| hash.chars().take(12).collect::<String>();
    is_other.then(|| {
        format!(
            "not the kernel that it failed on: that was {} ({}), this is {release} ({})",
            failed.release,
            short(&failed.hash),
            short(hash)
        )
    })
}

/// The kernel to replay on: another, if the request names one, else that of the file.
fn kernel(request: &ReplayRequest) -> KernelChoice {
    let own = || request.file.replay.kernel.choice.clone();
    request.kernel.clone().unwrap_or_else(own)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::campaign::run::{RunRequest, run};
    use crate::campaign::testing::{FakeProvider, ended, folder};
    use crate::report::artifacts::Artifacts;
    use unwindlab_oracle::trace::recording::TrialEnd;

    #[test]
    fn a_kernel_that_is_another_now_is_told() {
        let folder = folder();
        let hang = || ended(TrialEnd::Hang { places: Vec::new() });
        let request = RunRequest {
            scenarios: vec![folder.path().join("a.yaml")],
            artifacts: Some(Artifacts::open(Some(folder.path())).unwrap()),
            ..RunRequest::default()
        };
        let provider = FakeProvider::new([hang()]);
        run(&request, provider.context(), &mut |_| Ok(())).unwrap();
        let path = folder.path().join("a/replay.json");
        let told = |kernel: Option<KernelChoice>| {
            let request = ReplayRequest {
                file: ReplayFile::read(&path).unwrap(),
                kernel,
                kvm_host: KvmHost::Auto,
            };
            let provider = FakeProvider::new([hang()]);
            let summary = replay(&request, provider.context(), &mut |_| Ok(())).unwrap();
            summary.other_kernel
        };
        assert_eq!(told(None), None);
        let text = fs::read_to_string(&path).unwrap();
        let text = text.replace(r#""hash": "abc""#, r#""hash": "0123456789abcdef""#);
        fs::write(&path, text).unwrap();
        assert_eq!(
            told(None).unwrap(),
            "not the kernel that it failed on: that was 7.2.0 (0123456789ab), this is 7.2.0 (abc)"
        );
        assert_eq!(told(Some(KernelChoice::default())), None);
    }
}
