//! The command line as typed by the user. Each command turns its part into a campaign's request;
//! nothing else looks at it.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

use super::costs::CostsArgs;
use super::values;
use crate::bench::rows::Row;
use crate::campaign::sweep::{PathPlace, PointNumber};
use crate::host::choice::KvmHost;
use unwindlab_engine::plan::Token;

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
    /// Show which of the known findings are in a kernel's code, and at which instructions.
    Findings(FindingsArgs),
    /// List the scenarios in the library.
    List,
    /// Print the JSON schema of scenario files.
    Schema,
    /// Show which KVM host, kernel and QEMU would be used, and why.
    Doctor,
    /// Print the manual page, or write one page for each command to a folder.
    Man(ManArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
}

/// `unwindlab run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Scenario files, folders of scenario files, or names from the library, also with `*`, `?` and
    /// `[..]` [default: everything in ./scenarios, or else in the built-in library].
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// The kernel under test.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
    /// Count time in executed instructions, so that the same seed always gives the same trace,
    /// timestamps included. Needs an emulated KVM host, and is slower.
    #[arg(long, help_heading = "Trials")]
    pub deterministic: bool,
    /// Seed that selects the interleaving.
    #[arg(
        long,
        value_name = "N",
        requires = "deterministic",
        help_heading = "Trials",
        default_value_t = 0
    )]
    pub seed: u64,
    /// Run only scenarios whose name contains TEXT; repeatable.
    #[arg(long, value_name = "TEXT", help_heading = None)]
    pub filter: Vec<String>,
    /// Run each scenario N times from one boot and report the first trial that does not pass.
    /// Overrides the number of trials of a scenario with `explore`.
    #[arg(
        long,
        value_name = "N",
        help_heading = "Trials",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub trials: Option<u32>,
    /// Repeat one trial of a scenario with `explore`; its report shows the token.
    #[arg(
        long,
        value_name = "SEED:TRIAL",
        conflicts_with = "trials",
        help_heading = "Trials"
    )]
    pub token: Option<Token>,
    /// Whether returns to user mode are noted.
    #[command(flatten)]
    pub witness: WitnessOptions,
    /// Write the results as JSON Lines, with the complete traces.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub json: Option<PathBuf>,
    /// Write the results as JUnit XML.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub junit: Option<PathBuf>,
    /// Keep the logs of every guest in this folder [default: keep the logs of guests that did not
    /// pass in ./unwindlab-out].
    #[arg(long, value_name = "FOLDER", help_heading = "Results")]
    pub artifacts: Option<PathBuf>,
    /// Do not compare traces with the snapshots.
    #[arg(long, help_heading = "Results")]
    pub no_snapshots: bool,
}

