//! The command line as typed by the user. Each command turns its part into a campaign's request;
//! nothing else looks at it.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

use super::values;
use crate::bench::rows::Row;
use crate::campaign::sweep::PointNumber;
use crate::host::choice::KvmHost;
use crate::plan::Token;
use crate::scenario::place::KernelPlace;

/// Finds out whether a Linux kernel with deferred user-space unwinding is right.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Log to stderr what is done (-vv: in detail).
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}

const EXIT_CODES: &str = "Exit codes:
  0    all scenarios passed, or failed as a listed finding
  1    a failure, hang or guest panic
  2    wrong usage or scenario file; nothing was run
  125  could not be tested: skip, boot-error, timeout, infra-error
  130  interrupted";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run scenarios and judge what the tracers got.
    Run(RunArgs),
    /// Get kernels, and see which are there.
    #[command(subcommand)]
    Kernel(KernelCommand),
    /// Build kernels that are wrong on purpose, and see which scenario tells.
    Mutants(MutantsArgs),
    /// Build the design alternatives and compare what they do.
    Variants(VariantsArgs),
    /// Build and judge every patch of a series, in order.
    Series(SeriesArgs),
    /// Try an NMI at every instruction from a request to the return to user mode.
    Sweep(SweepArgs),
    /// Make one failing trial of a sweep again, from its file.
    Replay(ReplayArgs),
    /// Find the commit that broke a scenario.
    Bisect(BisectArgs),
    /// Measure what is promised, against QEMU in the same KVM host.
    Bench(BenchArgs),
    /// List the scenarios of the library.
    List,
    /// Print the JSON schema of scenario files.
    Schema,
    /// Say which KVM host is used and why, and what is missing.
    Doctor,
}

/// `unwindlab run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Scenario files, folders of them, or names from the library; all of ./scenarios (else of
    /// the built-in library) where none is given.
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// The kernel under test.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Where KVM comes from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST")]
    pub kvm_host: KvmHost,
    /// Count time in instructions, on an emulated KVM host for each scenario: the same seed gives the
    /// same trace each time, its times included. Slower, two vCPUs several times.
    #[arg(long)]
    pub deterministic: bool,
    /// Which of the many interleavings that can be.
    #[arg(
        long,
        value_name = "N",
        requires = "deterministic",
        default_value_t = 0
    )]
    pub seed: u64,
    /// Only scenarios whose name contains this; may be given more than once.
    #[arg(long, value_name = "TEXT")]
    pub filter: Vec<String>,
    /// Run each scenario so many times, from the same boot; the first trial that does not pass is
    /// reported. (A scenario with `explore` says for itself how many.)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub trials: Option<u32>,
    /// Of a scenario with `explore` only this trial, by the token that its failure was reported with.
    #[arg(long, value_name = "SEED:TRIAL", conflicts_with = "trials")]
    pub token: Option<Token>,
    /// Write the results, traces included, as JSON Lines.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the results as JUnit XML.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Keep the logs of every guest in this folder; without it, those of guests that did not
    /// pass, in ./unwindlab-out.
    #[arg(long, value_name = "FOLDER")]
    pub artifacts: Option<PathBuf>,
    /// Do not compare with snapshots.
    #[arg(long)]
    pub no_snapshots: bool,
}

/// The kernel under test: one that is there (`--kernel`), or one built from source.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Kernel")]
pub struct KernelOptions {
    /// `stock`, `stock:7.0`, or `path:FILE`; `stock` where nothing else is said.
    #[arg(long, value_name = "SPEC", conflicts_with_all = ["tree", "rev", "source", "patch", "config"])]
    pub kernel: Option<String>,
    /// Build it.
    #[command(flatten)]
    pub build: BuildOptions,
}

