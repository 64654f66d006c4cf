//! What is kept of the trial of a place, in the file of a part.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use unwindlab_oracle::invariant::Check;

use super::{Asked, Fate, Place, PlaceVerdict, fate, messages, symptom};
use crate::judge::sweep::SweepSymptom;
use crate::judge::{Outcome, ScenarioResult};
use unwindlab_scenario::KernelSymbols;

/// The trial of a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlaceRecord {
    /// The place, and what came of it.
    pub verdict: PlaceVerdict,
    /// How the guest died, if it did.
    died: Option<Outcome>,
    /// Violated invariants, each with the finding that the violation matches, if any.
    fell: BTreeSet<(String, Option<String>)>,
    /// What is violated, in lines.
    pub(super) messages: Vec<String>,
    /// The invariants that were exercised.
    pub(super) exercised: BTreeSet<String>,
}

impl PlaceRecord {
    /// What is kept of a trial.
    #[must_use]
    pub fn of(place: Place, result: &ScenarioResult, symbols: &dyn KernelSymbols) -> Self {
        let asked = result.trace.as_ref().map(|trace| Asked::of(trace, symbols));
        let fate = fate(result, asked.as_ref());
        let is_judged = matches!(fate, Fate::Passed | Fate::Known | Fate::Failed);
        let exercised = { result.checks.iter() }
            .filter(|it| is_judged && !matches!(it.check, Check::NotExercised { .. }));
        let is_told = matches!(fate, Fate::Known | Fate::Failed);
        Self {
            died: result.outcome.is_death().then_some(result.outcome),
            fell: symptom(result).fell,
            messages: match is_told {
                true => messages(result),
                false => Vec::new(),
            },
            exercised: exercised.map(|it| it.invariant.clone()).collect(),
            verdict: PlaceVerdict {
                place,
                fate,
                entered_by: asked.map(|it| it.entered_by).unwrap_or_default(),
            },
        }
    }

    /// How it failed, if it did.
    pub(super) fn symptom(&self) -> Option<SweepSymptom> {
        let failed = matches!(self.verdict.fate, Fate::Known | Fate::Failed);
        failed.then(|| SweepSymptom {
            died: self.died.map(Outcome::name),
            fell: self.fell.clone(),
        })
    }
}
