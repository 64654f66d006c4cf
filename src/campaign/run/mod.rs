//! Running scenarios on one kernel and judging them.

mod boots;
mod library_run;
mod part;
mod side_by_side;
pub mod soak;
mod tally;
mod tools;
mod unit;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(super) use self::library_run::LibraryRun;
pub(super) use self::part::FLAKY_IS;
use self::part::RunPart;
pub use self::side_by_side::jobs_of_this_machine;
pub(super) use self::unit::RunUnit;
use super::Context;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use super::part::{PartRequest, Units};
use super::replay_file::KeptTrials;
use crate::host::choice::KvmHost;
use crate::host::provider::TestKernel;
use crate::judge::ScenarioResult;
use crate::judge::flaky::FlakyIs;
use crate::report::artifacts::Artifacts;
use crate::report::json::Setting;
use crate::report::perf_data::PerfDataFolder;
use crate::report::trace_events::TraceFolder;
use unwindlab_engine::plan::{Shard, Token, TrialPlan};
use unwindlab_scenario::{Loaded, ResolveError, ScenarioErrors, resolve};

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
    /// The folder into which each trial's recording is written as perf would have, if it is.
    pub perf_data: Option<PathBuf>,
    /// The folder into which each trial is written as a file of trace events, if it is.
    pub trace_json: Option<PathBuf>,
    /// The part that is made, if not all of it is.
    pub part: Option<PartRequest>,
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
    /// How often a scenario that does not pass is run once more.
    pub retries: u32,
    /// What a flaky result counts as, for `fail_fast`.
    pub flaky_is: FlakyIs,
    /// Whether the run ends with the first scenario that fails.
    pub fail_fast: bool,
    /// How many scenarios are run at a time, each on a KVM host of its own; 0 is 1. A run that ends with the first failure runs one.
    pub jobs: usize,
    /// What time limits are multiplied by.
    pub timeout_factor: Option<f64>,
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
        /// The number of the trial, if it is one of several of a part.
        trial: Option<u32>,
        /// The kernel that it ran on.
        kernel: &'a dyn TestKernel,
        /// What was tested, and where.
        setting: &'a Setting,
    },
    /// All scenarios are over.
    Ended(&'a RunSummary),
}

/// What came of a run.
#[derive(Debug)]
pub struct RunSummary {
    /// The results, in the order in which the scenarios ran; of a part those that stand in its file first.
    pub results: Vec<ScenarioResult>,
    /// What was tested, and where.
    pub setting: Setting,
    /// How long it took.
    pub elapsed: Duration,
    /// The scenario that ended the run because it failed, and how many were not run for that.
    pub failed_fast: Option<FailedFast>,
    /// The part that was to be run, if no scenario belongs to it.
    pub empty_part: Option<Shard>,
    /// Why some logs or replay files could not be kept.
    pub unkept: Vec<CampaignError>,
}

/// A run that ended with the first scenario that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedFast {
    /// The scenario.
    pub name: String,
    /// How many scenarios were not run.
    pub not_run: usize,
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
    let prepared = Prepared::new(request, context)?;
    let Prepared {
        kernel, library, ..
    } = &prepared;
    let part = request.part.as_ref();
    let part = part.map(|part| RunPart::of_run(part, &request.trials, &prepared));
    let mut part = part.transpose()?;
    let before = part.as_ref().map(RunPart::results).transpose()?;
    tell(RunEvent::Started { scenarios: library })?;
    let kept = Prepared::kept(request);
    let perf_data = { request.perf_data.as_deref() }.map(PerfDataFolder::open);
    let perf_data = perf_data.transpose()?;
    let trace_json = { request.trace_json.as_deref() }.map(TraceFolder::open);
    let trace_json = trace_json.transpose()?;
    let mut run = LibraryRun::new(&request.trials, kept, kernel.as_ref(), context);
    run.perf_data = perf_data;
    run.trace_json = trace_json;
    let all = prepared.units();
    let units = part.as_ref().map_or(all, |part| part.left(&prepared));
    let empty_part = { part.as_ref() }
        .filter(|part| part.own().next().is_none())
        .map(|part| part.shard);
    let mut done = 0;
    context.progress.overall(done, units.len());
    run.run_units(&units, &mut |unit, result, host| {
        done += 1;
        context.progress.overall(done, units.len());
        let setting = prepared.setting(host);
        if let Some(part) = &mut part {
            part.take(unit, &setting, result)?;
        }
        tell(RunEvent::Finished {
            result,
            trial: unit.trial,
            kernel: kernel.as_ref(),
            setting: &setting,
        })?;
        Ok(())
    })?;
    let mut results = before.unwrap_or_default();
    results.append(&mut run.results);
    let summary = RunSummary {
        setting: prepared.setting(&run.host),
        results,
        failed_fast: run.failed_fast,
        empty_part,
        elapsed: start.elapsed(),
        unkept: run.unkept,
    };
    tell(RunEvent::Ended(&summary))?;
    Ok(summary)
}