/// What a kernel is built from.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Kernel from source")]
pub struct BuildOptions {
    /// A folder with the source of Linux, as it is now. It is only read.
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// A revision of the git repository in --tree.
    #[arg(long, value_name = "REV", requires = "tree")]
    pub rev: Option<String>,
    /// `debian`, or `debian:7.2`: the newest linux-source of Debian's archive.
    #[arg(long, value_name = "SOURCE", conflicts_with = "tree")]
    pub source: Option<String>,
    /// A patch to apply: a file, `mutant:NAME`, `variant:NAME`, or `fix:NAME`; may be given
    /// more than once. Without --tree, to Debian's source.
    #[arg(long, value_name = "PATCH")]
    pub patch: Vec<String>,
    /// Configuration on top of unwindlab's: a file with lines of a .config, `debug` (lockdep,
    /// KASAN, RCU's checks), or `dwarf` (lines of the source); may be given more than once.
    #[arg(long, value_name = "FRAGMENT")]
    pub config: Vec<String>,
}

/// `unwindlab mutants`.
#[derive(Debug, Args)]
pub struct MutantsArgs {
    /// Run these on every mutant, instead of those that each mutant names.
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// Only this mutant; may be given more than once.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Run the whole library on every mutant.
    #[arg(long)]
    pub all: bool,
    /// Sweep the mutants whose window is a single NMI, instead of running scenarios made for them.
    #[arg(long, conflicts_with_all = ["scenarios", "all"])]
    pub sweep: bool,
    /// The kernel that the mutants are made of.
    #[command(flatten)]
    pub build: BuildOptions,
    /// Where KVM comes from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST")]
    pub kvm_host: KvmHost,
}

/// `unwindlab variants`.
#[derive(Debug, Args)]
pub struct VariantsArgs {
    /// Scenarios; all of the library where none is given.
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// Only this variant; may be given more than once.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// The kernel that the variants are made of.
    #[command(flatten)]
    pub build: BuildOptions,
    /// Where KVM comes from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST")]
    pub kvm_host: KvmHost,
}

/// `unwindlab series`.
#[derive(Debug, Args)]
pub struct SeriesArgs {
    /// An mbox, a folder of patches (by name, or in the order of a file `series`), or a range A..B
    /// of the repository in --tree.
    #[arg(value_name = "SERIES")]
    pub series: PathBuf,
    /// Scenarios; all of the library where none is given.
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// The revision of the repository in --tree that the series is for.
    #[arg(long, value_name = "REV", conflicts_with = "rev")]
    pub base: Option<String>,
    /// What the series is applied to.
    #[command(flatten)]
    pub build: BuildOptions,
    /// Where KVM comes from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST")]
    pub kvm_host: KvmHost,
}

/// `unwindlab sweep`.
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// The scenario: a file, or a name from the library. Its first NMI at an instruction of the
    /// kernel is the request at which the path begins.
    #[arg(value_name = "SCENARIO")]
    pub scenario: PathBuf,
    /// The kernel under test.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Leave the request out: the path is that of an entry in which nobody has asked yet, from the same
    /// instruction on.
    #[arg(long)]
    pub no_request: bool,
    /// Begin the path behind this instruction of the kernel instead (`symbol+offset`, `file:line`), without a
    /// request: the scenario's own clients may have made some.
    #[arg(long, value_name = "PLACE")]
    pub from: Option<KernelPlace>,
    /// Two NMIs a trial: a second one at each boundary of the path as the first one changed it. First NMIs
    /// that leave the same machine behind are tried together.
    #[arg(long)]
    pub pairs: bool,
    /// With --pairs: every pair is tried, also those behind first NMIs that leave the same behind.
    #[arg(long, requires = "pairs")]
    pub all: bool,
    /// Each instruction once, the first time it is executed, instead of every time.
    #[arg(long = "static")]
    pub once: bool,
    /// Only in this function of the kernel; may be given more than once. With --pairs: both NMIs.
    #[arg(long = "function", value_name = "NAME")]
    pub functions: Vec<String>,
    /// Only this point of the path, by its number; with --pairs only those behind it, or with N:M that pair. May
    /// be given more than once. What went wrong there is shown with the events around it.
    #[arg(long = "point", value_name = "N[:M]", conflicts_with = "functions")]
    pub points: Vec<PointNumber>,
    /// What else is shown of a failure at a --point.
    #[command(flatten)]
    pub detail: Detail,
    /// Stop after so many seconds of trials.
    #[arg(long, value_name = "SECONDS")]
    pub budget: Option<u64>,
    /// Write to this file what was tried and found, and go on from there where it exists: for a sweep that
    /// was stopped.
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Machines that work side by side.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub jobs: u32,
    /// Compare the whole machine with its checkpoint each time it was put back: slow.
    #[arg(long)]
    pub check_restores: bool,
    /// Write what was done with each line of the source, as HTML; needs a kernel with debug information
    /// (`--source debian --config dwarf`).
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Where KVM comes from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST")]
    pub kvm_host: KvmHost,
}

