//! What `check` prints of a recording.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::judge::recorded::{OF_TRIALS, option};
use crate::judge::result::ScenarioResult;
use unwindlab_engine::text::printable;
use unwindlab_oracle::invariant::Check;
use unwindlab_oracle::trace::perf_data::PerfData;

/// What the file says of itself, some lines.
#[must_use]
pub fn about(result: &ScenarioResult, data: &PerfData, no_kernel: Option<&str>) -> String {
    let mut out = String::new();
    let cpus = result.trace.as_ref().map_or(0, |trace| trace.rings.len());
    let release = match result.trace.as_ref().map(|trace| trace.release.as_str()) {
        None | Some("") => "a kernel that it does not name",
        Some(release) => release,
    };
    let _ = writeln!(
        out,
        "  {} records of {cpus} CPUs, of {} {}",
        data.records,
        printable(release),
        printable(&data.arch)
    );
    if let Some(why) = &data.cut {
        let _ = writeln!(
            out,
            "  cut short ({}): only what is complete was judged",
            printable(why)
        );
    }
    let recorded = result.trace.as_ref().and_then(|trace| trace.recorded);
    if recorded.is_some_and(|it| !it.every_cpu) {
        out.push_str("  not every CPU was recorded (--all-cpus without -C): only what one CPU shows was judged\n");
    }
    for (what, count) in &data.left_out {
        let _ = writeln!(out, "  left out: {count} {what}");
    }
    if let Some(why) = no_kernel {
        let _ = writeln!(
            out,
            "  the kernel's code was not looked at: {}",
            printable(why)
        );
    }
    out
}

/// What each invariant said.
#[must_use]
pub fn answers(result: &ScenarioResult) -> String {
    let mut held = Vec::new();
    let mut open = Vec::new();
    let mut lacking: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for check in &result.checks {
        let id = check.invariant.as_str();
        match &check.check {
            Check::Holds {
                evidence,
                undecided,
                ..
            } => {
                held.push(format!("{id} ({evidence})"));
                if *undecided > 0 {
                    open.push(format!("{id} ({undecided})"));
                }
            }
            Check::NotExercised { undecided, reason } => {
                if *undecided > 0 {
                    open.push(format!("{id} ({reason})"));
                }
                let option = option(id).unwrap_or_default();
                lacking.entry(option).or_default().push(id.to_owned());
            }
            Check::Violated(_) => {}
        }
    }
    let mut out = String::new();
    list(&mut out, "held", &held);
    list(&mut out, "undecided", &open);
    for (option, ids) in lacking {
        let _ = writeln!(
            out,
            "  to exercise {}: record with {option}",
            ids.join(", ")
        );
    }
    let trials = OF_TRIALS.map(str::to_owned);
    list(
        &mut out,
        "not in a recording, only in trials (unwindlab run)",
        &trials,
    );
    out
}

fn list(out: &mut String, what: &str, of: &[String]) {
    if !of.is_empty() {
        let _ = writeln!(out, "  {what}: {}", of.join(", "));
    }
}
