//! `unwindlab bench`.

use crate::host::choice::KvmHost;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

use super::args::KernelOptions;
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::bench::MOST_ROUNDS;
use crate::bench::rows::Row;
use crate::campaign::Context;
use crate::campaign::bench::{BenchRequest, measure};
use crate::report::bench::{self as report, block, record};
use crate::report::output_file::OutputFile;
use unwindlab_guest_kernel::confine::{self, Policy};

/// `unwindlab bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Measure only this row; repeatable [default: those that take a minute or less].
    #[arg(long, value_enum, value_name = "ROW")]
    pub only: Vec<Row>,
    /// Also time runs of the whole library, from a saved machine and with --fresh.
    #[arg(long)]
    pub library: bool,
    /// Number of times to measure each figure.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_ROUNDS)))]
    pub rounds: u32,
    /// Write the figures as JSON Lines.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Compare the figures with those of an earlier --json. Exit code 1 if one is worse beyond noise.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// The source tree of unwindlab that clean-build, first-run and tests build. It is only read.
    #[arg(long, value_name = "DIR")]
    pub checkout: Option<PathBuf>,
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

/// Measures, and prints some lines for each figure; the exit code: 1 where a figure is worse than in the file of
/// `--against`, 0 where all was measured, whatever the figures are.
///
/// # Errors
/// [`CommandError`] where nothing could be measured.
pub fn bench(
    args: &BenchArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let json = args.json.as_deref().map(OutputFile::create).transpose()?;
    let request = request(args)?;
    let summary = measure(&request, context, &mut |line| spinner.print(&block(line)))?;
    spinner.clear();
    let (setting, machine) = (&summary.setting, &summary.machine);
    spinner.print(&report::setting(setting, machine))?;
    if let (Some(file), Some((earlier, changes))) = (&args.against, &summary.against) {
        let file = file.display().to_string();
        spinner.print(&report::changes(&file, earlier, changes))?;
    }
    if let Some(file) = json {
        let lines = summary.lines.iter();
        let records: Result<String, _> = lines.map(|it| record(setting, machine, it)).collect();
        file.finish(&records?)?;
    }
    Ok(class_code(summary.class()))
}

fn request(args: &BenchArgs) -> Result<BenchRequest, CommandError> {
    let rows = rows(args);
    if let Some(row) = rows.iter().find(|row| row.needs_checkout()) {
        let is_source = |it: &PathBuf| it.join("Cargo.toml").is_file();
        let message = match &args.checkout {
            Some(it) if is_source(it) => None,
            Some(it) => Some(format!("{} has no Cargo.toml", it.display())),
            None => Some("say with --checkout where the source is".to_owned()),
        };
        if let Some(message) = message {
            return Err(CommandError::Usage(format!("{}: {message}", row.name())));
        }
    }
    if rows.contains(&Row::Edit) && args.kernel.kernel.is_some() {
        let message = "edit: a kernel of --kernel has no source that could be edited";
        return Err(CommandError::Usage(message.to_owned()));
    }
    Ok(BenchRequest {
        rows,
        rounds: args.rounds,
        peer: args.peer.clone(),
        kernel: args.kernel.choice(),
        kvm_host: args.kvm_host,
        run_options: run_options(args),
        checkout: args.checkout.clone(),
        against: args.against.clone(),
    })
}

/// Those that are named, else the usual ones.
fn rows(args: &BenchArgs) -> Vec<Row> {
    let wanted = |row: &Row| match args.only.is_empty() {
        true => row.is_usual() || (*row == Row::Library && args.library),
        false => args.only.contains(row) || (*row == Row::Library && args.library),
    };
    Row::ALL.into_iter().filter(wanted).collect()
}

/// Options of `unwindlab run` for the same kernel and KVM host, confined as this command's are.
fn run_options(args: &BenchArgs) -> Vec<OsString> {
    let (kernel, build) = (&args.kernel.kernel, &args.kernel.build);
    let mut options: Vec<OsString> = Vec::new();
    match confine::policy() {
        Policy::Require => options.push("--require-sandbox".into()),
        Policy::Off => options.push("--no-sandbox".into()),
        Policy::Warn => {}
    }
    let mut add = |name: &str, value: Option<OsString>| {
        options.extend(value.into_iter().flat_map(|value| [name.into(), value]));
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
    options
}