/// The kernel under test: an existing one (`--kernel`), or one built from source.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Kernel")]
pub struct KernelOptions {
    /// Use an existing kernel: `stock` (Debian's newest 7.x), `stock:7.0`, or `path:FILE` (a
    /// vmlinux or bzImage) [default: stock].
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
    /// Build Debian's kernel source: `debian` (the newest 7.x) or `debian:7.2`.
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

/// `unwindlab mutants`.
#[derive(Debug, Args)]
pub struct MutantsArgs {
    /// Run these scenarios on every mutant, instead of those that the mutant's patch names.
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// Build only this mutant; repeatable.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Run the whole library on every mutant.
    #[arg(long)]
    pub all: bool,
    /// Sweep the mutants that a single NMI can expose, instead of running the scenarios written
    /// for them.
    #[arg(long, conflicts_with_all = ["scenarios", "all"])]
    pub sweep: bool,
    /// The kernel that the mutants are patches to.
    #[command(flatten)]
    pub build: BuildOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
}

/// `unwindlab variants`.
#[derive(Debug, Args)]
pub struct VariantsArgs {
    /// Scenarios to run [default: the whole library].
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
}

/// `unwindlab series`.
#[derive(Debug, Args)]
pub struct SeriesArgs {
    /// An mbox, a folder of patches (ordered by a file `series` in it, or else by name), or a range
    /// A..B of the repository in --tree.
    #[arg(value_name = "SERIES")]
    pub series: PathBuf,
    /// Scenarios to run [default: the whole library].
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// Apply the series to this revision of the repository in --tree.
    #[arg(long, value_name = "REV", conflicts_with = "rev")]
    pub base: Option<String>,
    /// The kernel that the series is applied to.
    #[command(flatten)]
    pub build: BuildOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
}

/// `unwindlab findings`.
#[derive(Debug, Args)]
pub struct FindingsArgs {
    /// The kernel to look at.
    #[command(flatten)]
    pub kernel: KernelOptions,
}

/// `unwindlab sweep`.
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// The scenario: a file, or a name from the library. The path begins at the scenario's first
    /// NMI at an instruction, which is the request, or its first interrupt in user mode. Without
    /// one, a set of sweeps is tried that covers the ways into the kernel and out of it.
    #[arg(value_name = "SCENARIO", required_if_eq("requests", "true"))]
    pub scenario: Option<PathBuf>,
    /// The kernel under test.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Begin at the same instruction, but without a request: sweep a kernel entry in which nothing
    /// has requested a stack yet.
    #[arg(long, requires = "scenario", help_heading = "Path")]
    pub no_request: bool,
    /// Begin the path elsewhere, without a request: after a kernel instruction (`symbol+offset` or
    /// `file:line`), or at the last user instruction before an iteration of the workload enters the
    /// kernel (`user`; `user:N` for its N-th entry). `handler`: at the request, at the first
    /// instruction of its NMI's handler.
    #[arg(
        long,
        value_name = "PLACE",
        requires = "scenario",
        help_heading = "Path"
    )]
    pub from: Option<PathPlace>,
    /// Instead of NMIs, try who asks: one trial for each function (its entry, and its return) and
    /// each tracepoint that the workload passes, in which a tracer sits there and requests a stack
    /// each time. Each alone, and beside the scenario's own events and clients.
    #[arg(
        long,
        conflicts_with_all = [
            "no_request", "from", "pairs", "points", "resume", "check_restores", "html", "witness",
            "no_witness"
        ],
        help_heading = "Points"
    )]
    pub requests: bool,
    /// With --requests, sweep the path behind each function's entry with NMIs, after a request
    /// there. The time of --budget is shared among the functions.
    #[arg(
        long,
        requires = "requests",
        required_if_eq_all = [("requests", "true"), ("once", "true")],
        help_heading = "Points"
    )]
    pub nmi: bool,
    /// Inject two NMIs in each trial: the second at every instruction that follows the first. First
    /// NMIs that leave the machine in the same state are tried once for all.
    #[arg(long, requires = "scenario", help_heading = "Points")]
    pub pairs: bool,
    /// With --pairs, try every pair, even where two first NMIs leave the machine in the same state.
    #[arg(long, requires = "pairs", help_heading = "Points")]
    pub all: bool,
    /// Try each instruction only the first time that the path executes it.
    #[arg(long = "static", help_heading = "Points")]
    pub once: bool,
    /// Whether returns to user mode are noted.
    #[command(flatten)]
    pub witness: WitnessOptions,
    /// With several vCPUs, let the others run on the way to a point, where they stand still without
    /// this.
    #[arg(
        long,
        requires = "scenario",
        conflicts_with_all = ["requests", "resume", "witness"],
        help_heading = "Points"
    )]
    pub free: bool,
    /// Inject only in this kernel function (with --pairs, both NMIs); with --requests, ask only there
    /// or at this tracepoint; repeatable.
    #[arg(
        long = "function",
        value_name = "NAME",
        requires = "scenario",
        help_heading = "Points"
    )]
    pub functions: Vec<String>,
    /// Try only point N of the path and show the events around a failure; repeatable. With --pairs,
    /// N is the first NMI's point, and N:M one pair.
    #[arg(
        long = "point",
        value_name = "N[:M]",
        requires = "scenario",
        conflicts_with = "functions",
        help_heading = "Points"
    )]
    pub points: Vec<PointNumber>,
    /// What else to show of a failure at a --point.
    #[command(flatten)]
    pub detail: Detail,
    /// Stop after this many seconds of trials. Points that are left count as not tested.
    #[arg(long, value_name = "SECONDS", help_heading = None)]
    pub budget: Option<u64>,
    /// Record progress in this file. If it exists, continue the sweep that it records.
    #[arg(
        long,
        value_name = "FILE",
        requires = "scenario",
        help_heading = "Results"
    )]
    pub resume: Option<PathBuf>,
    /// Number of machines to run in parallel.
    #[arg(
        long,
        value_name = "N",
        help_heading = None,
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=8)
    )]
    pub jobs: u32,
    /// Compare the whole machine with its checkpoint after every restore. Slow.
    #[arg(long, help_heading = None)]
    pub check_restores: bool,
    /// Write a source listing with the coverage of each line as HTML. Needs a kernel with debug
    /// information (`--source debian --config dwarf`).
    #[arg(
        long,
        value_name = "FILE",
        requires = "scenario",
        help_heading = "Results"
    )]
    pub html: Option<PathBuf>,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
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