/// What is shown of a failure besides why, and the events around it.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Detail")]
pub struct Detail {
    /// Show every event of the trial, not only those around a violation (of a sweep: with --point).
    #[arg(long)]
    pub trace: bool,
    /// Show so many instructions of the path before the NMI and behind it, as they are without it (of a sweep: with
    /// --point).
    #[arg(long, value_name = "N")]
    pub instructions: Option<u32>,
}

/// `unwindlab replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// A replay file, as a sweep writes one for each distinct failure, and a run for each trial that failed.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Another kernel than the one it failed on.
    #[command(flatten)]
    pub on: KernelOptions,
    /// What else is shown.
    #[command(flatten)]
    pub detail: Detail,
    /// Where KVM comes from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST")]
    pub kvm_host: KvmHost,
}

/// `unwindlab bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Only this row; may be given more than once. Without it, all but the library.
    #[arg(long, value_enum, value_name = "ROW")]
    pub only: Vec<Row>,
    /// Run the whole library once, too.
    #[arg(long)]
    pub library: bool,
    /// How often each number is measured.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Write the figures as JSON Lines.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Compare with the QEMU in this folder (program, `lib/` with its loader, `firmware/`) instead of
    /// Debian's.
    #[arg(long, value_name = "FOLDER")]
    pub peer: Option<PathBuf>,
    /// The kernel that is booted.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Where KVM comes from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST")]
    pub kvm_host: KvmHost,
}

/// `unwindlab bisect`.
#[derive(Debug, Args)]
pub struct BisectArgs {
    /// The scenario that tells good from bad: a file, or a name from the library.
    #[arg(value_name = "SCENARIO")]
    pub scenario: PathBuf,
    /// A revision that is good.
    #[arg(long, value_name = "REV")]
    pub good: String,
    /// A revision that is bad.
    #[arg(long, value_name = "REV")]
    pub bad: String,
    /// The git repository. It is only read.
    #[arg(long, value_name = "DIR")]
    pub tree: PathBuf,
    /// What is searched for: the fall of this invariant. Without it, what most runs of the bad
    /// revision show.
    #[arg(long, value_name = "ID")]
    pub invariant: Option<String>,
    /// How often the bad revision is run to learn how often it fails.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// With which chance a commit that is called good is good, at least.
    #[arg(long, value_name = "SHARE", default_value_t = 0.99, value_parser = values::share)]
    pub confidence: f64,
    /// What was found so far; with the same arguments, the search goes on from there. By default a
    /// file `unwindlab-bisect-*.jsonl` in this folder.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// A patch to apply to every commit; may be given more than once.
    #[arg(long, value_name = "PATCH")]
    pub patch: Vec<String>,
    /// Configuration on top of unwindlab's; may be given more than once.
    #[arg(long, value_name = "FRAGMENT")]
    pub config: Vec<String>,
    /// Where KVM comes from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST")]
    pub kvm_host: KvmHost,
}

/// `unwindlab kernel`.
#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Get a kernel into the cache.
    Fetch(KernelArgs),
    /// Build a kernel from source, with the lab client, into the cache.
    Build(BuildOptions),
    /// List the kernels in the cache.
    List,
    /// Print where a kernel in the cache is.
    Path(KernelArgs),
}

/// A kernel.
#[derive(Debug, Args)]
pub struct KernelArgs {
    /// `stock`, `stock:7.0`, or `path:FILE`.
    #[arg(value_name = "SPEC", default_value = "stock")]
    pub kernel: String,
}
