//! What is known of one scenario when it is over.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::counts::Counts;
use super::outcome::Outcome;
use super::snapshot::Comparison;
use unwindlab_oracle::invariant::{Check, Violation};
use unwindlab_oracle::trace::Trace;

/// One scenario, judged.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ScenarioResult {
    /// The scenario.
    pub name: String,
    /// What came out.
    pub outcome: Outcome,
    /// Everything that speaks against a pass, in a line each, the gravest first; for a skip its
    /// reason. Empty for a pass only.
    pub reasons: Vec<String>,
    /// What each invariant says, in the order of their IDs.
    pub checks: Vec<InvariantCheck>,
    /// Violations of all invariants, and the finding each is, if it is one.
    pub violations: Vec<JudgedViolation>,
    /// The canonical form of the trace, as a snapshot holds it; `None` where the scenario has none,
    /// or its trial did not come to its end.
    pub canonical: Option<String>,
    /// What the comparison with the snapshot says; `None` where the scenario has none.
    pub snapshot: Option<Comparison>,
    /// Numbers of the trace.
    pub counts: Counts,
    /// From the start of the machine to its end, in seconds of the KVM host's clock.
    #[serde(serialize_with = "seconds")]
    pub duration: Duration,
    /// Files that were kept, by what they hold.
    pub artifacts: Vec<Artifact>,
    /// Hash of all that was recorded, of a deterministic run; `None` elsewhere, where no two are alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_sha256: Option<String>,
    /// The whole trace; `None` where the machine never ran.
    pub trace: Option<Trace>,
    /// The trials, where there were more than one: everything else is of the first that did not pass, or
    /// of one of them.
    pub trials: Option<Trials>,
}

/// Trials of one scenario.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Trials {
    /// How many were made.
    pub made: u32,
    /// How many of them met a finding.
    pub expected_failures: u32,
    /// Preemptions in all of them.
    pub preemptions: u64,
}

/// One invariant's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct InvariantCheck {
    /// Its ID.
    pub invariant: String,
    /// Its answer.
    pub check: Check,
}

/// One violation, and what it is known to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct JudgedViolation {
    /// The violation.
    #[serde(flatten)]
    pub violation: Violation,
    /// The finding it matches.
    pub finding: Option<String>,
}

/// A file that was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Artifact {
    /// What it holds (`console`).
    pub kind: String,
    /// Where it is.
    pub path: PathBuf,
}

impl ScenarioResult {
    /// A scenario that did not get as far as a machine.
    #[must_use]
    pub fn not_run(name: &str, outcome: Outcome, reason: String) -> Self {
        Self {
            name: name.to_owned(),
            outcome,
            reasons: vec![reason],
            checks: Vec::new(),
            violations: Vec::new(),
            canonical: None,
            snapshot: None,
            counts: Counts::default(),
            duration: Duration::ZERO,
            artifacts: Vec::new(),
            trace_sha256: None,
            trace: None,
            trials: None,
        }
    }

    /// What came out and the gravest reason, in a line.
    #[must_use]
    pub fn brief(&self) -> String {
        let reason = self.reasons.first().map_or("", String::as_str);
        format!("{}: {} {reason}", self.name, self.outcome.name())
    }

    /// The invariants that fell and are no finding, each once, in order.
    #[must_use]
    pub fn fallen(&self) -> Vec<&str> {
        let mut fallen: Vec<&str> = self
            .violations
            .iter()
            .filter(|violation| violation.finding.is_none())
            .map(|violation| violation.violation.invariant.as_str())
            .collect();
        fallen.sort_unstable();
        fallen.dedup();
        fallen
    }

    /// IDs of the findings that were met, each once.
    #[must_use]
    pub fn findings(&self) -> Vec<&str> {
        let mut ids: Vec<&str> = self
            .violations
            .iter()
            .filter_map(|violation| violation.finding.as_deref())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
