//! `unwindlab merge`.

use std::path::PathBuf;

use clap::Args;

use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::merge::{MergeEvent, MergeRequest, MergedSweep, merge as merge_files};
use crate::judge::outcome::OutcomeClass;
use crate::report::names::Names;
use crate::report::output_file::OutputFile;
use crate::report::sweep::report;
use unwindlab_engine::text::printable;

/// `unwindlab merge`.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// The files of all parts, in any order: of `sweep --shard`, those of --resume.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Write the result of all parts as JSON. Of a sweep, `sweep --resume` without --shard goes on from it
    /// and tries what is missing.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub json: Option<PathBuf>,
}

/// Merges and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where the files do not belong together, or have no result.
pub fn merge(
    args: &MergeArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let file = args.json.as_deref().map(OutputFile::create).transpose()?;
    let request = MergeRequest {
        files: args.files.clone(),
    };
    let mut json = None;
    let class = merge_files(&request, context, &mut |event| match event {
        MergeEvent::Swept(merged) => {
            json = Some(serde_json::to_string(merged.record));
            spinner.print(&swept(merged, args.files.len()))
        }
    })?;
    if let (Some(file), Some(json)) = (file, json) {
        file.finish(format!("{}\n", json?))?;
    }
    Ok(class_code(class))
}

/// The report of a sweep.
fn swept(merged: &MergedSweep<'_>, files: usize) -> String {
    let path = &merged.record.path;
    let names = Names {
        kernel: path,
        user: &[],
    };
    let mut text = report(&merged.summary, names);
    text += &format!(
        "on {}, merged from {files} files\n",
        printable(&path.release)
    );
    for why in merged.lacks {
        text += &format!("NOT COMPLETE: {}\n", printable(why));
    }
    if merged.class == OutcomeClass::Untested && merged.lacks.is_empty() {
        text += "NOT COMPLETE: points were not tried, or not steady\n";
    }
    text
}
