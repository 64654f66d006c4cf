//! `unwindlab check`.

use std::path::PathBuf;

use clap::Args;

use super::args::KernelOptions;
use super::error::CommandError;
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::check::{self, CheckRequest, Checked};
use crate::host::provider::TestKernel;
use crate::judge::Outcome;
use crate::judge::outcome::{EXIT_UNTESTED, OutcomeClass};
use crate::judge::recorded::Unknown;
use crate::report::names::Names;
use crate::report::{failure, recording, table};

/// `unwindlab check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// What `perf record --call-graph fp,defer` wrote, to a file or to a pipe; `-` is standard input.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Nothing else asked for user stacks, before the recording or beside it: an answer that no sample asked for is
    /// then a violation.
    #[arg(long, help_heading = None)]
    pub alone: bool,
    /// Show every event, not only those around a violation.
    #[arg(long, help_heading = None)]
    pub trace: bool,
    /// The kernel that was recorded [default: /boot/vmlinuz-RELEASE of this machine].
    #[command(flatten)]
    pub kernel: KernelOptions,
}

/// Judges recordings and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where a file is none that can be judged.
pub fn check(
    args: &CheckArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let request = CheckRequest {
        files: args.files.clone(),
        kernel: args.kernel.is_given().then(|| args.kernel.choice()),
        alone: args.alone,
    };
    let mut print = |checked: Checked<'_>| spinner.print(&text(&checked, args.trace));
    let outcomes = check::check(&request, context, &mut print)?;
    // A recording of which nothing was exercised is no pass, whatever the others are.
    let classes = outcomes.into_iter().map(Outcome::class);
    Ok(match OutcomeClass::of_all(classes) {
        OutcomeClass::Good => 0,
        OutcomeClass::Bad => 1,
        OutcomeClass::Untested => EXIT_UNTESTED,
    })
}

fn text(checked: &Checked<'_>, all_events: bool) -> String {
    let result = checked.result;
    let names = Names {
        kernel: checked.kernel.map_or(&Unknown as &_, TestKernel::symbols),
        user: &[],
    };
    let mut text = table::row(result, 0);
    text.push('\n');
    if let Some(data) = checked.data {
        text.push_str(&recording::about(
            result,
            data,
            checked.no_kernel.as_deref(),
        ));
        text.push_str(&failure::block(result, names));
        text.push_str(&recording::answers(result));
    }
    if let (true, Some(trace)) = (all_events, &result.trace) {
        text.push_str(&failure::all_events(trace, names));
    }
    text
}
