//! What a bisection searches for: one invariant that falls, or one way in which the kernel dies.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::judge::{Outcome, ScenarioResult};
use unwindlab_oracle::invariant::Check;

/// How the bad kernel is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BisectSymptom {
    /// This invariant falls.
    Invariant(String),
    /// It panics.
    GuestPanic,
    /// It breaks the protocol.
    GuestMisbehaved,
    /// It hangs.
    Hang,
}

impl fmt::Display for BisectSymptom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invariant(id) => write!(f, "{id} violated"),
            Self::GuestPanic => f.write_str("guest-panic"),
            Self::GuestMisbehaved => f.write_str("guest-misbehaved"),
            Self::Hang => f.write_str("hang"),
        }
    }
}

/// Whether one run shows a symptom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SymptomCheck {
    /// The symptom is there.
    Shown,
    /// It could have been seen, and is not there.
    NotShown,
    /// The kernel can never be tested for it, for this reason.
    Untestable(String),
    /// The harness failed, for this reason: another run may tell.
    HarnessFailed(String),
}

/// The symptoms that these runs show, the most frequent first, equally frequent ones by name. Empty
/// if all passed.
#[must_use]
pub fn of(results: &[ScenarioResult]) -> Vec<BisectSymptom> {
    let mut seen: BTreeMap<BisectSymptom, u32> = BTreeMap::new();
    for result in results {
        for symptom in all(result) {
            *seen.entry(symptom).or_default() += 1;
        }
    }
    let mut seen: Vec<(BisectSymptom, u32)> = seen.into_iter().collect();
    seen.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    seen.into_iter().map(|(symptom, _)| symptom).collect()
}

/// The symptoms of one run: the invariants that fell, else how the kernel died.
fn all(result: &ScenarioResult) -> Vec<BisectSymptom> {
    let mut fallen: Vec<BisectSymptom> = result
        .fallen()
        .into_iter()
        .map(|id| BisectSymptom::Invariant(id.to_owned()))
        .collect();
    if fallen.is_empty() {
        match result.outcome {
            Outcome::GuestPanic => fallen.push(BisectSymptom::GuestPanic),
            Outcome::GuestMisbehaved => fallen.push(BisectSymptom::GuestMisbehaved),
            Outcome::Hang => fallen.push(BisectSymptom::Hang),
            _ => {}
        }
    }
    fallen
}

impl BisectSymptom {
    /// Whether a run shows this symptom.
    #[must_use]
    pub fn check(&self, result: &ScenarioResult) -> SymptomCheck {
        if all(result).contains(self) {
            return SymptomCheck::Shown;
        }
        let reason = || {
            let reason = result.reasons.first().map_or("", String::as_str);
            format!("{} {reason}", result.outcome.name())
        };
        match (result.outcome, self) {
            (Outcome::InfraError | Outcome::Timeout, _) => SymptomCheck::HarnessFailed(reason()),
            _ if !result.is_tested() => SymptomCheck::Untestable(reason()),
            (Outcome::Pass | Outcome::ExpectedFailure, _) => SymptomCheck::NotShown,
            // Wrong in another way: of use only where this invariant was really looked at.
            (Outcome::Fail, Self::Invariant(id)) if holds(result, id) => SymptomCheck::NotShown,
            (Outcome::Fail, Self::GuestPanic | Self::GuestMisbehaved | Self::Hang) => {
                SymptomCheck::NotShown
            }
            _ => SymptomCheck::Untestable(format!("{}, which is not {self}", reason())),
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
                    receiver: None,
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
        let invariant = |id: &str| BisectSymptom::Invariant(id.to_owned());
        assert_eq!(of(&runs), [invariant("M1"), invariant("C4")]);
        assert_eq!(
            of(&[result(Outcome::GuestPanic, &[])]),
            [BisectSymptom::GuestPanic]
        );
        assert_eq!(of(&[result(Outcome::Pass, &[])]), []);
    }

    #[test]
    fn another_failure_is_not_the_same() {
        let symptom = BisectSymptom::Invariant("M1".to_owned());
        assert_eq!(
            symptom.check(&result(Outcome::Fail, &["M1", "X9"])),
            SymptomCheck::Shown
        );
        assert_eq!(
            symptom.check(&result(Outcome::Pass, &[])),
            SymptomCheck::NotShown
        );
        let other = result(Outcome::Fail, &["C4"]);
        assert!(matches!(symptom.check(&other), SymptomCheck::Untestable(_)));
        let mut looked = other;
        looked.checks.push(InvariantCheck {
            invariant: "M1".to_owned(),
            check: Check::Holds {
                evidence: 3,
                undecided: 0,
                excused: Vec::new(),
            },
        });
        assert_eq!(symptom.check(&looked), SymptomCheck::NotShown);
        let panicked = symptom.check(&result(Outcome::GuestPanic, &[]));
        assert!(matches!(panicked, SymptomCheck::Untestable(_)));
        let infra = symptom.check(&result(Outcome::InfraError, &[]));
        assert!(matches!(infra, SymptomCheck::HarnessFailed(_)));
    }

    #[test]
    fn a_finding_is_no_symptom() {
        let mut known = result(Outcome::ExpectedFailure, &["M1"]);
        known.violations[0].finding = Some("F001".to_owned());
        assert_eq!(of(&[known.clone()]), []);
        let symptom = BisectSymptom::Invariant("M1".to_owned());
        assert_eq!(symptom.check(&known), SymptomCheck::NotShown);
    }
}
