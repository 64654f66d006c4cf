//! What is searched for: one invariant that falls, or a kernel that dies in one way.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::judge::{Outcome, ScenarioResult};
use unwindlab_oracle::invariant::Check;

/// How the bad kernel is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Symptom {
    /// This invariant falls.
    Invariant(String),
    /// It panics.
    GuestPanic,
    /// It hangs.
    Hang,
}

impl fmt::Display for Symptom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invariant(id) => write!(f, "{id} violated"),
            Self::GuestPanic => f.write_str("guest-panic"),
            Self::Hang => f.write_str("hang"),
        }
    }
}

/// What one run says of a symptom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// It is there.
    Yes,
    /// It could have been seen, and is not there.
    No,
    /// The kernel could not be tested for it, now and ever.
    Untestable(String),
    /// The harness failed: try again.
    Again(String),
}

/// The symptoms that these runs show, the most frequent first; of equals, the first by name. Empty
/// where all passed.
#[must_use]
pub fn of(results: &[ScenarioResult]) -> Vec<Symptom> {
    let mut seen: BTreeMap<Symptom, u32> = BTreeMap::new();
    for result in results {
        for symptom in all(result) {
            *seen.entry(symptom).or_default() += 1;
        }
    }
    let mut seen: Vec<(Symptom, u32)> = seen.into_iter().collect();
    seen.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    seen.into_iter().map(|(symptom, _)| symptom).collect()
}

/// The symptoms of one run: the invariants that fell, else how the kernel died.
fn all(result: &ScenarioResult) -> Vec<Symptom> {
    let mut fallen: Vec<Symptom> = result
        .fallen()
        .into_iter()
        .map(|id| Symptom::Invariant(id.to_owned()))
        .collect();
    if fallen.is_empty() {
        match result.outcome {
            Outcome::GuestPanic => fallen.push(Symptom::GuestPanic),
            Outcome::Hang => fallen.push(Symptom::Hang),
            _ => {}
        }
    }
    fallen
}

impl Symptom {
    /// Whether a run shows it.
    #[must_use]
    pub fn shown(&self, result: &ScenarioResult) -> Shown {
        if all(result).contains(self) {
            return Shown::Yes;
        }
        let reason = || {
            let reason = result.reasons.first().map_or("", String::as_str);
            format!("{} {reason}", result.outcome.name())
        };
        match (result.outcome, self) {
            (Outcome::InfraError | Outcome::Timeout, _) => Shown::Again(reason()),
            (outcome, _) if !outcome.is_tested() => Shown::Untestable(reason()),
            (Outcome::Pass | Outcome::ExpectedFailure, _) => Shown::No,
            // Wrong in another way: of use only where this invariant was really looked at.
            (Outcome::Fail, Self::Invariant(id)) if holds(result, id) => Shown::No,
            (Outcome::Fail, Self::GuestPanic | Self::Hang) => Shown::No,
            _ => Shown::Untestable(format!("{}, which is not {self}", reason())),
        }
    }
}

fn holds(result: &ScenarioResult, id: &str) -> bool {
    result
        .checks
        .iter()
        .any(|it| it.invariant == id && matches!(it.check, Check::Holds { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::result::{InvariantCheck, JudgedViolation};
    use unwindlab_oracle::invariant::Violation;

    fn result(outcome: Outcome, fell: &[&str]) -> ScenarioResult {
        let mut result = ScenarioResult::not_run("s", outcome, "why".to_owned());
        result.violations = fell
            .iter()
            .map(|id| JudgedViolation {
                violation: Violation {
                    invariant: (*id).to_owned(),
                    message: String::new(),
                    events: Vec::new(),
                    instruction: None,
                    log: Vec::new(),
                },
                finding: None,
            })
            .collect();
        result
    }

    #[test]
    fn takes_what_most_runs_show() {
        let runs = [
            result(Outcome::Fail, &["M1", "C4"]),
            result(Outcome::Fail, &["M1"]),
            result(Outcome::Pass, &[]),
        ];
        let invariant = |id: &str| Symptom::Invariant(id.to_owned());
        assert_eq!(of(&runs), [invariant("M1"), invariant("C4")]);
        assert_eq!(
            of(&[result(Outcome::GuestPanic, &[])]),
            [Symptom::GuestPanic]
        );
        assert_eq!(of(&[result(Outcome::Pass, &[])]), []);
    }

    #[test]
    fn another_failure_is_not_the_same() {
        let symptom = Symptom::Invariant("M1".to_owned());
        assert_eq!(
            symptom.shown(&result(Outcome::Fail, &["M1", "X9"])),
            Shown::Yes
        );
        assert_eq!(symptom.shown(&result(Outcome::Pass, &[])), Shown::No);
        let other = result(Outcome::Fail, &["C4"]);
        assert!(matches!(symptom.shown(&other), Shown::Untestable(_)));
        let mut looked = other;
        looked.checks.push(InvariantCheck {
            invariant: "M1".to_owned(),
            check: Check::Holds {
                evidence: 3,
                excused: Vec::new(),
            },
        });
        assert_eq!(symptom.shown(&looked), Shown::No);
        let panicked = symptom.shown(&result(Outcome::GuestPanic, &[]));
        assert!(matches!(panicked, Shown::Untestable(_)));
        let infra = symptom.shown(&result(Outcome::InfraError, &[]));
        assert!(matches!(infra, Shown::Again(_)));
    }

    #[test]
    fn a_finding_is_no_symptom() {
        let mut known = result(Outcome::ExpectedFailure, &["M1"]);
        known.violations[0].finding = Some("F001".to_owned());
        assert_eq!(of(&[known.clone()]), []);
        let symptom = Symptom::Invariant("M1".to_owned());
        assert_eq!(symptom.shown(&known), Shown::No);
    }
}
