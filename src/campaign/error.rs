//! Why a campaign ends before its summary.

#![expect(missing_docs, reason = "an error's message says what its fields are")]

use std::io;
use std::path::PathBuf;

use unwindlab_guest_kernel::build::header::HeaderError;

use super::bench::AgainstError;
use super::check::CheckError;
use super::kernel::KernelError;
use super::merge::MergeError;
use super::part::file::PartFileError;
use crate::host::provider::{ProviderError, ProviderFailure};
use crate::judge::sweep_record::SweepRecordError;
use crate::report::bug_report::FactsError;
use crate::report::output_file::WriteError;
use unwindlab_engine::plan::token::TokenError;
use unwindlab_scenario::ScenarioErrors;
use unwindlab_scenario::inject::places::PlaceError;
use unwindlab_scenario::library::LibraryError;

/// Why a campaign ends before its summary.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// The request's filter leaves no scenario.
    #[error("no scenario's name contains the --filter; `unwindlab list` shows them")]
    NothingSelected,
    /// A token is of a trial of a schedule, and this scenario has none.
    #[error("{0} has no `explore`: --token repeats a trial of a scenario that has")]
    NothingExplored(String),
    /// The kernel's options do not name a kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The scenarios cannot be read.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The scenarios do not fit this kernel.
    #[error(transparent)]
    Scenario(#[from] ScenarioErrors),
    /// The kernel or the KVM host is not available.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// A result file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// No built-in patch has the name that the request selects.
    #[error("no {kind} {name:?}; there are: {known}")]
    Unknown {
        kind: &'static str,
        name: String,
        known: String,
    },
    /// The request of a sweep is wrong.
    #[error(transparent)]
    Sweep(#[from] SweepRequestError),
    /// A scenario cannot be given another tracer.
    #[error(transparent)]
    Requests(#[from] RequestsError),
    /// The replay file is of no use.
    #[error(transparent)]
    Replay(#[from] ReplayFileError),
    /// The header of a built-in patch lacks something.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The documentation of a finding lacks something.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The mutants cannot be tested as their headers say.
    #[error(transparent)]
    Mutants(#[from] MutantsError),
    /// There is no series, or no base for it.
    #[error(transparent)]
    Series(#[from] SeriesError),
    /// The search for the first bad commit cannot be made.
    #[error(transparent)]
    Bisect(#[from] BisectError),
    /// A recording is not judged.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// There are no earlier figures in a file.
    #[error(transparent)]
    Against(#[from] AgainstError),
    /// Parts cannot be merged.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// There is nothing to learn from a file.
    #[error("{}: {why}", path.display())]
    Learn {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A part cannot be made with this file.
    #[error(transparent)]
    Part(#[from] PartFileError),
    /// The user stopped the campaign.
    #[error("interrupted")]
    Interrupted,
    /// A file cannot be used, or the receiver of the events failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Results cannot be written as JSON.
    #[error("failed to serialize results as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl CampaignError {
    /// Whether the request asks for what is impossible; otherwise something failed, or the user
    /// stopped it.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::NothingSelected
            | Self::NothingExplored(_)
            | Self::Kernel(_)
            | Self::Library(_)
            | Self::Scenario(_)
            | Self::Write(_)
            | Self::Unknown { .. }
            | Self::Sweep(_)
            | Self::Requests(_)
            | Self::Replay(_)
            | Self::Header(_)
            | Self::Facts(_)
            | Self::Mutants(_)
            | Self::Series(_)
            | Self::Check(_)
            | Self::Against(_)
            | Self::Learn { .. }
            | Self::Part(_) => true,
            Self::Provider(error) => matches!(error.kind(), ProviderFailure::Usage),
            Self::Bisect(error) => error.is_usage(),
            Self::Merge(error) => error.is_usage(),
            Self::Interrupted | Self::Io(_) | Self::Json(_) => false,
        }
    }
}

/// What is wrong with the request of a sweep.
#[derive(Debug, thiserror::Error)]
pub enum SweepRequestError {
    /// A line of the set of sweeps is wrong.
    #[error("scenarios/sweeps.txt: {0}")]
    Set(#[from] SweepTextError),
    /// The request names a folder of scenarios.
    #[error("a sweep is of one scenario: name its file")]
    NotOneScenario,
    /// No tracer can sit on the path, or at none of the places that the request names.
    #[error("the workload passes no function or tracepoint that is asked for")]
    NoPlace,
    /// The place where the path is to begin is not in the kernel.
    #[error("--from: {0}")]
    From(PlaceError),
    /// The scenario has no injection that a path can begin with.
    #[error(
        "{0}: a sweep begins at an NMI at an instruction or an interrupt in user mode, and the scenario \
         has none: say where with --from (`user`: at the workload's entry to the kernel)"
    )]
    NoRequest(String),
    /// A point has a second number, in a sweep of single NMIs.
    #[error("--point N:M names a pair: add --pairs")]
    PointOfPair,
    /// The kernel lacks a function that the request names.
    #[error("the kernel has no function `{name}`{near}")]
    NoFunction { name: String, near: String },
    /// The file of an earlier sweep is of no use.
    #[error("{}: {why}", path.display())]
    Resume {
        path: PathBuf,
        why: SweepRecordError,
    },
    /// The file of an earlier sweep cannot be read.
    #[error("{}: {source}", path.display())]
    ResumeRead { path: PathBuf, source: io::Error },
}

/// Why a scenario cannot be given another tracer.
#[derive(Debug, thiserror::Error)]
pub enum RequestsError {
    /// Its text is not as it was when it was read.
    #[error("{file}: {why}")]
    Unreadable { file: String, why: String },
    /// The harness has no events of its own in it.
    #[error("{0}: the distribution's perf traces there: no other tracer can")]
    PerfTool(String),
    /// The text that was written is no scenario.
    #[error(transparent)]
    Written(ScenarioErrors),
}

/// Why a replay file is of no use.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct ReplayFileError {
    pub path: PathBuf,
    pub why: ReplayFileProblem,
}

/// What is wrong with a replay file.
#[derive(Debug, thiserror::Error)]
pub enum ReplayFileProblem {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// It is not UTF-8.
    #[error("no replay file: it is not a text")]
    NotText,
    /// It is not JSON of the right form.
    #[error("no replay file: {0}")]
    Form(#[from] serde_json::Error),
    /// Another version of this program wrote it.
    #[error("a replay file of version {found}, this program knows {known}: make the failure again")]
    Version { found: u32, known: u32 },
    /// A scenario cannot have the name in it.
    #[error("no scenario has the name {0:?}")]
    Name(String),
    /// The token of the trial has the wrong form.
    #[error("`token`: {0}")]
    Token(TokenError),
    /// The place where the path begins has the wrong form.
    #[error("`from` is no place of the kernel")]
    From,
}

/// Why mutants cannot be tested as their headers say.
#[derive(Debug, thiserror::Error)]
pub enum MutantsError {
    /// A header names a scenario that does not exist.
    #[error("{patch} names the scenario {scenario}, which is not in the library")]
    NoScenario { patch: String, scenario: String },
    /// The sweep in a header is wrong.
    #[error("sweep {text:?} of a mutant: {why}")]
    Sweep { text: String, why: SweepTextError },
    /// A mutant changes a patch that the kernel does not have.
    #[error("the mutant {mutant} changes {of}, which this kernel lacks: give `--patch {of}`")]
    Without { mutant: String, of: String },
    /// No selected mutant names a sweep.
    #[error("none of these mutants has a single NMI's window: their headers name no sweep")]
    NothingToSweep,
}

/// What is wrong with a sweep in the header of a mutant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SweepTextError {
    /// It names no scenario.
    #[error("it names no scenario")]
    NoScenario,
    /// It has a word that means nothing.
    #[error("found `{0}`, expected a scenario, then --no-request or --from PLACE")]
    Word(String),
    /// The place where the path is to begin is missing or has the wrong form.
    #[error("--from: found `{0}`, expected an instruction such as `__x64_sys_getppid+0x10`")]
    From(String),
}

/// Why there are no kernels of a series to build.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// The base is a revision, and no repository is named.
    #[error("--base is a revision of a repository: name it with --tree")]
    BaseWithoutTree,
    /// The series is a range of commits, and no repository is named.
    #[error("{0} is a range of a repository: name it with --tree")]
    RangeWithoutTree(String),
    /// The range is empty.
    #[error("{0} has no commits")]
    EmptyRange(String),
    /// An option concerns patches, and the series is a range of commits.
    #[error(
        "{0} is a range of commits: --apply-only, --skip-conflicts and --touching are for patches"
    )]
    NoPatches(String),
}

/// Why the first bad commit cannot be searched for.
#[derive(Debug, thiserror::Error)]
pub enum BisectError {
    /// The request names a folder of scenarios.
    #[error("bisect needs one scenario, by its file or name")]
    NotOneScenario,
    /// The request names an invariant that there is not.
    #[error("no invariant {id:?}; there are: {known}")]
    NoInvariant { id: String, known: String },
    /// Both revisions name one commit.
    #[error("{good} and {bad} are the same commit: nothing to search for")]
    SameCommit { good: String, bad: String },
    /// Every ancestor of the bad revision is one of the good revision.
    #[error("{bad} has no commit that {good} lacks: they may be the wrong way round")]
    NothingBetween { good: String, bad: String },
    /// The bad revision does not fail.
    #[error("{commit} does not {what} in {runs} runs of {scenario}: nothing to search for{reason}")]
    NothingToFind {
        commit: String,
        what: String,
        runs: u32,
        scenario: String,
        reason: String,
    },
    /// The good revision fails, or cannot be tested.
    #[error("{good} is not good, or cannot be tested: {why}")]
    NotGood { good: String, why: String },
    /// The log is of another search.
    #[error("{} is the log of another search: give another --log, or remove it", .0.display())]
    OtherLog(PathBuf),
    /// The log is not one of a bisection.
    #[error("{} line {line} is not of a bisection: give another --log, or remove it", path.display())]
    DamagedLog { path: PathBuf, line: usize },
    /// What the request names as the log cannot be one.
    #[error("cannot use the log {}: {source}: give another --log", path.display())]
    NoLog { path: PathBuf, source: io::Error },
    /// The log cannot be written any more.
    #[error("cannot write the log {}: {source}", path.display())]
    Log { path: PathBuf, source: io::Error },
}

impl BisectError {
    const fn is_usage(&self) -> bool {
        !matches!(self, Self::Log { .. })
    }
}