/// `unwindlab setups`.
#[derive(Debug, Args)]
pub struct SetupsArgs {
    /// Seed of the set-ups and their order.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Try only the set-up of this number, and show what came of it; repeatable.
    #[arg(long = "setup", value_name = "N")]
    pub setups: Vec<usize>,
    /// Cover every triple of levels instead of every pair: some ten times as many set-ups.
    #[arg(long)]
    pub all: bool,
    /// Show every event of a set-up (with --setup).
    #[arg(long, requires = "setups")]
    pub trace: bool,
    /// Write what came of each set-up as JSON Lines.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub json: Option<PathBuf>,
    /// The kernel under test.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
}

/// `unwindlab replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The replay file: a sweep writes one for each distinct failure, a run one for each scenario
    /// that failed.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Another kernel than the one that the trial failed on.
    #[command(flatten)]
    pub on: KernelOptions,
    /// What else to show.
    #[command(flatten)]
    pub detail: Detail,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
}

/// `unwindlab bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Measure only this row; repeatable [default: every row except the library].
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

/// `unwindlab bisect`.
#[derive(Debug, Args)]
pub struct BisectArgs {
    /// The scenario that distinguishes good from bad: a file, or a name from the library.
    #[arg(value_name = "SCENARIO")]
    pub scenario: PathBuf,
    /// A good revision.
    #[arg(long, value_name = "REV")]
    pub good: String,
    /// A bad revision.
    #[arg(long, value_name = "REV")]
    pub bad: String,
    /// The git repository. It is never written to.
    #[arg(long, value_name = "DIR")]
    pub tree: PathBuf,
    /// Search for violations of this invariant [default: the failure that most runs of the bad
    /// revision show].
    #[arg(long, value_name = "ID")]
    pub invariant: Option<String>,
    /// Number of runs of the bad revision that estimate its failure rate.
    #[arg(
        long,
        value_name = "N",
        help_heading = "Confidence",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub runs: u32,
    /// Minimum probability that a commit reported good is good.
    #[arg(
        long,
        value_name = "P",
        help_heading = "Confidence",
        default_value_t = 0.99,
        value_parser = values::share
    )]
    pub confidence: f64,
    /// Record progress in this file. With the same arguments, the search continues from it
    /// [default: a file `unwindlab-bisect-*.jsonl` in the current folder].
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Apply a patch to every commit: a file, `mutant:NAME`, `variant:NAME`, `proposal:NAME` or
    /// `fix:NAME`; repeatable.
    #[arg(long, value_name = "PATCH", help_heading = "Build")]
    pub patch: Vec<String>,
    /// Add to unwindlab's kernel configuration: a file with .config lines, `debug` or `dwarf`;
    /// repeatable.
    #[arg(long, value_name = "FRAGMENT", help_heading = "Build")]
    pub config: Vec<String>,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
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
