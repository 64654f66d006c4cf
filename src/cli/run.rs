//! `unwindlab run`: scenarios to results.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::analysis::Analysis;
use super::args::RunArgs;
use super::error::{CommandError, show};
use super::kernel;
use super::output::print;
use super::progress::Spinner;
use super::session::{Session, Setup};
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{Provider, TestKernel};
use crate::interrupt::Interrupt;
use crate::judge::outcome::{EXIT_INTERRUPTED, EXIT_UNTESTED};
use crate::judge::{ScenarioResult, exit_code};
use crate::plan::TrialPlan;
use crate::report::artifacts::{Artifacts, OutputFile};
use crate::report::json::{self, Setting};
use crate::report::{junit, table};
use crate::scenario::{Library, Loaded, ResolveError, ScenarioErrors, resolve};

/// The result files that the user wants, known to be writable.
#[derive(Debug)]
struct Outputs {
    json: Option<OutputFile>,
    junit: Option<OutputFile>,
}

fn setup(args: &RunArgs, analysis: &Analysis) -> Result<Setup, CommandError> {
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
    Ok(Setup {
        library: scenarios,
        kvm_host: args.kvm_host,
        seed: seed(args)?,
        trials: args.trials,
        token: args.token,
        compare_snapshots: !args.no_snapshots,
        artifacts: Some(Artifacts::open(args.artifacts.as_deref())?),
        all_events: false,
        kernel: args.kernel.clone(),
        show: true,
    })
}

/// The seed of a deterministic run.
fn seed(args: &RunArgs) -> Result<Option<u64>, CommandError> {
    if args.deterministic && args.kvm_host == KvmHost::Native {
        return Err(CommandError::Usage(
            "--deterministic needs the emulated KVM host: a native one has its own time".to_owned(),
        ));
    }
    Ok(args.deterministic.then_some(args.seed))
}

/// Runs scenarios and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing was run.
pub fn run(
    args: RunArgs,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    let request = kernel::request(&args.kernel)?;
    let setup = setup(&args, analysis)?;
    let outputs = Outputs::open(args.json, args.junit)?;
    let ran = run_with(&setup, &request, provider, analysis, interrupt)?;
    let unwritten = write(outputs, &ran.setting, &ran.results, ran.elapsed);
    for error in unwritten.iter().chain(&ran.unkept) {
        show(error);
    }
    let all_kept = unwritten.is_empty() && ran.unkept.is_empty();
    let outcomes = ran.results.iter().map(|result| result.outcome);
    Ok(match exit_code(outcomes) {
        _ if interrupt.is_set() => EXIT_INTERRUPTED,
        0 if !all_kept => EXIT_UNTESTED,
        code => code,
    })
}

/// What came of a run.
pub(super) struct Ran {
    pub(super) results: Vec<ScenarioResult>,
    pub(super) setting: Setting,
    elapsed: Duration,
    /// What could not be kept.
    unkept: Vec<CommandError>,
}

/// Runs the scenarios of a setup on a kernel, and prints what came of each.
pub(super) fn run_with(
    setup: &Setup,
    request: &KernelRequest,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<Ran, CommandError> {
    let start = Instant::now();
    let spinner = Spinner::new();
    let kernel = provider.fetch(request, &spinner, interrupt)?;
    if interrupt.is_set() {
        return Err(CommandError::Interrupted);
    }
    let trials = resolve_all(&setup.library, kernel.as_ref())?;
    let mut session = Session::new(
        setup,
        provider,
        kernel.as_ref(),
        analysis,
        &spinner,
        interrupt,
    );
    session.run_all(&trials)?;
    let setting = Setting {
        kernel_spec: request.to_string(),
        kernel_release: kernel.release().to_owned(),
        kernel_hash: kernel.hash().to_owned(),
        kvm_host: session.host().to_owned(),
    };
    let (results, unkept) = session.finish();
    spinner.clear();
    print(&format!(
        "{} on {}, KVM host {}\n",
        table::summary(&results, start.elapsed()),
        setting.kernel_release,
        setting.kvm_host
    ))?;
    Ok(Ran {
        results,
        setting,
        elapsed: start.elapsed(),
        unkept,
    })
}

impl Outputs {
    fn open(json: Option<PathBuf>, junit: Option<PathBuf>) -> Result<Self, CommandError> {
        let open = |path: Option<PathBuf>| path.map(|path| OutputFile::create(&path)).transpose();
        Ok(Self {
            json: open(json)?,
            junit: open(junit)?,
        })
    }
}

/// Resolves all scenarios before any is run, so that a wrong one is known at once; of one that this
/// kernel has nothing for there is the reason why.
fn resolve_all(
    library: &[Loaded],
    kernel: &dyn TestKernel,
) -> Result<Vec<Result<TrialPlan, String>>, CommandError> {
    let mut plans = Vec::new();
    let mut errors = Vec::new();
    for loaded in library {
        let (symbols, hash) = (kernel.symbols(), kernel.hash());
        match resolve(&loaded.file, &loaded.scenario, symbols, hash) {
            Ok(plan) => plans.push(Ok(plan)),
            Err(ResolveError::Unsupported(lack)) => plans.push(Err(lack.to_string())),
            Err(ResolveError::Scenario(ScenarioErrors(found))) => errors.extend(found),
        }
    }
    if errors.is_empty() {
        Ok(plans)
    } else {
        Err(CommandError::Scenario(ScenarioErrors(errors)))
    }
}

/// Writes the result files; why some could not be written.
fn write(
    outputs: Outputs,
    setting: &Setting,
    results: &[ScenarioResult],
    elapsed: Duration,
) -> Vec<CommandError> {
    let json = outputs.json.map(|file| -> Result<(), CommandError> {
        let lines: Result<String, _> = results.iter().map(|it| json::line(setting, it)).collect();
        Ok(file.finish(&lines?)?)
    });
    let junit = outputs.junit.map(|file| -> Result<(), CommandError> {
        Ok(file.finish(&junit::xml(setting, results, elapsed)?)?)
    });
    [json, junit]
        .into_iter()
        .flatten()
        .filter_map(Result::err)
        .collect()
}
