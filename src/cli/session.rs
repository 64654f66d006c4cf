//! The scenarios of a run, one after the other on one KVM host.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::analysis::Analysis;
use super::args::KernelOptions;
use super::error::CommandError;
use super::output::print;
use super::progress::Spinner;
use super::replay;
use super::tally::{Made, Tally};
use crate::host::choice::KvmHost;
use crate::host::provider::{Provider, TestKernel};
use crate::interrupt::Interrupt;
use crate::judge::outcome::OutcomeClass;
use crate::judge::{Case, Judge, Outcome, ScenarioResult};
use crate::plan::Token;
use crate::plan::{Executor, InfraError, Progress as _, TrialPlan};
use crate::report::artifacts::Artifacts;
use crate::report::names::Names;
use crate::report::{failure, table};
use crate::runner::explore;
use crate::scenario::Loaded;
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_oracle::trace::{Recording, Trace};

/// What a session does with the scenarios.
#[derive(Debug)]
pub(super) struct Setup {
    /// The scenarios, in the order in which they are run.
    pub(super) library: Vec<Loaded>,
    /// Where KVM comes from.
    pub(super) kvm_host: KvmHost,
    /// Of a deterministic run.
    pub(super) seed: Option<u64>,
    /// Trials of each scenario; as many as it says itself where this is missing.
    pub(super) trials: Option<u32>,
    /// The one trial of an exploration.
    pub(super) token: Option<Token>,
    /// Whether snapshots are compared.
    pub(super) compare_snapshots: bool,
    /// Where logs are kept; nowhere where there is none.
    pub(super) artifacts: Option<Artifacts>,
    /// Whether all events of what did not pass are printed.
    pub(super) all_events: bool,
    /// How to get the kernel, for replay files.
    pub(super) kernel: KernelOptions,
    /// Whether each result is printed.
    pub(super) show: bool,
}

