//! `unwindlab bench`.

use crate::host::choice::KvmHost;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

use super::args::KernelOptions;
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::bench::rows::Row;
use crate::campaign::Context;
use crate::campaign::bench::{BenchRequest, measure};
use crate::report::bench::{block, record};
use crate::report::output_file::OutputFile;

/// `unwindlab bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Measure only this row; repeatable [default: all but library and host-starts].
    #[arg(long, value_enum, value_name = "ROW")]
    pub only: Vec<Row>,
    /// Also time one run of the whole library.
    #[arg(long)]
    pub library: bool,
    /// Number of times to measure each figure.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Write the figures as JSON Lines.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Compare with the QEMU in this folder (its program, `lib/` with the dynamic loader, and
    /// `firmware/`) instead of Debian's.
    #[arg(long, value_name = "FOLDER")]
    pub peer: Option<PathBuf>,
    /// The kernel to boot.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
}

/// Measures, and prints some lines for each figure; the exit code: 0 where all was measured,
/// whatever the figures are.
///
/// # Errors
/// [`CommandError`] where nothing could be measured.
pub fn bench(
    args: &BenchArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let json = args.json.as_deref().map(OutputFile::create).transpose()?;
    let request = BenchRequest {
        rows: rows(args),
        rounds: args.rounds,
        peer: args.peer.clone(),
        kernel: args.kernel.choice(),
        kvm_host: args.kvm_host,
        library_arguments: run_arguments(args),
    };
    let summary = measure(&request, context, &mut |line| spinner.print(&block(line)))?;
    spinner.clear();
    let setting = &summary.setting;
    spinner.print(&format!(
        "on {}, KVM host {}\n",
        setting.kernel_release, setting.kvm_host
    ))?;
    if let Some(file) = json {
        let records = summary.lines.iter().map(|line| record(setting, line));
        let records: Result<String, _> = records.collect();
        file.finish(&records?)?;
    }
    Ok(class_code(summary.class()))
}

/// Those that are named, else those that share a KVM host: the others take long.
fn rows(args: &BenchArgs) -> Vec<Row> {
    let wanted = |row: &Row| match args.only.is_empty() {
        true => row.shares_host() || (*row == Row::Library && args.library),
        false => args.only.contains(row) || (*row == Row::Library && args.library),
    };
    Row::ALL.into_iter().filter(wanted).collect()
}

/// `unwindlab run` on the same kernel and KVM host.
fn run_arguments(args: &BenchArgs) -> Vec<OsString> {
    let (kernel, build) = (&args.kernel.kernel, &args.kernel.build);
    let mut arguments: Vec<OsString> = vec!["run".into()];
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
    add("--kvm-host", Some(args.kvm_host.name().into()));
    arguments
}
