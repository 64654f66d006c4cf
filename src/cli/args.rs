//! The command line as typed by the user: the commands, and the options that several of them take.
//! Each command turns its part into a campaign's request; nothing else looks at it.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

use unwindlab_guest_kernel::confine::Policy;

use super::bench::BenchArgs;
use super::bisect::BisectArgs;
use super::check::CheckArgs;
use super::costs::CostsArgs;
use super::doctor::DoctorArgs;
use super::merge::MergeArgs;
use super::mutants::MutantsArgs;
use super::replay::ReplayArgs;
use super::report::ReportArgs;
use super::run::RunArgs;
use super::series::SeriesArgs;
use super::setups::SetupsArgs;
use super::soak::SoakArgs;
use super::sweep::SweepArgs;
use super::variants::VariantsArgs;

/// Test deferred user-space unwinding in Linux kernels.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
    /// Log progress to stderr (-vv: debug messages too).
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Refuse to build a kernel, and to start QEMU, where they cannot be confined.
    #[arg(long, global = true, conflicts_with = "no_sandbox")]
    pub require_sandbox: bool,
    /// Confine neither builds nor QEMU: a tree's Makefiles get your rights. For debugging.
    #[arg(long, global = true)]
    pub no_sandbox: bool,
    /// Boot the outer machine of an emulated KVM host rather than go on from a saved one, and save none.
    #[arg(long, global = true)]
    pub fresh: bool,
}

impl Cli {
    /// What is done where a process cannot be confined.
    #[must_use]
    pub const fn policy(&self) -> Policy {
        match (self.require_sandbox, self.no_sandbox) {
            (true, _) => Policy::Require,
            (_, true) => Policy::Off,
            _ => Policy::Warn,
        }
    }
}

const EXIT_CODES: &str = "Exit codes:
  0    every scenario passed, or failed exactly as a listed finding does
  1    a scenario failed, hung or made the guest panic
  2    usage error or invalid scenario file; nothing was run
  125  could not be tested: skip, boot-error, timeout or infra-error
  130  interrupted";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run scenarios and check what the tracers recorded.
    Run(RunArgs),
    /// Make many trials of each scenario and say how often it fails at most.
    Soak(SoakArgs),
    /// Judge what perf recorded on any machine.
    Check(CheckArgs),
    /// Fetch, build and list kernels.
    #[command(subcommand)]
    Kernel(KernelCommand),
    /// Build deliberately broken kernels and report which scenario catches each.
    Mutants(MutantsArgs),
    /// Build the alternative designs and compare their behaviour.
    Variants(VariantsArgs),
    /// Build and test every patch of a series, in order.
    Series(SeriesArgs),
    /// Inject an NMI at every instruction between a request and the return to user mode.
    Sweep(SweepArgs),
    /// Make one report of the parts of a command that several machines ran (`--shard`).
    Merge(MergeArgs),
    /// Test set-ups of perf events: combinations of what perf_event_open takes.
    Setups(SetupsArgs),
    /// Count what a sample with a user stack costs: frame pointers, `SFrame`, a copied stack.
    Costs(CostsArgs),
    /// Repeat a failed trial from its replay file.
    Replay(ReplayArgs),
    /// Find the commit that broke a scenario.
    Bisect(BisectArgs),
    /// Measure performance against QEMU on the same KVM host.
    Bench(BenchArgs),
    /// Check the files in the cache.
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Show which of the known findings are in a kernel's code, and at which instructions.
    Findings(FindingsArgs),
    /// Write what a kernel maintainer wants of a finding: a mail, a patch, a reproducer.
    Report(ReportArgs),
    /// List scenarios, and what they are for.
    List(ListArgs),
    /// Write a commented scenario to begin with.
    New(NewArgs),
    /// Look for errors in scenario files, without a machine.
    Lint(LintArgs),
    /// Print what an invariant, a finding or an outcome means.
    Explain(ExplainArgs),
    /// Print the JSON schema of scenario files or of results.
    Schema(SchemaArgs),
    /// Show which KVM host, kernel and QEMU would be used, and why; or test a KVM.
    Doctor(DoctorArgs),
    /// Print the manual page, or write one page for each command to a folder.
    Man(ManArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
}

/// `unwindlab schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// What it describes.
    #[arg(value_enum, default_value_t, value_name = "OF")]
    pub of: SchemaOf,
}

/// What a JSON schema describes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SchemaOf {
    /// Scenario files.
    #[default]
    Scenario,
    /// Lines of `run --json`.
    Result,
}

/// The kernel under test: an existing one (`--kernel`), or one built from source.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Kernel")]
pub struct KernelOptions {
    /// Use an existing kernel: `stock` (Debian's newest 7.x), `stock:7.0`, or `path:FILE` (a
    /// vmlinux or bzImage) [default: stock; of `replay` what the file names; of `check` the installed
    /// kernel of the recording's release].
    #[arg(long, value_name = "SPEC", conflicts_with_all = ["tree", "rev", "source", "patch", "config"])]
    pub kernel: Option<String>,
    /// How to build it from source.
    #[command(flatten)]
    pub build: BuildOptions,
}