/// All that is known before a KVM host is started.
struct Prepared {
    spec: String,
    kernel: Box<dyn TestKernel>,
    library: Vec<Loaded>,
    /// Of each scenario.
    trials: Vec<Result<TrialPlan, SkipReason>>,
}

impl Prepared {
    fn new(request: &RunRequest, context: Context<'_>) -> Result<Self, CampaignError> {
        let kernel_request = request.kernel.request()?;
        let mut library = selected(request, context)?;
        for loaded in &mut library {
            loaded.scenario.witness = request.trials.witness.or(loaded.scenario.witness);
        }
        let kernel = context.fetch(&kernel_request)?;
        context.check_interrupt()?;
        Ok(Self {
            spec: kernel_request.to_string(),
            trials: in_time(
                resolve_all(&library, kernel.as_ref())?,
                request.trials.timeout_factor,
            ),
            kernel,
            library,
        })
    }

    /// All scenarios, each as a whole.
    fn units(&self) -> Vec<RunUnit<'_>> {
        let scenarios = self.library.iter().zip(&self.trials);
        scenarios
            .map(|(loaded, plan)| RunUnit::whole(loaded, plan))
            .collect()
    }

    /// These units of the scenarios, in the same order.
    fn units_of(&self, units: &[Units]) -> Vec<RunUnit<'_>> {
        let scenarios = self.library.iter().zip(&self.trials).zip(units);
        let units = scenarios.flat_map(|((loaded, plan), units)| {
            units.each().map(move |unit| RunUnit {
                loaded,
                plan,
                trial: unit.trial,
            })
        });
        units.collect()
    }

    fn kept(request: &RunRequest) -> Option<KeptTrials<'_>> {
        request.artifacts.as_ref().map(|artifacts| KeptTrials {
            artifacts: artifacts.clone(),
            kernel: &request.kernel,
        })
    }

    fn setting(&self, kvm_host: &str) -> Setting {
        Setting {
            kernel_spec: self.spec.clone(),
            kernel_release: self.kernel.release().to_owned(),
            kernel_hash: self.kernel.hash().to_owned(),
            kvm_host: kvm_host.to_owned(),
        }
    }
}

fn selected(request: &RunRequest, context: Context<'_>) -> Result<Vec<Loaded>, CampaignError> {
    let mut library = context.open(&request.scenarios)?;
    if !request.filter.is_empty() {
        library.retain(|loaded| {
            let name = loaded.scenario.name.as_str();
            request.filter.iter().any(|text| name.contains(text))
        });
    }
    if library.is_empty() {
        return Err(CampaignError::NothingSelected);
    }
    let plain = library.iter().find(|it| it.scenario.explore.is_none());
    match plain.filter(|_| request.trials.token.is_some()) {
        Some(plain) => Err(CampaignError::NothingExplored(
            plain.scenario.name.to_string(),
        )),
        None => Ok(library),
    }
}

/// Why a scenario is not run on a kernel.
#[derive(Debug, Clone)]
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

/// The plans with their time limits multiplied.
fn in_time(
    mut plans: Vec<Result<TrialPlan, SkipReason>>,
    factor: Option<f64>,
) -> Vec<Result<TrialPlan, SkipReason>> {
    for plan in plans.iter_mut().flatten() {
        for limit in [&mut plan.limits.boot_ms, &mut plan.limits.run_ms] {
            let time = Duration::from_millis(*limit).as_secs_f64() * factor.unwrap_or(1.0);
            let time = Duration::try_from_secs_f64(time).map(|it| it.as_millis());
            *limit = time.map_or(u64::MAX, |it| u64::try_from(it).unwrap_or(u64::MAX));
        }
    }
    plans
}

#[cfg(test)]
mod tests;
