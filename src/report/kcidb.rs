//! `--kcidb`: the results as KCIDB's schema 5.3 has them (the package `kcidb-io`), to be submitted to a database of kernel tests.
//!
//! A finding is an *issue* there, and a test that met it an *incident*: an expected failure is a `FAIL` with an incident. Nothing
//! but a pass is `PASS`. A flaky test is what its worst attempt is.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value, json};
use unwindlab_engine::text::printable;

use super::json::Setting;
use crate::judge::flaky::Attempt;
use crate::judge::outcome::Outcome;
use crate::judge::result::ScenarioResult;

/// Characters of a log that the schema allows.
const MAX_LOG: usize = 16_384;

/// Who submits, and what was tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// The name of the CI system.
    pub origin: String,
    /// The ID of a build that is submitted by somebody else; without it, a build and a checkout are part of the file.
    pub build: Option<String>,
}

/// A name or an ID is not one of KCIDB's.
#[derive(Debug, thiserror::Error)]
pub enum SubmissionError {
    /// The name of the CI system.
    #[error("--kcidb-origin: found `{0}`, expected small letters, digits and `_`")]
    Origin(String),
    /// The ID of a build.
    #[error("--kcidb-build: found `{0}`, expected ORIGIN:NAME")]
    Build(String),
}

impl Submission {
    /// Checks that names are as the schema has them.
    ///
    /// # Errors
    /// [`SubmissionError`].
    pub fn new(origin: String, build: Option<String>) -> Result<Self, SubmissionError> {
        if !is_origin(&origin) {
            return Err(SubmissionError::Origin(origin));
        }
        match build {
            Some(build) if !is_id(&build) => Err(SubmissionError::Build(build)),
            build => Ok(Self { origin, build }),
        }
    }

    fn id(&self, name: &str) -> String {
        format!("{}:{name}", self.origin)
    }
}

fn is_origin(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    !text.is_empty() && text.chars().all(is_part)
}

fn is_id(text: &str) -> bool {
    let parts = text.split_once(':');
    parts.is_some_and(|(origin, name)| {
        is_origin(origin) && !name.is_empty() && !name.chars().any(char::is_control)
    })
}

/// What came of a test; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum Status {
    /// The kernel is wrong.
    Fail,
    /// The test ran, and says nothing about the kernel.
    Error,
    /// The test did not run, because the harness failed.
    Miss,
    /// The kernel is right.
    Pass,
    /// The test does not apply to the kernel.
    Skip,
}

fn status(outcome: Outcome, attempts: &[Attempt]) -> Status {
    match outcome {
        Outcome::Pass => Status::Pass,
        Outcome::ExpectedFailure
        | Outcome::Fail
        | Outcome::GuestPanic
        | Outcome::GuestMisbehaved
        | Outcome::Hang => Status::Fail,
        Outcome::Flaky => {
            let worst = attempts.iter().map(|it| status(it.outcome, &[])).min();
            worst.unwrap_or(Status::Error)
        }
        Outcome::Skip => Status::Skip,
        Outcome::GuestSkip | Outcome::Timeout => Status::Error,
        Outcome::BootError | Outcome::InfraError => Status::Miss,
    }
}

/// The report of a run.
///
/// # Errors
/// [`serde_json::Error`] if it cannot be written to memory.
pub fn report(
    submission: &Submission,
    setting: &Setting,
    results: &[ScenarioResult],
) -> Result<String, serde_json::Error> {
    // Unique among all runs of this origin.
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let run = format!("{:x}", now.unwrap_or_default().as_nanos());
    let mut report = Map::new();
    report.insert("version".to_owned(), json!({ "major": 5, "minor": 3 }));
    let build = match &submission.build {
        Some(build) => build.clone(),
        None => add_build(&mut report, submission, setting),
    };
    let tests = results.iter().zip(0..);
    let tests = tests.map(|(result, number)| {
        let id = submission.id(&format!("{run}-{number}"));
        test(&id, &build, submission, setting, result)
    });
    report.insert("tests".to_owned(), tests.collect());
    add_findings(&mut report, submission, &run, results);
    let mut text = serde_json::to_string_pretty(&report)?;
    text.push('\n');
    Ok(text)
}

/// Adds the kernel as a build of a checkout; the build's ID.
fn add_build(
    report: &mut Map<String, Value>,
    submission: &Submission,
    setting: &Setting,
) -> String {
    let id = submission.id(&setting.kernel_hash);
    let checkouts = json!([{
        "id": id,
        "origin": submission.origin,
        "comment": printable(&setting.kernel_spec),
        "valid": true,
    }]);
    report.insert("checkouts".to_owned(), checkouts);
    let builds = json!([{
        "id": id,
        "checkout_id": id,
        "origin": submission.origin,
        "architecture": "x86_64",
        "comment": printable(&setting.kernel_release),
        "status": Status::Pass,
    }]);
    report.insert("builds".to_owned(), builds);
    id
}