/// What a kernel is built from.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Kernel from source")]
pub struct BuildOptions {
    /// Build the Linux source tree in this folder, with its uncommitted changes. The folder is
    /// never written to.
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Build this revision of the git repository in --tree instead.
    #[arg(long, value_name = "REV", requires = "tree")]
    pub rev: Option<String>,
    /// Build Debian's kernel source: `debian` (the newest 7.x) or `debian:7.2`; or the release under it, without
    /// Debian's patches: `upstream`.
    #[arg(long, value_name = "SOURCE", conflicts_with = "tree")]
    pub source: Option<String>,
    /// Apply a patch: a file, `mutant:NAME`, `variant:NAME`, `proposal:NAME`, `fix:NAME` or
    /// `fix:all`; repeatable. Without --tree, it is applied to Debian's source.
    #[arg(long, value_name = "PATCH")]
    pub patch: Vec<String>,
    /// Add to unwindlab's kernel configuration: a file with .config lines, `debug` (lockdep, KASAN
    /// and RCU checks) or `dwarf` (source lines); repeatable.
    #[arg(long, value_name = "FRAGMENT")]
    pub config: Vec<String>,
}

/// `unwindlab new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// Its name. It is written to NAME.yaml, which must not be there.
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// `unwindlab lint`.
#[derive(Debug, Args)]
pub struct LintArgs {
    /// Scenario files, folders or names, as of `run` [default: those of ./scenarios, or else of the
    /// built-in library].
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
}

/// `unwindlab list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Scenario files, folders, names or patterns, as of `run` [default: those of ./scenarios, or else
    /// of the built-in library].
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
}

/// `unwindlab explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// An invariant (C7), a finding (F001) or an outcome (hang) [default: list all of them].
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

/// `unwindlab findings`.
#[derive(Debug, Args)]
pub struct FindingsArgs {
    /// The kernel to look at.
    #[command(flatten)]
    pub kernel: KernelOptions,
}

/// Which returns to user mode are noted.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Trials")]
pub struct WitnessOptions {
    /// Note every return to user mode, up to a million of them [default: what the scenario says, or
    /// the first 20,000].
    #[arg(long, conflicts_with = "no_witness")]
    witness: bool,
    /// Note no returns to user mode, whatever the scenario says.
    #[arg(long)]
    no_witness: bool,
}

impl WitnessOptions {
    /// What the command line says, if anything.
    #[must_use]
    pub const fn choice(self) -> Option<bool> {
        match (self.witness, self.no_witness) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

/// What to show of a failure besides the reason and the events around it.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Detail")]
pub struct Detail {
    /// Show every event of the trial, not only those around a violation (in a sweep, with --point).
    #[arg(long)]
    pub trace: bool,
    /// Disassemble N instructions of the path on either side of the NMI (in a sweep, with --point).
    /// The path is the one recorded without the NMI.
    #[arg(long, value_name = "N")]
    pub instructions: Option<u32>,
}

/// `unwindlab kernel`.
#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Fetch a kernel into the cache.
    Fetch(KernelArgs),
    /// Build a kernel from source, with the lab client, and add it to the cache.
    Build(BuildOptions),
    /// List the kernels in the cache.
    List,
    /// Print the path of a kernel in the cache.
    Path(KernelArgs),
}

/// `unwindlab cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Compare every file with its SHA-256, and set damaged entries aside. Exit code 1 if there are any.
    Verify,
    /// List the entries and the build folders with the room that each takes.
    List,
    /// Remove saved outer machines: all, or those that the options name; or the build folders. They are made again.
    Prune(PruneArgs),
}

/// `unwindlab cache prune`.
#[derive(Debug, Clone, Copy, Args)]
pub struct PruneArgs {
    /// Those that no command has used for so many days.
    #[arg(long, value_name = "DAYS")]
    pub unused_for: Option<u32>,
    /// Those used longest ago, until the others take so many MiB at most.
    #[arg(long, value_name = "MIB")]
    pub at_most: Option<u32>,
    /// Remove the build folders instead, but those in use. The kernels built in them stay; the next build of each source begins anew.
    #[arg(long, conflicts_with_all = ["unused_for", "at_most"])]
    pub builds: bool,
}

/// A kernel.
#[derive(Debug, Args)]
pub struct KernelArgs {
    /// The kernel: `stock` (Debian's newest 7.x), `stock:7.0`, or `path:FILE` (a vmlinux or
    /// bzImage).
    #[arg(value_name = "SPEC", default_value = "stock")]
    pub kernel: String,
}

/// `unwindlab man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write `unwindlab.1`, `unwindlab-run.1` and so on to this folder, which must exist.
    #[arg(value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
}

/// `unwindlab completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}
