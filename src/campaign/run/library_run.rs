//! The scenarios of a library, one after the other on one KVM host.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::tally::{Tally, TrialIdentity};
use super::{SkipReason, TrialOptions};
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::campaign::replay_file::{KeptTrials, ReplayRun};
use crate::host::provider::{HostRequest, ProviderError, TestKernel};
use crate::judge::{Case, Judge, Outcome, ScenarioResult};
use crate::scenario::Loaded;
use unwindlab_abi::WorkloadKind;
use unwindlab_abi::plan::CompiledProgram;
use unwindlab_engine::plan::{Executor, InfraError, TrialPlan};
use unwindlab_engine::runner::explore;
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_oracle::trace::{Recording, Trace};

fn uses_tool(trial: &TrialPlan) -> bool {
    trial.guest.perf_tool.is_some()
}

fn uses_program(trial: &TrialPlan) -> bool {
    trial.guest.workload.kind == WorkloadKind::CProgram
}

/// The scenarios of a library, one after the other.
pub(in crate::campaign) struct LibraryRun<'a> {
    options: &'a TrialOptions,
    /// Where logs and replay files are kept, if they are.
    kept: Option<KeptTrials<'a>>,
    kernel: &'a dyn TestKernel,
    context: Context<'a>,
    /// The distribution's perf, or why it is not available, where a scenario uses it.
    perf_tool: Option<Result<PathBuf, ProviderError>>,
    /// What a workload executes, where scenarios use it.
    program: Option<Result<CompiledProgram, ProviderError>>,
    /// What the KVM host says of itself.
    pub(super) host: String,
    pub(in crate::campaign) results: Vec<ScenarioResult>,
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
            kernel,
            context,
            perf_tool: None,
            program: None,
            host: "none".to_owned(),
            results: Vec::new(),
            unkept: Vec::new(),
        }
    }

    /// Runs the scenarios of `library`, each with the trial of the same place in `trials`. A KVM
    /// host that failed is replaced for the scenarios that follow; the one it failed in is not run
    /// again, lest a flaky host go unseen.
    pub(in crate::campaign) fn run_all(
        &mut self,
        library: &[Loaded],
        trials: &[Result<TrialPlan, SkipReason>],
        finished: &mut dyn FnMut(&ScenarioResult) -> io::Result<()>,
    ) -> Result<(), CampaignError> {
        let mut executor = None;
        if trials.iter().flatten().any(uses_tool) {
            self.perf_tool = Some(self.context.provider.perf_tool(self.context.progress));
        }
        if trials.iter().flatten().any(uses_program) {
            self.program = Some(self.context.provider.c_program(self.context.progress));
        }
        for (loaded, trial) in library.iter().zip(trials) {
            if self.context.interrupt.is_set() {
                break;
            }
            let missing = trial.as_ref().ok().and_then(|trial| self.missing(trial));
            let result = match (trial, missing) {
                (Err(SkipReason(reason)), _) => not_run(loaded, Outcome::Skip, reason.clone()),
                (_, Some(reason)) => not_run(loaded, Outcome::InfraError, reason),
                (Ok(trial), None) => {
                    let trial = self.with_program(trial);
                    match self.run_one(&mut executor, loaded, &trial)? {
                        Some(result) => result,
                        None => break,
                    }
                }
            };
            finished(&result)?;
            self.results.push(result);
        }
        Ok(())
    }

    /// What a trial needs and could not be had.
    fn missing(&self, trial: &TrialPlan) -> Option<String> {
        match (&self.perf_tool, &self.program) {
            (Some(Err(reason)), _) if uses_tool(trial) => {
                Some(format!("no perf to record with: {reason}"))
            }
            (_, Some(Err(reason))) if uses_program(trial) => {
                Some(format!("no program to execute: {reason}"))
            }
            _ => None,
        }
    }

    /// The trial with the program that its workload executes.
    fn with_program<'t>(&self, trial: &'t TrialPlan) -> Cow<'t, TrialPlan> {
        let mut trial = Cow::Borrowed(trial);
        if let Some(Ok(program)) = &self.program
            && uses_program(&trial)
        {
            trial.to_mut().guest.workload.program = Some(program.clone());
        }
        trial
    }

    /// Runs one scenario, on the KVM host of the one before if it still runs. Returns nothing if
    /// the user interrupts it: a scenario that was cut short says nothing.
    fn run_one(
        &mut self,
        executor: &mut Option<Box<dyn Executor>>,
        loaded: &Loaded,
        trial: &TrialPlan,
    ) -> Result<Option<ScenarioResult>, CampaignError> {
        let mut running = match executor.take() {
            Some(running) => running,
            None => self.start_host()?,
        };
        let (mut result, identity, host_failed) = self.run_trials(running.as_mut(), loaded, trial);
        if self.context.interrupt.is_set() {
            return Ok(None);
        }
        *executor = (!host_failed).then_some(running);
        if let Some(kept) = &self.kept {
            let trial = ReplayRun {
                seed: self.options.seed,
                trials: identity.trials,
                token: identity.token.map(|token| token.to_string()),
                witness: self.options.witness,
            };
            let compared = self.options.compare_snapshots;
            let replay = kept.keep_replay(trial, loaded, compared, self.kernel, &mut result);
            self.unkept.extend(replay.err());
        }
        Ok(Some(result))
    }

    fn start_host(&mut self) -> Result<Box<dyn Executor>, ProviderError> {
        let tool = self.perf_tool.as_ref().and_then(|it| it.as_ref().ok());
        let request = HostRequest {
            kvm_host: self.options.kvm_host,
            seed: self.options.seed,
            perf_tool: tool.map(PathBuf::as_path),
            peer: None,
        };
        let executor = self.context.start(request, self.kernel)?;
        self.host = executor.host();
        Ok(executor)
    }

    /// Makes the trials of a scenario up to the first that is not good. Returns the result, which
    /// trial gave it, and whether the KVM host failed.
    fn run_trials(
        &mut self,
        executor: &mut dyn Executor,
        loaded: &Loaded,
        plan: &TrialPlan,
    ) -> (ScenarioResult, TrialIdentity, bool) {
        let mut tally = Tally::new(plan, self.options.trials, self.options.token);
        let in_time = self.options.seed.is_some();
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
                return (result, tally.identity(plan, in_time), host_failed);
            }
            if self.context.interrupt.is_set() {
                return (tally.so_far(plan), tally.identity(plan, in_time), false);
            }
        }
    }

    fn record(
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
        let recording = recorded.unwrap_or_else(|error| Recording {
            console: error.console,
            end: TrialEnd::Infra {
                reason: error.reason,
            },
            ..Recording::default()
        });
        let judge = Judge {
            invariants: self.context.analysis.invariants,
            findings: self.context.analysis.findings.as_ref(),
            symbols: self.kernel.symbols(),
            compare_snapshots: self.options.compare_snapshots,
        };
        let trace_sha256 = self.options.seed.and_then(|_| recording.sha256());
        let mut result = judge.judge(Case {
            loaded,
            plan: trial,
            end: &recording.end,
            trace: Trace::decode(&recording),
            duration,
        });
        result.trace_sha256 = trace_sha256;
        if let Some(kept) = &self.kept
            && let Err(error) = kept.artifacts.keep(&mut result, &recording)
        {
            self.unkept.push(error.into());
        }
        result
    }
}

fn not_run(loaded: &Loaded, outcome: Outcome, reason: String) -> ScenarioResult {
    ScenarioResult::not_run(&loaded.scenario.name, outcome, reason)
}
