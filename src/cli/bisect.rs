//! `unwindlab bisect`.

use std::time::Instant;

use unwindlab_guest_kernel::build::history::Commit;

use super::args::BisectArgs;
use super::error::CommandError;
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::bisect::log::{Ends, Tested};
use crate::campaign::bisect::search::{CommitVerdict, FirstBad};
use crate::campaign::bisect::{self, BisectEvent, BisectRequest};
use crate::judge::outcome::EXIT_UNTESTED;

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
