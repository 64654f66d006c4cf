//! The table that `run` prints: a line per scenario, and a summary.

use std::fmt::Write as _;
use std::time::Duration;

use anstyle::{AnsiColor, Style};

use crate::judge::Counts;
use crate::judge::outcome::{Outcome, OutcomeClass};
use crate::judge::result::ScenarioResult;
use unwindlab_engine::text::printable;

/// Width of the longest outcome, `expected-failure`.
const OUTCOME_WIDTH: usize = 16;

/// The line of one scenario. `width` is that of the longest name. It has styles, which the stream
/// strips if it is no terminal.
#[must_use]
pub fn row(result: &ScenarioResult, width: usize) -> String {
    let style = style(result.outcome);
    let mut line = format!(
        "{style}{:<OUTCOME_WIDTH$}{style:#}  {:<width$}  {}",
        result.outcome.name(),
        result.name,
        detail(result)
    );
    if let Some(trials) = result.trials {
        let _ = write!(line, "  {} trials", trials.made);
        if trials.preemptions > 0 {
            let _ = write!(line, ", {} preemptions", trials.preemptions);
        }
        if trials.expected_failures > 0 {
            let _ = write!(line, ", {} expected failures", trials.expected_failures);
        }
    }
    if result.duration > Duration::ZERO {
        let _ = write!(line, "  {:.1} s", result.duration.as_secs_f64());
    }
    line
}

/// Numbers if the scenario ran to its end, else the reason why it did not.
fn detail(result: &ScenarioResult) -> String {
    let numbers = short(&result.counts);
    match result.outcome {
        Outcome::Pass | Outcome::Fail => numbers,
        Outcome::ExpectedFailure => {
            let findings = result.findings().join(", ");
            format!("{numbers}  {}", printable(&findings))
        }
        _ => result
            .reasons
            .first()
            .map(|reason| printable(reason))
            .unwrap_or_default(),
    }
}

fn short(counts: &Counts) -> String {
    format!(
        "{:>6} samples {:>6} deferred {:>3} late {:>3} lost",
        counts.samples, counts.deferred, counts.late, counts.lost
    )
}

const fn style(outcome: Outcome) -> Style {
    let colour = match outcome.class() {
        OutcomeClass::Good => AnsiColor::Green,
        OutcomeClass::Bad => AnsiColor::Red,
        OutcomeClass::Untested => AnsiColor::Yellow,
    };
    colour.on_default().bold()
}

/// Lines of output that a terminal shows at once.
const SCREEN: usize = 24;

/// A line for each scenario that did not pass, with its first reason, where the lines above it may be out of sight.
#[must_use]
pub fn failures(results: &[ScenarioResult]) -> String {
    if results.len() <= SCREEN {
        return String::new();
    }
    let failed = || results.iter().filter(|it| it.went_wrong());
    let width = failed().map(|it| it.name.len()).max().unwrap_or(0);
    failed().fold(String::new(), |mut text, result| {
        let reason = result.reasons.first().map(|it| printable(it));
        let style = style(result.outcome);
        let outcome = result.outcome.name();
        let _ = writeln!(
            text,
            "{style}{outcome:<OUTCOME_WIDTH$}{style:#}  {:<width$}  {}",
            result.name,
            reason.unwrap_or_default()
        );
        text
    })
}

/// The last line: how many scenarios have each outcome, and the time they took.
#[must_use]
pub fn summary(results: &[ScenarioResult], elapsed: Duration) -> String {
    let parts: Vec<String> = Outcome::ALL
        .into_iter()
        .filter_map(|outcome| {
            let count = results.iter().filter(|it| it.outcome == outcome).count();
            (count > 0).then(|| format!("{count} {}", outcome.name()))
        })
        .collect();
    let parts = match parts.is_empty() {
        true => "no result".to_owned(),
        false => parts.join(", "),
    };
    format!("{parts} in {:.1} s", elapsed.as_secs_f64())
}
