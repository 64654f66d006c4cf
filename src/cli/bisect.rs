//! `unwindlab bisect`.

use super::values;
use crate::host::choice::KvmHost;
use clap::Args;
use std::path::PathBuf;
use std::time::Instant;

use unwindlab_guest_kernel::build::history::Commit;

use super::error::CommandError;
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::bisect::log::{Ends, Tested};
use crate::campaign::bisect::search::{CommitVerdict, FirstBad};
use crate::campaign::bisect::{self, BisectEvent, BisectRequest};
use crate::judge::outcome::EXIT_UNTESTED;

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

/// Searches and reports; the exit code: 0 where the first bad commit was found.
///
/// # Errors
/// [`CommandError`], also where the two ends are not what they are called.
pub fn bisect(
    args: &BisectArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let start = Instant::now();
    let request = BisectRequest {
        scenario: args.scenario.clone(),
        tree: args.tree.clone(),
        good: args.good.clone(),
        bad: args.bad.clone(),
        invariant: args.invariant.clone(),
        runs: args.runs,
        confidence: args.confidence,
        log: args.log.clone(),
        patch: args.patch.clone(),
        config: args.config.clone(),
        kvm_host: args.kvm_host,
    };
    let summary = bisect::bisect(&request, context, &mut |event| {
        spinner.print(&match event {
            BisectEvent::Searching {
                bad,
                ends,
                needed,
                mistake,
            } => searching(bad, ends, needed, mistake),
            BisectEvent::Tested { commit, tested } => line(commit, tested),
        })
    })?;
    spinner.clear();
    spinner.print(&format!(
        "{}\n{:.0} s; log: {}\n",
        conclusion(&summary.first_bad),
        start.elapsed().as_secs_f64(),
        summary.log.display()
    ))?;
    Ok(match summary.first_bad {
        FirstBad::Commit(_) => 0,
        FirstBad::OneOf(_) => EXIT_UNTESTED,
    })
}

fn searching(bad: &Commit, ends: &Ends, needed: u32, mistake: f64) -> String {
    let times = if needed == 1 { "once" } else { "times" };
    let others: Vec<String> = ends.others.iter().map(ToString::to_string).collect();
    let also = match others.is_empty() {
        true => String::new(),
        false => format!(" (also seen: {})", others.join(", ")),
    };
    format!(
        "searching for: {}, seen in {} of {} runs of {}{also}\n\
         a commit is good when it passes {needed} {times}: that a bad one is taken for good has \
         a chance of at most {:.2} %\n",
        ends.symptom,
        ends.failed,
        ends.runs,
        bad.short(),
        100.0 * mistake
    )
}

fn line(commit: &Commit, tested: &Tested) -> String {
    let (word, reason) = match &tested.verdict {
        CommitVerdict::Good => ("good", String::new()),
        CommitVerdict::Bad => ("bad ", String::new()),
        CommitVerdict::Skip(reason) => {
            let line = reason.lines().next().unwrap_or_default();
            ("skip", format!("  ({line})"))
        }
    };
    format!(
        "{word}  {}  {}  {} runs{reason}\n",
        commit.short(),
        commit.subject,
        tested.runs
    )
}

fn conclusion(first_bad: &FirstBad<Commit>) -> String {
    let line = |commit: &Commit| format!("{}  {}", commit.id, commit.subject);
    match first_bad {
        FirstBad::Commit(commit) => format!("first bad commit: {}", line(commit)),
        FirstBad::OneOf(commits) => {
            let lines: Vec<String> = commits.iter().map(line).collect();
            format!(
                "the first bad commit is one of these, the others cannot be tested:\n  {}",
                lines.join("\n  ")
            )
        }
    }
}
