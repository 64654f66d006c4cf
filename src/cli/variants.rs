//! `unwindlab variants`.

use crate::host::choice::KvmHost;
use clap::Args;
use std::path::PathBuf;
use std::time::Instant;

use super::args::BuildOptions;
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::variants::{self, VariantsRequest};
use crate::report::html;
use crate::report::output_file::OutputFile;

/// `unwindlab variants`.
#[derive(Debug, Args)]
pub struct VariantsArgs {
    /// Scenarios to run [default: those of ./scenarios, or else of the built-in library].
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// Build only this variant; repeatable.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// The kernel that the variants are patches to.
    #[command(flatten)]
    pub build: BuildOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
    /// Write a report for a browser, one HTML file: each figure as a plot, and the table.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub html: Option<PathBuf>,
}

/// Builds and runs the variants and prints the comparison; the exit code: 0 where all could be
/// measured, whatever they do wrong.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn variants(
    args: &VariantsArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let start = Instant::now();
    let file = args.html.as_deref().map(OutputFile::create).transpose()?;
    let request = VariantsRequest {
        scenarios: args.scenarios.clone(),
        only: args.only.clone(),
        base: args.build.choice(),
        kvm_host: args.kvm_host,
    };
    let table = variants::variants(&request, context, &mut |column| {
        spinner.print(&match &column.error {
            Some(error) => format!("{}: not measured: {error}\n", column.name),
            None => format!("{}: measured\n", column.name),
        })
    })?;
    spinner.clear();
    spinner.print(&format!(
        "\n{}\n{:.0} s\n",
        table.table(),
        start.elapsed().as_secs_f64()
    ))?;
    if let Some(file) = file {
        file.finish(html::variants::html(&table, start.elapsed())?)?;
    }
    Ok(class_code(table.class()))
}
