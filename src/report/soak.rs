//! The output of `unwindlab soak`: a row for each scenario, and JSON Lines.

use std::fmt::Write as _;

use serde::Serialize;

use super::json::Setting;
use crate::judge::outcome::OutcomeClass;
use crate::judge::soak::{CONFIDENCE, Soaked};
use unwindlab_engine::text::printable;

/// Names the shape of a record.
pub const SCHEMA: &str = "unwindlab.soak/1";

/// What the columns are; `width` is that of the longest name.
#[must_use]
pub fn heading(width: usize) -> String {
    let bound = format!("<= ({:.0} %)", CONFIDENCE * 100.0);
    format!(
        "{:<8}  {:<width$}  {:>7}  {:>6}  {bound:>10}\n",
        "", "scenario", "judged", "failed"
    )
}

/// The row of a scenario, the findings it matched, and below it what was wrong.
#[must_use]
pub fn row(soaked: &Soaked, width: usize) -> String {
    if let Some(reason) = soaked.skip() {
        return format!(
            "{:<8}  {:<width$}  {}\n",
            "skip",
            soaked.name,
            printable(reason)
        );
    }
    let word = match soaked.verdict() {
        OutcomeClass::Good => "held",
        OutcomeClass::Bad => "failed",
        OutcomeClass::Untested => "open",
    };
    let mut text = format!(
        "{word:<8}  {:<width$}  {:>7}  {:>6}  {:>8.3} %",
        soaked.name,
        soaked.judged(),
        soaked.failures(),
        soaked.at_most() * 100.0
    );
    for (finding, count) in &soaked.findings {
        let _ = write!(text, "  {} {count} times", printable(finding));
    }
    let untested = soaked.planned.saturating_sub(soaked.judged());
    if untested > 0 {
        let _ = write!(text, "  {untested} not judged");
    }
    let _ = writeln!(text, "  {:.1} s", soaked.seconds);
    for (number, reason) in &soaked.reasons {
        let _ = writeln!(text, "  trial {number}: {}", printable(reason));
    }
    text
}

/// What the last column means.
pub const BOUND: &str = "<=: bound of the failure rate, if trials are independent\n";

/// How many trials of all scenarios were judged, and failed.
#[must_use]
pub fn totals(all: &[Soaked]) -> String {
    let skipped = all.iter().filter(|it| it.skip().is_some()).count();
    let run = all.iter().filter(|it| it.skip().is_none());
    let (judged, failed, planned) = run.fold((0, 0, 0), |(judged, failed, planned), it| {
        (
            judged + u64::from(it.judged()),
            failed + u64::from(it.failures()),
            planned + u64::from(it.planned),
        )
    });
    let scenarios = all.len();
    format!(
        "{judged} of {planned} trials judged, {failed} failed; {scenarios} scenarios, {skipped} skipped,"
    )
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Record<'a> {
    schema: &'static str,
    #[serde(flatten)]
    setting: &'a Setting,
    name: &'a str,
    planned: u32,
    made: u32,
    judged: u32,
    failures: u32,
    /// Of the failure rate.
    upper_bound: f64,
    confidence: f64,
    outcomes: Vec<OutcomeCount>,
    findings: &'a std::collections::BTreeMap<String, u32>,
    reasons: &'a [(u32, String)],
    skipped: Option<&'a str>,
    seconds: f64,
}

#[derive(Serialize)]
struct OutcomeCount {
    outcome: &'static str,
    trials: u32,
}

/// The record of a scenario, newline included.
///
/// # Errors
/// [`serde_json::Error`] if a value cannot be serialized, which no type here causes.
pub fn record(setting: &Setting, soaked: &Soaked) -> Result<String, serde_json::Error> {
    let outcomes = soaked.outcomes().into_iter();
    let mut text = serde_json::to_string(&Record {
        schema: SCHEMA,
        setting,
        name: &soaked.name,
        planned: soaked.planned,
        made: soaked.made(),
        judged: soaked.judged(),
        failures: soaked.failures(),
        upper_bound: soaked.at_most(),
        confidence: CONFIDENCE,
        outcomes: outcomes
            .map(|(outcome, trials)| OutcomeCount {
                outcome: outcome.name(),
                trials,
            })
            .collect(),
        findings: &soaked.findings,
        reasons: &soaked.reasons,
        skipped: soaked.skip(),
        seconds: soaked.seconds,
    })?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::soak::SoakTrial;
    use crate::judge::{Outcome, ScenarioResult};

    #[test]
    fn rows() {
        let mut held = Soaked::new("a", 2);
        let mut lost = Soaked::new("b", 3);
        let trial = |outcome, why: &str| {
            SoakTrial::of(&ScenarioResult::not_run("s", outcome, why.to_owned()))
        };
        for number in 1..=2 {
            held.add(number, &trial(Outcome::Pass, ""));
            lost.add(number, &trial(Outcome::Pass, ""));
        }
        lost.add(3, &trial(Outcome::InfraError, "no word\u{202e}"));
        held.findings.insert("\u{1b}F001".to_owned(), 1);
        let mut none = Soaked::new("c", 1);
        none.add(1, &trial(Outcome::Skip, "no client"));
        let text: String = [held, lost, none].iter().map(|it| row(it, 4)).collect();
        assert_eq!(
            text,
            "held      a           2       0    77.639 %  \\u{1b}F001 1 times  0.0 s\n\
             open      b           2       0    77.639 %  1 not judged  0.0 s\n  \
             trial 3: infra-error: no word\\u{202e}\n\
             skip      c     no client\n"
        );
    }
}
