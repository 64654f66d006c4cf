//! `unwindlab soak`.

use std::io;
use std::path::PathBuf;

use clap::Args;

use super::args::{KernelOptions, WitnessOptions};
use super::error::{CommandError, class_code, show};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::part::PartRequest;
use crate::campaign::run::soak::{self, SoakEvent};
use crate::campaign::run::{RunRequest, TrialOptions, jobs_of_this_machine};
use crate::host::choice::KvmHost;
use crate::judge::outcome::{EXIT_INTERRUPTED, EXIT_UNTESTED, OutcomeClass};
use crate::judge::soak::Soaked;
use crate::report::artifacts::Artifacts;
use crate::report::output_file::LineFile;
use crate::report::soak::{BOUND, heading, record, row, totals};
use unwindlab_engine::plan::Shard;

/// `unwindlab soak`.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// Scenario files, folders or names, as of `run` [default: those of ./scenarios, or else of the
    /// built-in library].
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// The kernel under test.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
    /// Number of trials of each scenario.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub trials: u32,
    /// Whether returns to user mode are noted.
    #[command(flatten)]
    pub witness: WitnessOptions,
    /// How many trials are made at a time, each on a KVM host of its own. Those with several vCPUs are made alone. Without it, as many
    /// as the machine has CPUs and memory for.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub jobs: Option<u8>,
    /// Write a record for each scenario as JSON Lines; with --shard a line for each trial, and what stands in the file is not made again.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Make only part I of N parts of the trials. All N parts, on any machines, make the trials that the soak without this makes;
    /// `unwindlab merge` makes one report of their --json files.
    #[arg(long, value_name = "I/N", requires = "json")]
    pub shard: Option<Shard>,
    /// Keep the logs of each scenario's first trial that is not good in this folder [default:
    /// ./unwindlab-out].
    #[arg(long, value_name = "FOLDER")]
    pub artifacts: Option<PathBuf>,
}

/// Makes the trials and prints a row for each scenario; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing was run.
pub fn soak(args: &SoakArgs, context: Context<'_>, spinner: &Spinner) -> Result<u8, CommandError> {
    let part = { args.shard.zip(args.json.clone()) };
    let part = part.map(|(shard, file)| PartRequest { shard, file });
    let records = args.json.as_deref().filter(|_| part.is_none());
    let mut json = records.map(LineFile::create).transpose()?;
    let request = RunRequest {
        scenarios: args.scenarios.clone(),
        filter: Vec::new(),
        kernel: args.kernel.choice(),
        trials: TrialOptions {
            kvm_host: args.kvm_host,
            trials: Some(args.trials),
            jobs: args.jobs.map_or_else(jobs_of_this_machine, usize::from),
            compare_snapshots: true,
            witness: args.witness.choice(),
            ..TrialOptions::default()
        },
        artifacts: Some(Artifacts::open(args.artifacts.as_deref())?),
        part,
        ..RunRequest::default()
    };
    let mut width = 0;
    let summary = soak::soak(&request, context, &mut |event| match event {
        SoakEvent::Started(names) => {
            width = names.iter().map(String::len).max().unwrap_or(0);
            spinner.print(&heading(width))
        }
        SoakEvent::Soaked(setting, soaked) => {
            spinner.print(&row(soaked, width))?;
            // As soon as it is there: whoever is killed later keeps it.
            json.as_mut().map_or(Ok(()), |file| {
                let record = record(setting, soaked)?;
                file.write(&record).map_err(io::Error::other)
            })
        }
    })?;
    spinner.clear();
    spinner.print(&format!(
        "{} in {:.1} s on {}, KVM host {}\n{BOUND}",
        totals(&summary.soaked),
        summary.elapsed.as_secs_f64(),
        summary.setting.kernel_release,
        summary.setting.kvm_host
    ))?;
    for error in &summary.unkept {
        show(error);
    }
    if let Some(file) = json {
        file.finish()?;
    }
    Ok(match Soaked::class_of(&summary.soaked) {
        _ if context.interrupt.is_set() => EXIT_INTERRUPTED,
        OutcomeClass::Good if !summary.unkept.is_empty() => EXIT_UNTESTED,
        class => class_code(class),
    })
}
