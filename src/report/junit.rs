//! `--junit`: the results for CI servers.
//!
//! A wrong kernel is a `failure`, a skipped scenario is `skipped`, and one that could not be tested
//! otherwise is an `error`. JUnit has no expected failures: they succeed, and their output names
//! the finding that they met. Attempts before the last are `flakyFailure`, `flakyError`, `rerunFailure` and `rerunError`, as Maven's
//! Surefire has them; a flaky result is a `failure` or an `error` beside them, but for `--flaky-is pass`.

use std::time::Duration;

use quick_junit::{
    FlakyOrRerun, NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestRerun,
    TestSuite,
};

use super::json::Setting;
use crate::judge::flaky::{Attempt, FlakyIs};
use crate::judge::outcome::{Outcome, OutcomeClass};
use crate::judge::result::ScenarioResult;

/// The XML of a run.
///
/// # Errors
/// [`SerializeError`] if the XML cannot be written to memory.
pub fn xml(
    setting: &Setting,
    results: &[ScenarioResult],
    flaky_is: FlakyIs,
    elapsed: Duration,
) -> Result<String, SerializeError> {
    let mut suite = TestSuite::new(format!("unwindlab {}", setting.kernel_release));
    suite.set_time(elapsed);
    for (key, value) in [
        ("kernel-spec", &setting.kernel_spec),
        ("kernel-hash", &setting.kernel_hash),
        ("kvm-host", &setting.kvm_host),
    ] {
        suite.add_property((key, value.as_str()));
    }
    suite.add_test_cases(results.iter().map(|it| case(it, flaky_is)));
    let mut report = Report::new("unwindlab");
    report.set_time(elapsed);
    report.add_test_suite(suite);
    report.to_string()
}

fn case(result: &ScenarioResult, flaky_is: FlakyIs) -> TestCase {
    let mut status = status(result, flaky_is);
    status.add_reruns(result.attempts.iter().map(rerun));
    if result.outcome == Outcome::Flaky {
        status.set_rerun_kind(FlakyOrRerun::Flaky);
    }
    let mut case = TestCase::new(result.name.as_str(), status);
    case.set_classname("unwindlab").set_time(result.duration);
    if result.outcome == Outcome::ExpectedFailure {
        case.set_system_out(format!(
            "expected-failure: {}",
            result.findings().join(", ")
        ));
    }
    case
}

fn rerun(attempt: &Attempt) -> TestRerun {
    let mut rerun = TestRerun::new(match attempt.outcome.class() {
        OutcomeClass::Bad => NonSuccessKind::Failure,
        OutcomeClass::Good | OutcomeClass::Untested => NonSuccessKind::Error,
    });
    rerun
        .set_type(attempt.outcome.name())
        .set_message(attempt.reasons.first().map_or("", String::as_str))
        .set_description(attempt.reasons.join("\n"))
        .set_time(attempt.duration);
    rerun
}

fn status(result: &ScenarioResult, flaky_is: FlakyIs) -> TestCaseStatus {
    let mut status = match (result.outcome, result.counted(flaky_is)) {
        (_, OutcomeClass::Good) => return TestCaseStatus::success(),
        (Outcome::Skip, _) => TestCaseStatus::skipped(),
        (_, OutcomeClass::Bad) => TestCaseStatus::non_success(NonSuccessKind::Failure),
        (_, OutcomeClass::Untested) => TestCaseStatus::non_success(NonSuccessKind::Error),
    };
    status
        .set_type(result.outcome.name())
        .set_message(result.reasons.first().map_or("", String::as_str))
        .set_description(result.reasons.join("\n"));
    status
}
