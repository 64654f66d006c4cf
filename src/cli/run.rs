//! `unwindlab run`: scenarios to results.

use std::time::{Duration, Instant};

use super::args::{KvmHost, RunArgs};
use super::error::{CommandError, show};
use super::lab::{Analysis, Lab, TestKernel};
use super::output::print;
use super::progress::Spinner;
use crate::report::artifacts::{Artifacts, OutputFile};
use crate::report::json::{self, Setting};
use crate::report::names::Names;
use crate::report::outcome::{EXIT_INTERRUPTED, EXIT_UNTESTED, Verdict};
use crate::report::{Case, Judge, Outcome, ScenarioResult, exit_code, failure, junit, table};
use crate::runner::{Executor, InfraError, Interrupt, Progress as _, TrialPlan};
use crate::scenario::{Library, Loaded, ResolveError, ScenarioErrors, resolve};
use crate::trace::Recording;
use crate::trace::recording::TrialEnd;

/// A run with everything that the user chose resolved. Its files are known to be writable.
#[derive(Debug)]
struct RunPlan {
    library: Vec<Loaded>,
    kernel: String,
    kvm_host: KvmHost,
    compare_snapshots: bool,
    json: Option<OutputFile>,
    junit: Option<OutputFile>,
    artifacts: Artifacts,
}

impl RunPlan {
    fn new(args: RunArgs, analysis: &Analysis) -> Result<Self, CommandError> {
        let Library { mut scenarios } = Library::open(&args.scenarios, &analysis.invariant_ids())?;
        if !args.filter.is_empty() {
            scenarios.retain(|loaded| {
                let name = loaded.scenario.name.as_str();
                args.filter.iter().any(|text| name.contains(text.as_str()))
            });
        }
        if scenarios.is_empty() {
            return Err(CommandError::Usage(
                "no scenario's name contains the --filter; `unwindlab list` shows them".to_owned(),
            ));
        }
        let open = |path: Option<_>| {
            path.map(|path: std::path::PathBuf| OutputFile::create(&path))
                .transpose()
        };
        Ok(Self {
            library: scenarios,
            kernel: args.kernel,
            kvm_host: args.kvm_host,
            compare_snapshots: !args.no_snapshots,
            json: open(args.json)?,
            junit: open(args.junit)?,
            artifacts: Artifacts::open(args.artifacts.as_deref())?,
        })
    }
}

/// Runs scenarios and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing was run, or the results cannot be written.
pub fn run(
    args: RunArgs,
    lab: &dyn Lab,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    let start = Instant::now();
    let plan = RunPlan::new(args, analysis)?;
    let spinner = Spinner::new();
    let kernel = lab.fetch(&plan.kernel, &spinner, interrupt)?;
    let trials = resolve_all(&plan.library, kernel.as_ref())?;
    let mut session = Session {
        plan: &plan,
        kernel: kernel.as_ref(),
        analysis,
        spinner: &spinner,
        interrupt,
        width: plan
            .library
            .iter()
            .map(|it| it.scenario.name.len())
            .max()
            .unwrap_or(0),
        results: Vec::new(),
        unkept: Vec::new(),
    };
    let host = match trials {
        Trials::Unsupported(reason) => {
            session.skip_all(&reason)?;
            "none".to_owned()
        }
        Trials::Planned(trials) => {
            let mut executor = lab.executor(plan.kvm_host, &spinner, interrupt)?;
            session.run_all(&trials, executor.as_mut())?;
            executor.host()
        }
    };
    let Session {
        results, unkept, ..
    } = session;
    spinner.clear();
    let setting = Setting {
        kernel_spec: plan.kernel.clone(),
        kernel_release: kernel.release().to_owned(),
        kernel_hash: kernel.hash().to_owned(),
        kvm_host: host,
    };
    print(&format!(
        "{} on {}, KVM host {}\n",
        table::summary(&results, start.elapsed()),
        setting.kernel_release,
        setting.kvm_host
    ))?;
    let code = exit_code(results.iter().map(|result| result.outcome));
    let unwritten = write_files(plan, &setting, &results, start.elapsed());
    for error in unwritten.iter().chain(&unkept) {
        show(error);
    }
    let all_kept = unwritten.is_empty() && unkept.is_empty();
    Ok(match code {
        _ if interrupt.is_set() => EXIT_INTERRUPTED,
        0 if !all_kept => EXIT_UNTESTED,
        code => code,
    })
}

