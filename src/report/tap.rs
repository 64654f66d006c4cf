//! `--format tap` and `--format ktap`: results as they come, for test harnesses.
//!
//! TAP is version 13 (testanything.org), KTAP version 1 (Documentation/dev-tools/ktap.rst). Nothing but a pass is `ok` without a
//! directive. What says nothing about the kernel, as an infra-error, is a `SKIP`: neither has another word that is no failure. An
//! expected failure is `XFAIL` in KTAP, with `ok` as kselftest's `ksft_test_result_xfail()` has it, and `not ok` with `TODO` in TAP; so is
//! a flaky result with `--flaky-is pass`.

use unwindlab_engine::text::printable;

use crate::judge::flaky::FlakyIs;
use crate::judge::outcome::{Outcome, OutcomeClass};
use crate::judge::result::ScenarioResult;

/// How results are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A line for each scenario, and what failed below it.
    #[default]
    Text,
    /// Test Anything Protocol, version 13.
    Tap,
    /// Kernel Test Anything Protocol, version 1.
    Ktap,
    /// As text, with an annotation of GitHub Actions for each result that is no pass.
    Github,
}

impl Format {
    /// Whether it is text for people.
    #[must_use]
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Github)
    }
}

/// The kernel's own parser takes a line with this for the last of a machine's log (`KTAP_END`, tools/testing/kunit/kunit_parser.py).
const END_OF_LOG: &str = "Kernel panic - not syncing: VFS:";
const NOT_THE_END: &str = "Kernel panic, not syncing: VFS:";

/// What stands before the first result of so many.
#[must_use]
pub fn header(format: Format, tests: usize) -> String {
    let version = match format {
        Format::Text | Format::Github => return String::new(),
        Format::Tap => "TAP version 13",
        Format::Ktap => "KTAP version 1",
    };
    format!("{version}\n1..{tests}\n")
}

/// The result with this number, from 1, with what failed (`details`) as diagnostics: before it in KTAP, behind it in TAP.
#[must_use]
pub fn result(
    format: Format,
    number: usize,
    result: &ScenarioResult,
    flaky_is: FlakyIs,
    details: &str,
) -> String {
    let line = line(format, number, result, flaky_is);
    let mut comments = Vec::new();
    if result.class() == OutcomeClass::Bad {
        comments.push(format!(
            "{}: {}",
            result.outcome.name(),
            first_reason(result)
        ));
    }
    comments.extend(details.lines().map(str::to_owned));
    let details: String = comments.iter().map(|line| format!("# {line}\n")).collect();
    let details = match format {
        Format::Ktap => details.replace(END_OF_LOG, NOT_THE_END),
        _ => details,
    };
    match format {
        Format::Ktap => format!("{details}{line}\n"),
        _ => format!("{line}\n{details}"),
    }
}

/// That the run ends before its plan does.
#[must_use]
pub fn bail_out(format: Format, reason: &str) -> String {
    match format {
        Format::Tap => format!("Bail out! {reason}\n"),
        _ => format!("# {reason}\n"),
    }
}

/// The first line of the first reason.
fn first_reason(result: &ScenarioResult) -> String {
    let reason = result.reasons.first().map_or("", String::as_str);
    printable(reason.lines().next().unwrap_or_default())
}

fn line(format: Format, number: usize, result: &ScenarioResult, flaky_is: FlakyIs) -> String {
    let dash = if format == Format::Tap { "- " } else { "" };
    let name = &result.name;
    let known = |what: &str| match format {
        Format::Tap => ("not ok", format!(" # TODO {what}")),
        _ => ("ok", format!(" # XFAIL {what}")),
    };
    let (ok, directive) = match (result.outcome, result.counted(flaky_is)) {
        (Outcome::Pass, _) => ("ok", String::new()),
        (Outcome::ExpectedFailure, _) => known(&result.findings().join(", ")),
        (Outcome::Flaky, OutcomeClass::Good) => known(&format!("flaky: {}", first_reason(result))),
        (_, OutcomeClass::Bad) => ("not ok", String::new()),
        (outcome, _) => {
            let reason = first_reason(result);
            ("ok", format!(" # SKIP {}: {reason}", outcome.name()))
        }
    };
    format!("{ok} {number} {dash}{name}{directive}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::flaky::Attempt;

    fn of(outcome: Outcome) -> ScenarioResult {
        ScenarioResult::not_run("a", outcome, "why\nmore".to_owned())
    }

    #[test]
    fn only_a_pass_is_ok_without_a_directive() {
        for outcome in Outcome::ALL {
            for format in [Format::Tap, Format::Ktap] {
                for flaky_is in [FlakyIs::Fail, FlakyIs::Pass] {
                    let result = of(outcome);
                    let line = line(format, 1, &result, flaky_is);
                    let is_plain = line.starts_with("ok ") && !line.contains('#');
                    assert_eq!(is_plain, outcome == Outcome::Pass, "{line}");
                    let fails = line.starts_with("not ok ") && !line.contains("# TODO ");
                    let bad = result.counted(flaky_is) == OutcomeClass::Bad;
                    assert_eq!(fails, bad, "{line}");
                    assert_eq!(line.lines().count(), 1);
                }
            }
        }
    }

    #[test]
    fn a_flaky_result_is_no_plain_ok() {
        let flaky = |outcome| of(Outcome::Pass).after(vec![Attempt::of(&of(outcome))]);
        let tap = |flaky_is, before| line(Format::Tap, 1, &flaky(before), flaky_is);
        assert_eq!(tap(FlakyIs::Fail, Outcome::Hang), "not ok 1 - a");
        let skipped = tap(FlakyIs::Fail, Outcome::InfraError);
        assert_eq!(
            skipped,
            "ok 1 - a # SKIP flaky: attempt 1: infra-error: why"
        );
        let todo = tap(FlakyIs::Pass, Outcome::Hang);
        assert_eq!(todo, "not ok 1 - a # TODO flaky: attempt 1: hang: why");
        let ktap = line(Format::Ktap, 1, &flaky(Outcome::Hang), FlakyIs::Pass);
        assert_eq!(ktap, "ok 1 a # XFAIL flaky: attempt 1: hang: why");
        assert_eq!(bail_out(Format::Tap, "x"), "Bail out! x\n");
    }

    #[test]
    fn details_stand_where_the_format_has_them() {
        let failed = of(Outcome::Fail);
        let tap = result(
            Format::Tap,
            2,
            &failed,
            FlakyIs::Fail,
            "C7 violated\nat x\n",
        );
        assert_eq!(tap, "not ok 2 - a\n# fail: why\n# C7 violated\n# at x\n");
        let ktap = result(Format::Ktap, 2, &failed, FlakyIs::Fail, "C7 violated\n");
        assert_eq!(ktap, "# fail: why\n# C7 violated\nnot ok 2 a\n");
        let lost = result(Format::Ktap, 3, &of(Outcome::InfraError), FlakyIs::Fail, "");
        assert_eq!(lost, "ok 3 a # SKIP infra-error: why\n");
        assert_eq!(header(Format::Ktap, 2), "KTAP version 1\n1..2\n");
    }
}
