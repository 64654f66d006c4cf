//! Running scenarios on one kernel and judging them.

mod library_run;
mod tally;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(super) use self::library_run::LibraryRun;
use super::Context;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use super::replay_file::KeptTrials;
use crate::host::choice::KvmHost;
use crate::host::provider::TestKernel;
use crate::judge::ScenarioResult;
use crate::report::artifacts::Artifacts;
use crate::report::json::Setting;
use crate::scenario::{Loaded, ResolveError, ScenarioErrors, resolve};
use unwindlab_engine::plan::{Token, TrialPlan};

/// What to run, on which kernel, and how.
#[derive(Debug, Clone, Default)]
pub struct RunRequest {
    /// Files, folders, or names of scenarios; the whole library where there are none.
    pub scenarios: Vec<PathBuf>,
    /// Only scenarios whose name contains one of these texts; all where there are none.
    pub filter: Vec<String>,
    /// The kernel under test.
    pub kernel: KernelChoice,
    /// How each scenario is run.
    pub trials: TrialOptions,
    /// Where logs and replay files are kept, if they are.
    pub artifacts: Option<Artifacts>,
}

/// How each scenario is run.
#[derive(Debug, Clone, Default)]
pub struct TrialOptions {
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
    /// The seed of a deterministic run.
    pub seed: Option<u64>,
    /// Trials of each scenario; without it, as many as the scenario says.
    pub trials: Option<u32>,
    /// The only trial of an exploration to be made.
    pub token: Option<Token>,
    /// Whether traces are compared with snapshots.
    pub compare_snapshots: bool,
    /// Whether returns to user mode are noted; without it, as the scenario says.
    pub witness: Option<bool>,
}

/// What happens during a run.
#[expect(missing_debug_implementations, reason = "holds a trait object")]
#[derive(Clone, Copy)]
pub enum RunEvent<'a> {
    /// These scenarios are about to be run, in this order.
    Started {
        /// The scenarios.
        scenarios: &'a [Loaded],
    },
    /// A scenario is over.
    Finished {
        /// Its result.
        result: &'a ScenarioResult,
        /// The kernel that it ran on.
        kernel: &'a dyn TestKernel,
    },
    /// All scenarios are over.
    Ended(&'a RunSummary),
}

/// What came of a run.
#[derive(Debug)]
pub struct RunSummary {
    /// The results, in the order in which the scenarios ran.
    pub results: Vec<ScenarioResult>,
    /// What was tested, and where.
    pub setting: Setting,
    /// How long it took.
    pub elapsed: Duration,
    /// Why some logs or replay files could not be kept.
    pub unkept: Vec<CampaignError>,
}

/// Runs scenarios. If the user interrupts the run, the summary has the results so far.
///
/// # Errors
/// [`CampaignError`] where nothing was run, or a KVM host could not be started.
pub fn run(
    request: &RunRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(RunEvent<'_>) -> io::Result<()>,
) -> Result<RunSummary, CampaignError> {
    let start = Instant::now();
    let kernel_request = request.kernel.request()?;
    let mut library = selected(request, context)?;
    for loaded in &mut library {
        loaded.scenario.witness = request.trials.witness.or(loaded.scenario.witness);
    }
    let kernel = context.fetch(&kernel_request)?;
    context.check_interrupt()?;
    let trials = resolve_all(&library, kernel.as_ref())?;
    tell(RunEvent::Started {
        scenarios: &library,
    })?;
    let kept = request.artifacts.as_ref().map(|artifacts| KeptTrials {
        artifacts,
        kernel: &request.kernel,
    });
    let mut run = LibraryRun::new(&request.trials, kept, kernel.as_ref(), context);
    run.run_all(&library, &trials, &mut |result| {
        tell(RunEvent::Finished {
            result,
            kernel: kernel.as_ref(),
        })
    })?;
    let summary = RunSummary {
        setting: Setting {
            kernel_spec: kernel_request.to_string(),
            kernel_release: kernel.release().to_owned(),
            kernel_hash: kernel.hash().to_owned(),
            kvm_host: run.host,
        },
        results: run.results,
        elapsed: start.elapsed(),
        unkept: run.unkept,
    };
    tell(RunEvent::Ended(&summary))?;
    Ok(summary)
}

fn selected(request: &RunRequest, context: Context<'_>) -> Result<Vec<Loaded>, CampaignError> {
    let mut library = context.open(&request.scenarios)?;
    if !request.filter.is_empty() {
        library.retain(|loaded| {
            let name = loaded.scenario.name.as_str();
            request.filter.iter().any(|text| name.contains(text))
        });
    }
    match library.is_empty() {
        true => Err(CampaignError::NothingSelected),
        false => Ok(library),
    }
}

/// Why a scenario is not run on a kernel.
#[derive(Debug)]
pub(super) struct SkipReason(pub(super) String);

/// Resolves all scenarios before any is run, so that an error shows at once.
fn resolve_all(
    library: &[Loaded],
    kernel: &dyn TestKernel,
) -> Result<Vec<Result<TrialPlan, SkipReason>>, ScenarioErrors> {
    let mut plans = Vec::new();
    let mut errors = Vec::new();
    for loaded in library {
        let (symbols, hash) = (kernel.symbols(), kernel.hash());
        match resolve(&loaded.file, &loaded.scenario, symbols, hash) {
            Ok(plan) => plans.push(Ok(plan)),
            Err(ResolveError::Unsupported(lack)) => plans.push(Err(SkipReason(lack.to_string()))),
            Err(ResolveError::Scenario(ScenarioErrors(found))) => errors.extend(found),
        }
    }
    match errors.is_empty() {
        true => Ok(plans),
        false => Err(ScenarioErrors(errors)),
    }
}

#[cfg(test)]
mod tests;
