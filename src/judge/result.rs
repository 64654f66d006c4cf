//! The result of one scenario.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::counts::Counts;
use super::flaky::Attempt;
use super::outcome::Outcome;
use super::snapshot::SnapshotComparison;
use unwindlab_oracle::invariant::{Check, NonceStacks, Violation};
use unwindlab_oracle::trace::Trace;

/// One scenario, judged.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ScenarioResult {
    /// The scenario.
    pub name: String,
    /// The outcome.
    pub outcome: Outcome,
    /// Every reason against a pass, in a line each, the gravest first; for a skip its reason. Only
    /// a pass has none.
    pub reasons: Vec<String>,
    /// The answer of each invariant, ordered by ID.
    pub checks: Vec<InvariantCheck>,
    /// Violations of all invariants, each with the finding that it matches, if any.
    pub violations: Vec<JudgedViolation>,
    /// The finding that a program showed, by its exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_finding: Option<String>,
    /// The canonical form of the trace, as in a snapshot; `None` if the scenario has no snapshot or
    /// its trial did not complete.
    pub canonical: Option<String>,
    /// The result of the comparison with the snapshot; `None` if the scenario has no snapshot.
    pub snapshot: Option<SnapshotComparison>,
    /// Counts of the trace.
    pub counts: Counts,
    /// From the start of the machine to its end, in seconds of the KVM host's clock.
    #[serde(serialize_with = "seconds")]
    #[schemars(with = "f64")]
    pub duration: Duration,
    /// The attempts before, none of which passed: those of `--retries`, and a machine that did not come to its agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Files that were written.
    pub artifacts: Vec<Artifact>,
    /// Hash of the whole recording of a deterministic run; `None` for other runs, which all differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_sha256: Option<String>,
    /// What a kernel with many mutants executed.
    #[serde(skip)]
    pub reached: Reached,
    /// What handlers of unwinding in user mode showed of stacks that are known.
    #[serde(skip)]
    pub nonce_stacks: Option<NonceStacks>,
    /// The whole trace; `None` if the machine never ran.
    pub trace: Option<Trace>,
    /// Numbers of the trials, if there was more than one. Everything else is of the first trial
    /// that did not pass, or else of one of them.
    pub trials: Option<Trials>,
}

/// Places of a kernel with many mutants, a byte each: 0 where it was not executed. Empty for any other kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reached {
    /// In the trials.
    pub in_trials: Vec<u8>,
    /// In the boot.
    pub before: Vec<u8>,
}

impl Reached {
    /// Adds what another trial executed.
    pub fn add(&mut self, other: &Self) {
        for (all, more) in [
            (&mut self.in_trials, &other.in_trials),
            (&mut self.before, &other.before),
        ] {
            all.resize(all.len().max(more.len()), 0);
            for (one, other) in all.iter_mut().zip(more) {
                *one |= other;
            }
        }
    }
}

/// Numbers of the trials of one scenario.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Trials {
    /// Trials made.
    pub made: u32,
    /// Trials that matched a finding.
    pub expected_failures: u32,
    /// Preemptions in all trials.
    pub preemptions: u64,
}

/// One invariant's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct InvariantCheck {
    /// Its ID.
    pub invariant: String,
    /// Its answer.
    pub check: Check,
}

/// One violation, with the finding that it matches, if any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct JudgedViolation {
    /// The violation.
    #[serde(flatten)]
    pub violation: Violation,
    /// The finding's ID.
    pub finding: Option<String>,
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Artifact {
    /// Its contents (`console`).
    pub kind: String,
    /// Its path.
    pub path: PathBuf,
}

impl ScenarioResult {
    /// The result of a scenario for which no machine ran.
    #[must_use]
    pub fn not_run(name: &str, outcome: Outcome, reason: String) -> Self {
        Self {
            name: name.to_owned(),
            outcome,
            reasons: vec![reason],
            checks: Vec::new(),
            violations: Vec::new(),
            program_finding: None,
            canonical: None,
            snapshot: None,
            counts: Counts::default(),
            duration: Duration::ZERO,
            attempts: Vec::new(),
            artifacts: Vec::new(),
            trace_sha256: None,
            reached: Reached::default(),
            nonce_stacks: None,
            trace: None,
            trials: None,
        }
    }

    /// The outcome and the gravest reason, in a line.
    #[must_use]
    pub fn brief(&self) -> String {
        let reason = self.reasons.first().map_or("", String::as_str);
        format!("{}: {} {reason}", self.name, self.outcome.name())
    }

    /// The invariants with violations that match no finding, each once, in order.
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

    /// IDs of the matched findings, each once.
    #[must_use]
    pub fn findings(&self) -> Vec<&str> {
        let mut ids: Vec<&str> = self
            .violations
            .iter()
            .filter_map(|violation| violation.finding.as_deref())
            .chain(self.program_finding.as_deref())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// As a number of seconds.
pub(super) fn seconds<S: serde::Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