fn test(
    id: &str,
    build: &str,
    submission: &Submission,
    setting: &Setting,
    result: &ScenarioResult,
) -> Value {
    let lines = result.reasons.iter().flat_map(|reason| reason.lines());
    let lines: Vec<String> = lines.map(printable).collect();
    let log: String = lines.join("\n").chars().take(MAX_LOG).collect();
    json!({
        "id": id,
        "build_id": build,
        "origin": submission.origin,
        "path": format!("unwindlab.{}", result.name),
        "status": status(result.outcome, &result.attempts),
        "duration": result.duration.as_secs_f64(),
        "log_excerpt": log,
        "environment": { "comment": printable(&format!("KVM host {}", setting.kvm_host)) },
        "misc": {
            "outcome": result.outcome,
            "kernel-release": setting.kernel_release,
            "kernel-hash": setting.kernel_hash,
            "findings": result.findings(),
            "attempts": result.attempts,
        },
    })
}

/// Adds what was met of the list of findings.
fn add_findings(
    report: &mut Map<String, Value>,
    submission: &Submission,
    run: &str,
    results: &[ScenarioResult],
) {
    let mut met = BTreeSet::new();
    let mut incidents = Vec::new();
    for (result, number) in results.iter().zip(0..) {
        for finding in result.findings() {
            met.insert(finding);
            incidents.push(json!({
                "id": submission.id(&format!("{run}-{number}-{finding}")),
                "origin": submission.origin,
                "issue_id": submission.id(finding),
                "issue_version": 1,
                "test_id": submission.id(&format!("{run}-{number}")),
                "present": true,
            }));
        }
    }
    if met.is_empty() {
        return;
    }
    let issues = met.into_iter().map(|finding| {
        json!({
            "id": submission.id(finding),
            "version": 1,
            "origin": submission.origin,
            "report_subject": format!("unwindlab finding {finding}"),
            "culprit": { "code": true },
        })
    });
    report.insert("issues".to_owned(), issues.collect());
    report.insert("incidents".to_owned(), incidents.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::outcome::OutcomeClass;

    fn of(outcome: Outcome) -> ScenarioResult {
        ScenarioResult::not_run("a", outcome, "why\0\nmore".to_owned())
    }

    fn written(submission: &Submission, results: &[ScenarioResult]) -> Value {
        let setting = Setting {
            kernel_spec: "stock".to_owned(),
            kernel_release: "7.3".to_owned(),
            kernel_hash: "abc".to_owned(),
            kvm_host: "none".to_owned(),
        };
        serde_json::from_str(&report(submission, &setting, results).unwrap()).unwrap()
    }

    #[test]
    fn only_a_pass_is_a_pass() {
        for outcome in Outcome::ALL {
            let status = status(outcome, &[]);
            assert_eq!(status == Status::Pass, outcome == Outcome::Pass);
            assert!(status != Status::Skip || outcome == Outcome::Skip);
            if outcome.class() == OutcomeClass::Bad && outcome != Outcome::Flaky {
                assert_eq!(status, Status::Fail);
            }
        }
    }

    #[test]
    fn a_flaky_test_is_what_its_worst_attempt_is() {
        let flaky = |before: &[Outcome]| {
            let before = before.iter().map(|it| Attempt::of(&of(*it)));
            let result = of(Outcome::Pass).after(before.collect());
            status(result.outcome, &result.attempts)
        };
        assert_eq!(flaky(&[Outcome::InfraError, Outcome::Hang]), Status::Fail);
        assert_eq!(flaky(&[Outcome::InfraError]), Status::Miss);
        assert_eq!(
            flaky(&[Outcome::InfraError, Outcome::Timeout]),
            Status::Error
        );
    }

    #[test]
    fn somebody_elses_build_is_referred_to() {
        let submission = Submission::new("ours".to_owned(), Some("theirs:1".to_owned()));
        let report = written(&submission.unwrap(), &[of(Outcome::Fail)]);
        assert_eq!(report["tests"][0]["build_id"], "theirs:1");
        assert_eq!(report["tests"][0]["path"], "unwindlab.a");
        let log = report["tests"][0]["log_excerpt"].as_str().unwrap();
        assert!(!log.contains('\0') && log.ends_with("\nmore"), "{log}");
        assert!(report.get("builds").is_none() && report.get("checkouts").is_none());
    }

    #[test]
    fn names_are_checked() {
        for wrong in ["", "Ours", "o-o", "o:o"] {
            assert!(Submission::new(wrong.to_owned(), None).is_err(), "{wrong}");
        }
        for wrong in ["", "theirs", ":x", "theirs:", "The:x", "a:b\0"] {
            let build = Some(wrong.to_owned());
            assert!(Submission::new("o".to_owned(), build).is_err(), "{wrong}");
        }
    }
}