/// The scenarios of a run, one after the other.
pub(super) struct Session<'a> {
    setup: &'a Setup,
    provider: &'a dyn Provider,
    kernel: &'a dyn TestKernel,
    analysis: &'a Analysis,
    spinner: &'a Spinner,
    interrupt: &'a Interrupt,
    /// Of the longest name.
    width: usize,
    /// The distribution's perf, or why it is not to be had, where a scenario uses it.
    perf_tool: Option<Result<PathBuf, String>>,
    /// What the KVM host says of itself.
    host: String,
    results: Vec<ScenarioResult>,
    /// Logs that could not be kept; the rest of the run is worth more than they are.
    unkept: Vec<CommandError>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        setup: &'a Setup,
        provider: &'a dyn Provider,
        kernel: &'a dyn TestKernel,
        analysis: &'a Analysis,
        spinner: &'a Spinner,
        interrupt: &'a Interrupt,
    ) -> Self {
        let widths = setup.library.iter().map(|it| it.scenario.name.len());
        Self {
            width: widths.max().unwrap_or(0),
            setup,
            provider,
            kernel,
            analysis,
            spinner,
            interrupt,
            perf_tool: None,
            host: "none".to_owned(),
            results: Vec::new(),
            unkept: Vec::new(),
        }
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The results so far, and why some logs could not be kept.
    pub(super) fn finish(self) -> (Vec<ScenarioResult>, Vec<CommandError>) {
        (self.results, self.unkept)
    }

    /// Runs them, in the order of the setup's library; of one that is not for this kernel there is
    /// the reason why. A KVM host that failed is replaced for the scenarios that follow; the one it
    /// failed in is not run again, lest a flaky host go unseen.
    pub(super) fn run_all(
        &mut self,
        trials: &[Result<TrialPlan, String>],
    ) -> Result<(), CommandError> {
        let mut executor = None;
        let uses_tool = |trial: &TrialPlan| trial.guest.perf_tool.is_some();
        if trials.iter().flatten().any(uses_tool) {
            let tool = self.provider.perf_tool(self.spinner);
            self.perf_tool = Some(tool.map_err(|error| error.to_string()));
        }
        for (loaded, trial) in self.setup.library.iter().zip(trials) {
            if self.interrupt.is_set() {
                break;
            }
            let trial = match trial {
                Ok(trial) => trial,
                Err(reason) => {
                    let name = &loaded.scenario.name;
                    self.take(ScenarioResult::not_run(name, Outcome::Skip, reason.clone()))?;
                    continue;
                }
            };
            if let (true, Some(Err(reason))) = (uses_tool(trial), &self.perf_tool) {
                let name = &loaded.scenario.name;
                let reason = format!("no perf to record with: {reason}");
                self.take(ScenarioResult::not_run(name, Outcome::InfraError, reason))?;
                continue;
            }
            let started = match executor.take() {
                Some(running) => running,
                None => self.start_host()?,
            };
            let running = executor.insert(started);
            let (mut result, made, host_failed) = self.run_trials(running.as_mut(), loaded, trial);
            if self.interrupt.is_set() {
                // What was cut short by the user says nothing.
                break;
            }
            if host_failed {
                executor = None;
            }
            self.keep_replay(loaded, &made, &mut result);
            self.take(result)?;
        }
        Ok(())
    }

    fn start_host(&mut self) -> Result<Box<dyn Executor>, CommandError> {
        let (host, kernel) = (self.setup.kvm_host, self.kernel);
        let tool = self.perf_tool.as_ref().and_then(|it| it.as_ref().ok());
        let tool = tool.map(PathBuf::as_path);
        let (provider, spinner, interrupt) = (self.provider, self.spinner, self.interrupt);
        let seed = self.setup.seed;
        let executor = provider.executor(host, seed, kernel, tool, spinner, interrupt)?;
        self.host = executor.host();
        Ok(executor)
    }

    /// Keeps a file from which the trial can be made again, where it failed.
    fn keep_replay(&mut self, loaded: &Loaded, made: &Made, result: &mut ScenarioResult) {
        let setup = self.setup;
        let kept = match &setup.artifacts {
            Some(artifacts) => replay::keep(setup, artifacts, loaded, made, self.kernel, result),
            None => Ok(()),
        };
        self.unkept.extend(kept.err());
    }

    /// All trials of a scenario, up to the first that is not good: what came of them, of which of them it is, and whether
    /// the KVM host failed in it.
    fn run_trials(
        &mut self,
        executor: &mut dyn Executor,
        loaded: &Loaded,
        plan: &TrialPlan,
    ) -> (ScenarioResult, Made, bool) {
        let mut tally = Tally::new(plan, self.setup.trials, self.setup.token);
        let in_time = self.setup.seed.is_some();
        loop {
            let preemptions = tally.preemptions(plan);
            let start = Instant::now();
            let recorded = match preemptions.as_slice() {
                [] => self.record(executor, plan),
                some => self.record(executor, &explore::with(plan, some)),
            };
            let host_failed = recorded.is_err();
            let result = self.judge(loaded, plan, recorded, start.elapsed());
            if let Some(result) = tally.take(plan, result, &preemptions, self.kernel.symbols()) {
                return (result, tally.made(plan, in_time), host_failed);
            }
            if self.interrupt.is_set() {
                return (tally.so_far(plan), tally.made(plan, in_time), false);
            }
        }
    }

    fn record(
        &self,
        executor: &mut dyn Executor,
        trial: &TrialPlan,
    ) -> Result<Recording, InfraError> {
        self.spinner.step(&trial.scenario);
        executor.run(trial, self.spinner)
    }

    fn judge(
        &mut self,
        loaded: &Loaded,
        trial: &TrialPlan,
        recorded: Result<Recording, InfraError>,
        duration: Duration,
    ) -> ScenarioResult {
        let recording = recorded.unwrap_or_else(|error| Recording {
            console: error.console,
            end: TrialEnd::Infra {
                reason: error.reason,
            },
            ..Recording::default()
        });
        let judge = Judge {
            invariants: self.analysis.invariants,
            findings: self.analysis.findings.as_ref(),
            symbols: self.kernel.symbols(),
            compare_snapshots: self.setup.compare_snapshots,
        };
        let trace_sha256 = self.setup.seed.and_then(|_| recording.sha256());
        let mut result = judge.judge(Case {
            loaded,
            plan: trial,
            end: &recording.end,
            trace: Trace::decode(&recording),
            duration,
        });
        result.trace_sha256 = trace_sha256;
        if let Some(artifacts) = &self.setup.artifacts
            && let Err(error) = artifacts.keep(&mut result, &recording)
        {
            self.unkept.push(error.into());
        }
        result
    }

    /// Shows a result and takes it.
    fn take(&mut self, result: ScenarioResult) -> Result<(), CommandError> {
        if !self.setup.show {
            self.results.push(result);
            return Ok(());
        }
        let mut text = table::row(&result, self.width);
        text.push('\n');
        if let Some(hash) = &result.trace_sha256 {
            text.push_str(&format!("  trace sha256 {hash}\n"));
        }
        if result.outcome.class() != OutcomeClass::Good && result.outcome != Outcome::Skip {
            let symbols = result.trace.as_ref().map(|trace| &trace.user_symbols);
            let names = Names {
                kernel: self.kernel.symbols(),
                user: symbols.map(Vec::as_slice).unwrap_or_default(),
            };
            text.push_str(&failure::block(&result, names));
            if let (true, Some(trace)) = (self.setup.all_events, &result.trace) {
                text.push_str(&failure::all_events(trace, names));
            }
        }
        self.spinner.suspend(|| print(&text))?;
        self.results.push(result);
        Ok(())
    }
}
