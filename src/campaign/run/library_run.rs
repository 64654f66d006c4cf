//! The scenarios of a library, one after the other on one KVM host, or [side by side](super::side_by_side) on several.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::tally::{Tally, TrialIdentity};
use super::tools::Tools;
use super::unit::{RunUnit, UnitFinished};
use super::{FailedFast, SkipReason, TrialOptions};
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::campaign::replay_file::{KeptTrials, ReplayRun};
use crate::host::provider::{HostRequest, ProviderError, TestKernel};
use crate::judge::flaky::Attempt;
use crate::judge::outcome::OutcomeClass;
use crate::judge::{Case, Outcome, Reached, ScenarioResult};
use crate::report::names::Names;
use crate::report::perf_data::PerfDataFolder;
use crate::report::trace_events::TraceFolder;
use unwindlab_engine::plan::{Executor, InfraError, TrialPlan};
use unwindlab_engine::runner::explore;
use unwindlab_oracle::trace::{Recording, Trace};
use unwindlab_scenario::Loaded;

/// What stands for the KVM host while there is none.
pub(super) const NO_HOST: &str = "none";

/// The scenarios of a library.
pub(in crate::campaign) struct LibraryRun<'a> {
    pub(super) options: &'a TrialOptions,
    /// Where logs and replay files are kept, if they are.
    pub(super) kept: Option<KeptTrials<'a>>,
    /// Where recordings are written for perf, if they are.
    pub(super) perf_data: Option<PerfDataFolder>,
    /// Where trace events are written, if they are.
    pub(super) trace_json: Option<TraceFolder>,
    /// Of many trials of each scenario: those whose first trial that is not good was met, and has its logs.
    first_met: Option<Arc<Mutex<BTreeSet<String>>>>,
    /// Whether the last trial's logs are kept.
    has_logs: bool,
    /// Whether the KVM host is kept, with its guests, for the next command, and may be one that was.
    keeps_host: bool,
    kernel: &'a dyn TestKernel,
    pub(super) context: Context<'a>,
    pub(super) tools: Arc<Tools>,
    /// What the KVM host says of itself.
    pub(super) host: String,
    pub(in crate::campaign) results: Vec<ScenarioResult>,
    /// Whether, and with which scenario, the run ended because it failed.
    pub(super) failed_fast: Option<FailedFast>,
    /// Why some logs could not be kept; the rest of the run is worth more than they are.
    pub(super) unkept: Vec<CampaignError>,
}

impl<'a> LibraryRun<'a> {
    pub(in crate::campaign) fn new(
        options: &'a TrialOptions,
        kept: Option<KeptTrials<'a>>,
        kernel: &'a dyn TestKernel,
        context: Context<'a>,
    ) -> Self {
        Self {
            options,
            kept,
            perf_data: None,
            trace_json: None,
            first_met: None,
            has_logs: false,
            keeps_host: true,
            kernel,
            context,
            tools: Arc::default(),
            host: NO_HOST.to_owned(),
            results: Vec::new(),
            failed_fast: None,
            unkept: Vec::new(),
        }
    }

    /// The same for very many trials: results are not kept, and logs only of the first of each scenario that is not good.
    pub(super) fn of_bulk(self) -> Self {
        Self {
            first_met: Some(Arc::default()),
            ..self
        }
    }

    /// Whether a trial's logs are kept. Of very many, each scenario has one.
    fn keeps_logs_of(&self, result: &ScenarioResult) -> bool {
        let Some(met) = &self.first_met else {
            return true;
        };
        let mut met = met.lock().unwrap_or_else(PoisonError::into_inner);
        result.outcome.class() != OutcomeClass::Good && met.insert(result.name.clone())
    }

    /// Takes a result that was told.
    pub(super) fn push(&mut self, result: ScenarioResult) {
        if self.first_met.is_none() {
            self.results.push(result);
        }
    }

    /// The same for a kernel that no other command will run.
    pub(in crate::campaign) fn forgetting(self) -> Self {
        Self {
            keeps_host: false,
            ..self
        }
    }

    /// Runs the scenarios of `library`, each with the trial of the same place in `trials`. A KVM
    /// host that failed is replaced for the scenarios that follow; the one it failed in is run again only where
    /// retries are asked for, and shown as flaky then, lest a flaky host go unseen. `finished` is told each result, and the KVM host.
    pub(in crate::campaign) fn run_all(
        &mut self,
        library: &[Loaded],
        trials: &[Result<TrialPlan, SkipReason>],
        finished: &mut dyn FnMut(&ScenarioResult, &str) -> io::Result<()>,
    ) -> Result<(), CampaignError> {
        let units = library.iter().zip(trials);
        let units = units.map(|(loaded, plan)| RunUnit::whole(loaded, plan));
        let units: Vec<RunUnit<'_>> = units.collect();
        self.run_units(&units, &mut |_, result, host| Ok(finished(result, host)?))
    }

