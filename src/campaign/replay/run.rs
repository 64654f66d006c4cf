//! A trial of a run again.

use std::io;
use std::path::Path;

use super::{ReplayEvent, ReplayRequest, ReplaySummary, compare, kernel, other_kernel};
use crate::campaign::Context;
use crate::campaign::error::{CampaignError, ReplayFileError, ReplayFileProblem};
use crate::campaign::replay_file::{ReplayRun, ReplayVerdict};
use crate::campaign::run::{RunRequest, TrialOptions, run};

/// The run that has the trial, as its last.
fn run_of(
    request: &ReplayRequest,
    trial: &ReplayRun,
    scenario: &Path,
) -> Result<RunRequest, ReplayFileError> {
    let token = trial.token.as_deref().map(str::parse).transpose();
    let token = token.map_err(|why| request.file.wrong(ReplayFileProblem::Token(why)))?;
    Ok(RunRequest {
        scenarios: vec![scenario.to_owned()],
        kernel: kernel(request),
        trials: TrialOptions {
            kvm_host: request.kvm_host,
            seed: trial.seed,
            trials: trial.trials,
            token,
            compare_snapshots: request.file.replay.snapshot.is_some(),
            witness: trial.witness,
            ..TrialOptions::default()
        },
        ..RunRequest::default()
    })
}

/// Makes the trial again.
pub(super) fn replay(
    request: &ReplayRequest,
    trial: &ReplayRun,
    scenario: &Path,
    context: Context<'_>,
    tell: &mut dyn FnMut(ReplayEvent<'_>) -> io::Result<()>,
) -> Result<ReplaySummary, CampaignError> {
    let repetition = run_of(request, trial, scenario)?;
    let summary = run(&repetition, context, &mut |event| {
        tell(ReplayEvent::Run(event))
    })?;
    context.check_interrupt()?;
    let results = summary.results.iter();
    let made = results.clone().filter(|it| it.is_tested()).count();
    let failures: Vec<_> = results.filter_map(ReplayVerdict::of_run).collect();
    let setting = &summary.setting;
    Ok(ReplaySummary {
        result: compare(&request.file.replay.verdict, made, &failures),
        place: format!("on {}", setting.kernel_release),
        other_kernel: other_kernel(request, &setting.kernel_hash, &setting.kernel_release),
    })
}
