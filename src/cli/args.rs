//! The command line as typed by the user. Resolved once, in [`super::run`] and
//! [`super::kernel`]; nothing else looks at it.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

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
    /// Only scenarios whose name contains this; may be given more than once.
    #[arg(long, value_name = "TEXT")]
    pub filter: Vec<String>,
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
    /// A patch to apply: a file, `mutant:NAME`, or `variant:NAME`; may be given more than once.
    /// Without --tree, to Debian's source.
    #[arg(long, value_name = "PATCH")]
    pub patch: Vec<String>,
    /// Configuration on top of unwindlab's: a file with lines of a .config, or `debug` (lockdep,
    /// KASAN, RCU's checks); may be given more than once.
    #[arg(long, value_name = "FRAGMENT")]
    pub config: Vec<String>,
}

/// Where KVM comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum KvmHost {
    /// `native` where a probe guest shows that it runs kernels, else `emulated`.
    #[default]
    Auto,
    /// This machine's /dev/kvm.
    Native,
    /// A Linux with KVM in QEMU's TCG.
    Emulated,
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
