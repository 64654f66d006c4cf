//! `unwindlab replay`.

use super::args::{Detail, KernelOptions};
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use super::run::RunPrinter;
use super::sweep::failure_text;
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::campaign::replay::{self, ReplayEvent, ReplayRequest, ReplayResult};
use crate::campaign::replay_file::{ReplayFile, ReplayTrial};
use crate::campaign::sweep::SweepEvent;
use crate::host::choice::KvmHost;
use crate::judge::flaky::FlakyIs;
use crate::report::tap::Format;
use clap::Args;
use std::path::PathBuf;

/// `unwindlab replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The replay file: a sweep writes one for each distinct failure, a run one for each scenario
    /// that failed.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Another kernel than the one that the trial failed on.
    #[command(flatten)]
    pub on: KernelOptions,
    /// What else to show.
    #[command(flatten)]
    pub detail: Detail,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
}

/// Makes the trial again; the exit code: 1 where it fails in the same way, 0 where it passes, 125
/// where neither is known.
///
/// # Errors
/// [`CommandError`].
pub fn replay(
    args: &ReplayArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let file = ReplayFile::read(&args.file).map_err(CampaignError::from)?;
    if matches!(file.replay.trial, ReplayTrial::Run(_)) && args.detail.instructions.is_some() {
        let reason = "--instructions are of a sweep's trial, and this is one of a run";
        return Err(CommandError::Usage(reason.to_owned()));
    }
    let other = args.on.choice();
    let request = ReplayRequest {
        file,
        kernel: (other.kernel.is_some() || other.builds()).then_some(other),
        kvm_host: args.kvm_host,
    };
    let mut printer = RunPrinter::new(spinner, Format::Text, FlakyIs::Fail, args.detail.trace);
    let summary = replay::replay(&request, context, &mut |event| match event {
        ReplayEvent::Run(event) => printer.take(event),
        ReplayEvent::Sweep(SweepEvent::Failed(failure)) => {
            spinner.print(&failure_text(&failure, args.detail))
        }
        ReplayEvent::Sweep(_) => Ok(()),
    })?;
    spinner.clear();
    let result = match summary.result {
        ReplayResult::SameFailure { .. } => "fails the same way",
        ReplayResult::OtherFailure => "fails in another way",
        ReplayResult::Passes => "passes",
        ReplayResult::NotMade => "the trial could not be made",
    };
    let trace = match summary.result {
        ReplayResult::SameFailure {
            same_trace: Some(true),
        } => ", with the same trace to the byte",
        ReplayResult::SameFailure {
            same_trace: Some(false),
        } => ", with another trace",
        _ => "",
    };
    let mut other = String::new();
    if let Some(told) = &summary.other_kernel {
        tracing::warn!("{told}");
        other = format!("; {told}");
    }
    spinner.print(&format!("{result} {}{trace}{other}\n", summary.place))?;
    Ok(class_code(summary.result.class()))
}
