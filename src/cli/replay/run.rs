//! A trial of a run once more, and files of such trials.

use std::path::Path;

use super::super::analysis::Analysis;
use super::super::args::ReplayArgs;
use super::super::error::CommandError;
use super::super::kernel;
use super::super::run::{Ran, run_with};
use super::super::session::Setup;
use super::super::tally::Made;
use super::{Again, kernel_of, options, text};
use crate::host::provider::{Provider, TestKernel};
use crate::interrupt::Interrupt;
use crate::judge::ScenarioResult;
use crate::report::artifacts::Artifacts;
use crate::report::replay::{Replay, ReplayRun, ReplayTrial, ReplayVerdict, VERSION};
use crate::scenario::{Library, Loaded};

/// The run that has the trial, as its last.
pub(super) fn of(
    args: &ReplayArgs,
    replay: &Replay,
    trial: &ReplayRun,
    scenario: &Path,
    analysis: &Analysis,
) -> Result<Setup, CommandError> {
    if args.detail.instructions.is_some() {
        let reason = "--instructions are of a sweep's trial, and this is one of a run";
        return Err(CommandError::Usage(reason.to_owned()));
    }
    let token = trial.token.as_deref().map(str::parse).transpose();
    let token = token.map_err(|why| {
        let file = args.file.display();
        CommandError::Usage(format!("{file}: `token`: {why}"))
    })?;
    let Library { scenarios } = Library::open(&[scenario.to_owned()], &analysis.invariant_ids())?;
    Ok(Setup {
        library: scenarios,
        kvm_host: args.kvm_host,
        seed: trial.seed,
        trials: trial.trials,
        token,
        compare_snapshots: replay.snapshot.is_some(),
        artifacts: None,
        all_events: args.detail.trace,
        kernel: options(args, replay),
        show: true,
    })
}

/// Makes it again.
pub(super) fn again(
    setup: &Setup,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<Again, CommandError> {
    let request = kernel::request(&setup.kernel)?;
    let Ran {
        results, setting, ..
    } = run_with(setup, &request, provider, analysis, interrupt)?;
    if interrupt.is_set() {
        return Err(CommandError::Interrupted);
    }
    let tested = results.iter().filter(|it| it.outcome.is_tested());
    Ok(Again {
        made: tested.count(),
        shown: results.iter().filter_map(ReplayVerdict::of_run).collect(),
        of: format!("on {}", setting.kernel_release),
    })
}

/// Keeps a file of a trial that failed beside its logs, and notes where in the result.
///
/// # Errors
/// [`CommandError`] where it cannot be written.
pub(in super::super) fn keep(
    setup: &Setup,
    artifacts: &Artifacts,
    loaded: &Loaded,
    made: &Made,
    kernel: &dyn TestKernel,
    result: &mut ScenarioResult,
) -> Result<(), CommandError> {
    let Some(verdict) = ReplayVerdict::of_run(result) else {
        return Ok(());
    };
    let replay = Replay {
        version: VERSION,
        name: loaded.scenario.name.to_string(),
        scenario: loaded.text.clone(),
        snapshot: loaded.snapshot.clone().filter(|_| setup.compare_snapshots),
        kernel: kernel_of(&setup.kernel, kernel)?,
        trial: ReplayTrial::Run(ReplayRun {
            seed: setup.seed,
            trials: made.trials,
            token: made.token.map(|token| token.to_string()),
        }),
        verdict,
    };
    Ok(artifacts.keep_replay(result, &text(&replay)?)?)
}
