//! `unwindlab report`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::error::CommandError;
use super::output::print;
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::bug_report::{BugReport, BugReportRequest, bug_report};
use crate::campaign::kernel::KernelChoice;
use crate::report::output_file::{OutputFile, WriteError};

/// `unwindlab report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The finding: F001.
    #[arg(value_name = "FINDING")]
    pub finding: String,
    /// Write the mail, the patch and the reproducer to this folder [default: print mail and patch].
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Use the fix in this file instead of the built-in one.
    #[arg(long, value_name = "FILE")]
    pub fix: Option<PathBuf>,
    /// The Linux source tree that the fix is for. It is never written to.
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// This revision of the git repository in --tree.
    #[arg(long, value_name = "REV", requires = "tree")]
    pub rev: Option<String>,
    /// Debian's kernel source, `debian` or `debian:7.2`, or the release under it, `upstream` [default: debian].
    #[arg(long, value_name = "SOURCE", conflicts_with = "tree")]
    pub source: Option<String>,
}

/// Writes the report of a finding, and what to think of before it is sent.
///
/// # Errors
/// [`CommandError`].
pub fn report(
    args: &ReportArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<(), CommandError> {
    let request = BugReportRequest {
        finding: args.finding.clone(),
        source: KernelChoice {
            tree: args.tree.clone(),
            rev: args.rev.clone(),
            source: args.source.clone(),
            ..KernelChoice::default()
        },
        fix: args.fix.clone(),
    };
    let report = bug_report(&request, context)?;
    match &args.output {
        Some(folder) => {
            for path in write(&report, folder)? {
                spinner.print(&format!("{}\n", path.display()))?;
            }
            spinner.print(&format!("\n{}", report.notes))?;
        }
        None => {
            spinner.print(&report.mail)?;
            print(&format!("\n{}", String::from_utf8_lossy(&report.patch)))?;
            eprint!("\n{}", report.notes);
        }
    }
    Ok(())
}

/// Writes the files, and returns their paths.
fn write(report: &BugReport, folder: &Path) -> Result<Vec<PathBuf>, WriteError> {
    fs::create_dir_all(folder).map_err(|source| WriteError {
        path: folder.to_owned(),
        source,
    })?;
    let reproducer = report.reproducer.as_deref();
    let files = [
        ("mail.txt", Some(report.mail.as_bytes())),
        (report.patch_name.as_str(), Some(report.patch.as_slice())),
        ("reproducer.c", reproducer.map(str::as_bytes)),
    ];
    let mut written = Vec::new();
    for (name, content) in files {
        let Some(content) = content else { continue };
        let path = folder.join(name);
        OutputFile::create(&path)?.finish(content)?;
        written.push(path);
    }
    Ok(written)
}
