//! `unwindlab soak`.

use std::io;
use std::path::PathBuf;

use clap::Args;

use super::args::{KernelOptions, WitnessOptions};
use super::error::{CommandError, class_code, show};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::run::soak::{self, SoakEvent, SoakSummary};
use crate::campaign::run::{RunRequest, TrialOptions};
use crate::host::choice::KvmHost;
use crate::judge::outcome::{EXIT_INTERRUPTED, EXIT_UNTESTED, OutcomeClass};
use crate::judge::soak::Soaked;
use crate::report::artifacts::Artifacts;
use crate::report::output_file::LineFile;
use crate::report::soak::{heading, record, row};

/// `unwindlab soak`.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// Scenario files, folders or names, as of `run` [default: the whole library].
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
    /// Write a record for each scenario as JSON Lines.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
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
    let mut json = args.json.as_deref().map(LineFile::create).transpose()?;
    let request = RunRequest {
        scenarios: args.scenarios.clone(),
        filter: Vec::new(),
        kernel: args.kernel.choice(),
        trials: TrialOptions {
            kvm_host: args.kvm_host,
            compare_snapshots: true,
            witness: args.witness.choice(),
            ..TrialOptions::default()
        },
        artifacts: Some(Artifacts::open(args.artifacts.as_deref())?),
        ..RunRequest::default()
    };
    let mut width = 0;
    let summary = soak::soak(&request, args.trials, context, &mut |event| match event {
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
    spinner.print(&last_line(&summary))?;
    for error in &summary.unkept {
        show(error);
    }
    if let Some(file) = json {
        file.finish()?;
    }
    Ok(match class(&summary) {
        _ if context.interrupt.is_set() => EXIT_INTERRUPTED,
        OutcomeClass::Good if !summary.unkept.is_empty() => EXIT_UNTESTED,
        class => class_code(class),
    })
}

/// As of a run: a skip beside other scenarios does not count.
fn class(summary: &SoakSummary) -> OutcomeClass {
    let run = summary.soaked.iter().filter(|it| it.skipped.is_none());
    let verdicts = run.map(Soaked::verdict);
    OutcomeClass::of_all(verdicts)
}

fn last_line(summary: &SoakSummary) -> String {
    let SoakSummary {
        soaked, setting, ..
    } = summary;
    let skipped = soaked.iter().filter(|it| it.skipped.is_some()).count();
    let run = soaked.iter().filter(|it| it.skipped.is_none());
    let (judged, failed, planned) = run.fold((0, 0, 0), |(judged, failed, planned), it| {
        (
            judged + u64::from(it.judged()),
            failed + u64::from(it.failures()),
            planned + u64::from(it.planned),
        )
    });
    format!(
        "{judged} of {planned} trials judged, {failed} failed; {} scenarios, {skipped} skipped, in {:.1} s on {}, KVM host {}\n\
         <=: bound of the failure rate, if trials are independent\n",
        soaked.len(),
        summary.elapsed.as_secs_f64(),
        setting.kernel_release,
        setting.kvm_host
    )
}
