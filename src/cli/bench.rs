//! `unwindlab bench`: what is promised, measured.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser as _, ValueEnum as _};

use super::analysis::Analysis;
use super::args::{BenchArgs, Cli, Command, SweepArgs};
use super::error::CommandError;
use super::kernel;
use super::output::print;
use super::progress::Spinner;
use super::sweep;
use crate::bench::rows::{self, Bench, Line, Row};
use crate::host::choice::KvmHost;
use crate::host::provider::{Provider, ProviderError, TestKernel};
use crate::interrupt::Interrupt;
use crate::judge::outcome::EXIT_UNTESTED;
use crate::plan::MachineSpec;
use crate::plan::TrialPlan;
use crate::plan::sweep::SweepPlan;
use crate::report::artifacts::OutputFile;
use crate::report::bench::{block, record};
use crate::report::json::Setting;
use crate::scenario::{Library, Loaded, ResolveError, resolve};

/// The scenario that is swept, and whose trial is made by reboot.
const SWEPT: &str = "nmi-in-syscall";
/// The scenario whose records are decoded.
const RECORDED: &str = "many-threads-2-vcpus";

/// Measures, and prints a line or more for each row; the exit code: 0 where all was measured, whatever the
/// figures are.
///
/// # Errors
/// [`CommandError`] where nothing could be measured.
pub fn bench(
    args: &BenchArgs,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    let request = kernel::request(&args.kernel)?;
    let json = args.json.as_deref().map(OutputFile::create).transpose()?;
    let rows = rows(args);
    let spinner = Spinner::new();
    let kernel = provider.fetch(&request, &spinner, interrupt)?;
    let mut lines = Vec::new();
    let mut take = |line: Line| -> Result<(), CommandError> {
        if interrupt.is_set() {
            return Err(CommandError::Interrupted);
        }
        spinner.suspend(|| print(&block(&line)))?;
        lines.push(line);
        Ok(())
    };
    let mut kvm_host = "as of `run`".to_owned();
    if rows.iter().any(|row| *row != Row::Library) {
        let sweep = sweep_plan(kernel.as_ref(), analysis)?;
        let recorded = trial(RECORDED, kernel.as_ref(), analysis)?;
        let peer = provider.peer(args.peer.as_deref(), &spinner);
        let dir = peer.as_ref().ok().map(PathBuf::as_path);
        let mut executor =
            provider.bench_host(args.kvm_host, kernel.as_ref(), dir, &spinner, interrupt)?;
        kvm_host = executor.host();
        let mut bench = Bench {
            executor: executor.as_mut(),
            missing_peer: peer.as_ref().err().map(ToString::to_string),
            rounds: args.rounds,
            machine: MachineSpec::of(&sweep.trial),
            sweep,
            recorded,
            invariants: analysis.invariants,
            findings: analysis.findings.as_ref(),
            symbols: kernel.symbols(),
            progress: &spinner,
        };
        bench.measure(&rows, &mut take)?;
    }
    if rows.contains(&Row::Library) {
        take(rows::library(&run_arguments(args)))?;
    }
    spinner.clear();
    let setting = Setting {
        kernel_spec: request.to_string(),
        kernel_release: kernel.release().to_owned(),
        kernel_hash: kernel.hash().to_owned(),
        kvm_host,
    };
    print(&format!(
        "on {}, KVM host {}\n",
        setting.kernel_release, setting.kvm_host
    ))?;
    if let Some(file) = json {
        let records: Result<String, _> = lines.iter().map(|line| record(&setting, line)).collect();
        file.finish(&records?)?;
    }
    let all = !lines.is_empty() && lines.iter().all(Line::is_measured);
    Ok(if all { 0 } else { EXIT_UNTESTED })
}

/// Those that are named, else all but the library, which takes long.
fn rows(args: &BenchArgs) -> Vec<Row> {
    let wanted = |row: &Row| match args.only.is_empty() {
        true => *row != Row::Library || args.library,
        false => args.only.contains(row) || (*row == Row::Library && args.library),
    };
    let all = Row::value_variants().iter().copied();
    all.filter(wanted).collect()
}

/// A whole sweep, as the command makes it.
fn sweep_plan(kernel: &dyn TestKernel, analysis: &Analysis) -> Result<SweepPlan, CommandError> {
    let args = sweep_args()?;
    let points = |kernel: &dyn TestKernel| sweep::points(&args, kernel.symbols());
    sweep::plan(&args, &loaded(SWEPT, analysis)?, kernel, &points)
}

/// Its usual options.
fn sweep_args() -> Result<SweepArgs, CommandError> {
    match Cli::try_parse_from(["unwindlab", "sweep", SWEPT]) {
        Ok(Cli {
            command: Command::Sweep(args),
            ..
        }) => Ok(args),
        _ => Err(CommandError::Usage(
            "a sweep has no usual options".to_owned(),
        )),
    }
}

fn loaded(name: &str, analysis: &Analysis) -> Result<Loaded, CommandError> {
    let library = Library::open(&[PathBuf::from(name)], &analysis.invariant_ids())?;
    let loaded = library.scenarios.into_iter().next();
    loaded.ok_or_else(|| CommandError::Usage(format!("no scenario {name}")))
}

fn trial(
    name: &str,
    kernel: &dyn TestKernel,
    analysis: &Analysis,
) -> Result<TrialPlan, CommandError> {
    let Loaded { file, scenario, .. } = loaded(name, analysis)?;
    resolve(&file, &scenario, kernel.symbols(), kernel.hash()).map_err(|error| match error {
        ResolveError::Unsupported(lack) => ProviderError::Unavailable(lack.to_string()).into(),
        ResolveError::Scenario(errors) => CommandError::Scenario(errors),
    })
}

/// Which kernel and KVM host, for a command of its own.
fn run_arguments(args: &BenchArgs) -> Vec<OsString> {
    let (kernel, build) = (&args.kernel.kernel, &args.kernel.build);
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |name: &str, value: Option<OsString>| {
        arguments.extend(value.into_iter().flat_map(|value| [name.into(), value]));
    };
    add("--kernel", kernel.clone().map(Into::into));
    add("--tree", build.tree.clone().map(Into::into));
    add("--rev", build.rev.clone().map(Into::into));
    add("--source", build.source.clone().map(Into::into));
    for patch in &build.patch {
        add("--patch", Some(patch.into()));
    }
    for fragment in &build.config {
        add("--config", Some(fragment.into()));
    }
    let host = KvmHost::to_possible_value(&args.kvm_host);
    add("--kvm-host", host.map(|host| host.get_name().into()));
    arguments
}