    /// Runs these scenarios and trials, as [`run_all`](Self::run_all).
    pub(super) fn run_units(
        &mut self,
        units: &[RunUnit<'_>],
        finished: &mut UnitFinished<'_>,
    ) -> Result<(), CampaignError> {
        let mut executor = None;
        self.get_tools(units.iter().map(|it| it.plan));
        if self.options.jobs > 1 && !self.options.fail_fast && units.len() > 1 {
            return self.side_by_side(units, finished);
        }
        for (number, unit) in units.iter().enumerate() {
            let Some(result) = self.run_or_skip(&mut executor, *unit)? else {
                break;
            };
            finished(unit, &result, &self.host)?;
            let is_over = self.options.fail_fast
                && result.counted(self.options.flaky_is) == OutcomeClass::Bad;
            self.failed_fast = is_over.then(|| FailedFast {
                name: result.name.clone(),
                not_run: units.len() - number - 1,
            });
            self.push(result);
            if is_over {
                break;
            }
        }
        self.keep(executor);
        Ok(())
    }

    /// The result of a scenario, run or not. Returns nothing where the user interrupts.
    pub(in crate::campaign) fn run_or_skip(
        &mut self,
        executor: &mut Option<Box<dyn Executor>>,
        unit: RunUnit<'_>,
    ) -> Result<Option<ScenarioResult>, CampaignError> {
        if self.context.interrupt.is_set() {
            return Ok(None);
        }
        let RunUnit {
            loaded,
            plan: trial,
            trial: number,
        } = unit;
        let missing = trial.as_ref().ok().and_then(|trial| self.missing(trial));
        Ok(match (trial, missing) {
            (Err(SkipReason(reason)), _) => Some(not_run(loaded, Outcome::Skip, reason.clone())),
            (_, Some(reason)) => Some(not_run(loaded, Outcome::InfraError, reason)),
            (Ok(trial), None) => {
                let trial = self.with_program(trial).into_owned();
                let result = self.run_one(executor, loaded, &trial, number)?;
                // There may be very many of them.
                let is_bulk = |it: &ScenarioResult| {
                    number.is_some() && it.outcome.class() == OutcomeClass::Good
                };
                result.map(|result| match is_bulk(&result) {
                    true => ScenarioResult {
                        trace: None,
                        ..result
                    },
                    false => result,
                })
            }
        })
    }

    /// Another run of the same, without results.
    pub(super) fn worker(&self) -> Self {
        Self {
            options: self.options,
            kept: self.kept.clone(),
            perf_data: self.perf_data.clone(),
            trace_json: self.trace_json.clone(),
            first_met: self.first_met.clone(),
            has_logs: false,
            keeps_host: self.keeps_host,
            kernel: self.kernel,
            context: self.context,
            tools: Arc::clone(&self.tools),
            host: self.host.clone(),
            results: Vec::new(),
            failed_fast: None,
            unkept: Vec::new(),
        }
    }

    /// Keeps the KVM host for the next command. One that is lost over it was of no more use here.
    pub(super) fn keep(&self, executor: Option<Box<dyn Executor>>) {
        let is_kept = self.keeps_host && !self.context.interrupt.is_set();
        let Some(mut executor) = executor.filter(|_| is_kept) else {
            return;
        };
        if let Err(error) = executor.keep(self.context.progress) {
            tracing::warn!("{error}");
        }
    }

    /// Runs one scenario, and once more as often as the options say while it does not pass. Returns nothing if
    /// the user interrupts the first attempt: one that was cut short says nothing.
    fn run_one(
        &mut self,
        executor: &mut Option<Box<dyn Executor>>,
        loaded: &Loaded,
        trial: &TrialPlan,
        unit: Option<u32>,
    ) -> Result<Option<ScenarioResult>, CampaignError> {
        let tally = || match unit {
            None => Tally::new(trial, self.options.trials, self.options.token),
            Some(number) => Tally::unit(trial, number),
        };
        let mut before = Vec::new();
        let Some(mut result) = self.attempt(executor, loaded, (trial, tally()), 0)? else {
            return Ok(None);
        };
        for number in 1..=self.options.retries as usize {
            if !result.may_be_retried() {
                break;
            }
            let Some(next) = self.attempt(executor, loaded, (trial, tally()), number)? else {
                break;
            };
            before.push(Attempt::of(&result));
            result = next;
        }
        Ok(Some(result.after(before)))
    }

    /// Makes the attempt at a scenario that has so many `before` it, on the KVM host of the one before if it still
    /// runs. Returns nothing if the user interrupts it.
    fn attempt(
        &mut self,
        executor: &mut Option<Box<dyn Executor>>,
        loaded: &Loaded,
        (trial, tally): (&TrialPlan, Tally),
        before: usize,
    ) -> Result<Option<ScenarioResult>, CampaignError> {
        if let Some(kept) = &mut self.kept {
            kept.artifacts.before = before;
        }
        let (mut result, identity) = self.run_trials(executor, loaded, trial, tally)?;
        if self.context.interrupt.is_set() {
            return Ok(None);
        }
        self.keep_replay(identity, loaded, &mut result);
        Ok(Some(result))
    }

    fn keep_replay(
        &mut self,
        identity: TrialIdentity,
        loaded: &Loaded,
        result: &mut ScenarioResult,
    ) {
        let Some(kept) = self.kept.as_ref().filter(|_| self.has_logs) else {
            return;
        };
        let trial = ReplayRun {
            seed: self.options.seed,
            trials: identity.trials,
            token: identity.token.map(|token| token.to_string()),
            witness: self.options.witness,
        };
        let compared = self.options.compare_snapshots;
        let replay = kept.keep_replay(trial, loaded, compared, self.kernel, result);
        self.unkept.extend(replay.err());
    }

    pub(super) fn start_host(&mut self, fresh: bool) -> Result<Box<dyn Executor>, ProviderError> {
        let tool = self
            .tools
            .perf_tool
            .as_ref()
            .and_then(|it| it.as_ref().ok());
        let request = HostRequest {
            kvm_host: self.options.kvm_host,
            seed: self.options.seed,
            perf_tool: tool.map(PathBuf::as_path),
            peer: None,
            fresh,
            guests: self.keeps_host,
        };
        let executor = self.context.start(request, self.kernel)?;
        self.host = executor.host();
        Ok(executor)
    }

    /// Makes the trials of a tally up to the first that is not good, on the running KVM host or a new one; a host
    /// that failed is ended. Returns the result, and which trial gave it.
    fn run_trials(
        &mut self,
        executor: &mut Option<Box<dyn Executor>>,
        loaded: &Loaded,
        plan: &TrialPlan,
        mut tally: Tally,
    ) -> Result<(ScenarioResult, TrialIdentity), CampaignError> {
        let mut running = match executor.take() {
            Some(running) => running,
            None => self.start_host(false)?,
        };
        let in_time = self.options.seed.is_some();
        let mut reached = Reached::default();
        loop {
            let preemptions = tally.preemptions(plan);
            let start = Instant::now();
            let plan_of_trial = match preemptions.as_slice() {
                [] => Cow::Borrowed(plan),
                some => Cow::Owned(explore::with(plan, some)),
            };
            let recorded = self.record_on_a_sound_host(&mut running, &plan_of_trial)?;
            let host_failed = recorded.is_err();
            let result = self.judge(loaded, plan, recorded, start.elapsed());
            reached.add(&result.reached);
            if let Some(result) = tally.take(plan, result, &preemptions, self.kernel.symbols()) {
                let result = ScenarioResult { reached, ..result };
                *executor = (!host_failed).then_some(running);
                return Ok((result, tally.identity(plan, in_time)));
            }
            if self.context.interrupt.is_set() {
                return Ok((tally.so_far(plan), tally.identity(plan, in_time)));
            }
        }
    }

    pub(super) fn record(
        &self,
        executor: &mut dyn Executor,
        trial: &TrialPlan,
    ) -> Result<Recording, InfraError> {
        self.context.progress.step(&trial.scenario);
        executor.run(trial, self.context.progress)
    }

    fn judge(
        &mut self,
        loaded: &Loaded,
        trial: &TrialPlan,
        recorded: Result<Recording, InfraError>,
        duration: Duration,
    ) -> ScenarioResult {
        let recording = recorded.unwrap_or_else(Recording::from);
        let judge = (self.context).judge(self.kernel.symbols(), self.options.compare_snapshots);
        let _computing = self.context.interrupt.computing();
        let trace_sha256 = self.options.seed.and_then(|_| recording.sha256());
        let mut result = judge.judge(Case {
            loaded,
            plan: trial,
            end: &recording.end,
            trace: Trace::decode(&recording),
            duration,
        });
        result.trace_sha256 = trace_sha256;
        result.reached = Reached {
            in_trials: recording.reached.clone(),
            before: recording.reached_before.clone(),
        };
        if let Some(why) = &recording.restarted {
            result = result.started_twice(why);
        }
        self.has_logs = self.keeps_logs_of(&result);
        if let Some(kept) = self.kept.as_ref().filter(|_| self.has_logs)
            && let Err(error) = kept.artifacts.keep(&mut result, &recording)
        {
            self.unkept.push(error.into());
        }
        if let Some(folder) = &mut self.perf_data
            && let Err(error) = folder.keep(&mut result, &recording)
        {
            self.unkept.push(error.into());
        }
        if let Some(folder) = &mut self.trace_json
            && let Err(error) = folder.keep(
                &mut result,
                Names {
                    kernel: self.kernel.symbols(),
                    user: &recording.user_symbols,
                },
            )
        {
            self.unkept.push(error.into());
        }
        result
    }
}

fn not_run(loaded: &Loaded, outcome: Outcome, reason: String) -> ScenarioResult {
    ScenarioResult::not_run(&loaded.scenario.name, outcome, reason)
}
