//! `unwindlab replay`.

use super::args::ReplayArgs;
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use super::run::RunPrinter;
use super::sweep::failure_text;
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::campaign::replay::{self, ReplayEvent, ReplayRequest, ReplayResult};
use crate::campaign::replay_file::{ReplayFile, ReplayTrial};
use crate::campaign::sweep::SweepEvent;

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
    let mut printer = RunPrinter::new(spinner, args.detail.trace);
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
    spinner.print(&format!("{result} {}{trace}\n", summary.place))?;
    Ok(class_code(summary.result.class()))
}