enum Trials {
    /// The kernel has nothing to test.
    Unsupported(String),
    /// One for each scenario.
    Planned(Vec<TrialPlan>),
}

/// Resolves all scenarios before any is run, so that a wrong one is known at once.
fn resolve_all(library: &[Loaded], kernel: &dyn TestKernel) -> Result<Trials, CommandError> {
    let mut plans = Vec::new();
    let mut errors = Vec::new();
    for loaded in library {
        let (symbols, hash) = (kernel.symbols(), kernel.hash());
        match resolve(&loaded.file, &loaded.scenario, symbols, hash) {
            Ok(plan) => plans.push(plan),
            Err(ResolveError::Unsupported(reason)) => return Ok(Trials::Unsupported(reason)),
            Err(ResolveError::Scenario(ScenarioErrors(found))) => errors.extend(found),
        }
    }
    if errors.is_empty() {
        Ok(Trials::Planned(plans))
    } else {
        Err(CommandError::Scenario(ScenarioErrors(errors)))
    }
}

/// The scenarios of a run, one after the other.
struct Session<'a> {
    plan: &'a RunPlan,
    kernel: &'a dyn TestKernel,
    analysis: &'a Analysis,
    spinner: &'a Spinner,
    interrupt: &'a Interrupt,
    width: usize,
    results: Vec<ScenarioResult>,
    /// Logs that could not be kept; the rest of the run is worth more than they are.
    unkept: Vec<CommandError>,
}

impl Session<'_> {
    fn skip_all(&mut self, reason: &str) -> Result<(), CommandError> {
        for loaded in &self.plan.library {
            let name = &loaded.scenario.name;
            self.finish(ScenarioResult::not_run(
                name,
                Outcome::Skip,
                reason.to_owned(),
            ))?;
        }
        Ok(())
    }

    fn run_all(
        &mut self,
        trials: &[TrialPlan],
        executor: &mut dyn Executor,
    ) -> Result<(), CommandError> {
        for (loaded, trial) in self.plan.library.iter().zip(trials) {
            if self.interrupt.is_set() {
                break;
            }
            self.spinner.step(&trial.scenario);
            let start = Instant::now();
            let recorded = executor.run(trial, self.spinner);
            if self.interrupt.is_set() {
                // What was cut short by the user says nothing.
                break;
            }
            let result = self.result(loaded, trial, recorded, start.elapsed());
            self.finish(result)?;
        }
        Ok(())
    }

    fn result(
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
            invariants: &self.analysis.invariants,
            findings: self.analysis.findings.as_ref(),
            canonical: &self.analysis.canonical,
            compare_snapshots: self.plan.compare_snapshots,
        };
        let mut result = judge.judge(Case {
            loaded,
            plan: trial,
            end: &recording.end,
            trace: (self.analysis.decode)(&recording),
            duration,
        });
        if let Err(error) = self.plan.artifacts.keep(&mut result, &recording) {
            self.unkept.push(error.into());
        }
        result
    }

    /// Shows a result and takes it.
    fn finish(&mut self, result: ScenarioResult) -> Result<(), CommandError> {
        let mut text = table::row(&result, self.width);
        text.push('\n');
        if result.outcome.verdict() == Verdict::Bad {
            let symbols = result
                .trace
                .as_ref()
                .map(|trace| trace.user_symbols.as_slice());
            let names = Names {
                kernel: self.kernel.symbols(),
                user: symbols.unwrap_or_default(),
            };
            text.push_str(&failure::block(&result, names));
        }
        self.spinner.suspend(|| print(&text))?;
        self.results.push(result);
        Ok(())
    }
}

/// Writes the result files; what could not be written.
fn write_files(
    plan: RunPlan,
    setting: &Setting,
    results: &[ScenarioResult],
    elapsed: Duration,
) -> Vec<CommandError> {
    let json = plan.json.map(|file| -> Result<(), CommandError> {
        let lines: Result<String, _> = results.iter().map(|it| json::line(setting, it)).collect();
        Ok(file.finish(&lines?)?)
    });
    let junit = plan.junit.map(|file| -> Result<(), CommandError> {
        Ok(file.finish(&junit::xml(setting, results, elapsed)?)?)
    });
    [json, junit]
        .into_iter()
        .flatten()
        .filter_map(Result::err)
        .collect()
}
