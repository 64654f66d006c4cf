//! What many trials of one scenario say: how often it fails at most.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statrs::function::beta::beta_reg;

use super::outcome::{Outcome, OutcomeClass};
use super::result::ScenarioResult;

/// The confidence with which a failure rate is below its bound.
pub const CONFIDENCE: f64 = 0.95;

/// One trial, as far as it counts here; a line of the file of a part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SoakTrial {
    /// The scenario.
    pub name: String,
    outcome: Outcome,
    class: OutcomeClass,
    /// The findings that it matched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    findings: Vec<String>,
    /// The gravest reason against a pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    seconds: f64,
}

impl SoakTrial {
    /// What counts of a result.
    #[must_use]
    pub fn of(result: &ScenarioResult) -> Self {
        Self {
            name: result.name.clone(),
            outcome: result.outcome,
            class: result.class(),
            findings: { result.findings().into_iter() }
                .map(str::to_owned)
                .collect(),
            reason: result.reasons.first().cloned(),
            seconds: result.duration.as_secs_f64(),
        }
    }

    /// What it says of the kernel.
    #[must_use]
    pub const fn class(&self) -> OutcomeClass {
        self.class
    }
}

/// The trials of one scenario, each judged by itself.
#[derive(Debug, Clone, Default)]
pub struct Soaked {
    /// The scenario.
    pub name: String,
    /// Trials that were asked for.
    pub planned: u32,
    /// How many trials ended so, and what they say, by the outcome's name; those that never were are left out.
    outcomes: BTreeMap<&'static str, (Outcome, OutcomeClass, u32)>,
    /// How many trials matched each finding.
    pub findings: BTreeMap<String, u32>,
    /// Each distinct reason against a good trial, and the first trial that gave it. The first few.
    pub reasons: Vec<(u32, String)>,
    /// Why a trial was skipped.
    skipped: Option<String>,
    /// What all trials took, in seconds.
    pub seconds: f64,
}

/// Most distinct reasons that are kept.
const MOST_REASONS: usize = 8;

impl Soaked {
    /// No trial yet.
    #[must_use]
    pub fn new(name: &str, planned: u32) -> Self {
        Self {
            name: name.to_owned(),
            planned,
            ..Self::default()
        }
    }

    /// Adds the trial of this number. A skip is none.
    pub fn add(&mut self, number: u32, trial: &SoakTrial) {
        let reason = trial.reason.as_deref().unwrap_or_default();
        if trial.outcome == Outcome::Skip {
            self.skipped = Some(reason.to_owned());
            return;
        }
        let entry = self.outcomes.entry(trial.outcome.name());
        entry.or_insert((trial.outcome, trial.class, 0)).2 += 1;
        for finding in &trial.findings {
            *self.findings.entry(finding.clone()).or_default() += 1;
        }
        self.seconds += trial.seconds;
        if trial.outcome.class() == OutcomeClass::Good {
            return;
        }
        let reason = format!("{}: {reason}", trial.outcome.name());
        let is_new = self.reasons.iter().all(|(_, it)| *it != reason);
        if is_new && self.reasons.len() < MOST_REASONS {
            self.reasons.push((number, reason));
        }
    }

    /// Why there are no trials.
    #[must_use]
    pub fn skip(&self) -> Option<&str> {
        self.skipped.as_deref().filter(|_| self.made() == 0)
    }

    /// Trials made.
    #[must_use]
    pub fn made(&self) -> u32 {
        self.outcomes.values().map(|(_, _, count)| count).sum()
    }

    /// Trials that ended so.
    #[must_use]
    pub fn class(&self, class: OutcomeClass) -> u32 {
        let of = self.outcomes.values().filter(|it| it.1 == class);
        of.map(|(_, _, count)| count).sum()
    }

    /// Trials that say something of the kernel.
    #[must_use]
    pub fn judged(&self) -> u32 {
        self.made() - self.class(OutcomeClass::Untested)
    }

    /// Trials that say that the kernel is wrong, in a way that is not listed.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.class(OutcomeClass::Bad)
    }

    /// What the failure rate is at most, with [`CONFIDENCE`]; 1 without a trial that says something.
    #[must_use]
    pub fn at_most(&self) -> f64 {
        upper_bound(self.failures(), self.judged())
    }

    /// How many ended so, in the order of [`Outcome::ALL`].
    #[must_use]
    pub fn outcomes(&self) -> Vec<(Outcome, u32)> {
        let count = |outcome: Outcome| {
            let of = self.outcomes.get(outcome.name());
            of.map(|(_, _, count)| (outcome, *count))
        };
        Outcome::ALL.into_iter().filter_map(count).collect()
    }

    /// What those of several scenarios say together. As of a run, a skip beside others does not count.
    #[must_use]
    pub fn class_of(all: &[Self]) -> OutcomeClass {
        let run = all.iter().filter(|it| it.skip().is_none());
        OutcomeClass::of_all(run.map(Self::verdict))
    }

    /// Good only if each trial that was asked for was made and is good.
    #[must_use]
    pub fn verdict(&self) -> OutcomeClass {
        let all_good = self.made() > 0 && self.class(OutcomeClass::Good) == self.planned;
        match (self.failures(), all_good) {
            (1.., _) => OutcomeClass::Bad,
            (0, true) => OutcomeClass::Good,
            (0, false) => OutcomeClass::Untested,
        }
    }
}

/// The one-sided upper bound of a rate at which so many of so many trials failed, with [`CONFIDENCE`] (Clopper and
/// Pearson, Biometrika 26, 1934): the rate at which as few failures or fewer have a chance of 5 %. It takes the
/// trials for independent.
fn upper_bound(failures: u32, trials: u32) -> f64 {
    if failures >= trials {
        return 1.0;
    }
    // The chance of more failures than these at a rate is a regularised incomplete beta function.
    let (a, b) = (f64::from(failures) + 1.0, f64::from(trials - failures));
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        match beta_reg(a, b, middle) < CONFIDENCE {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soaked(outcomes: &[(Outcome, u32)]) -> Soaked {
        let planned = outcomes.iter().map(|(_, count)| count).sum();
        let mut soaked = Soaked::new("s", planned);
        for &(outcome, count) in outcomes {
            for _ in 0..count {
                let result = ScenarioResult::not_run("s", outcome, "why".to_owned());
                soaked.add(soaked.made() + 1, &SoakTrial::of(&result));
            }
        }
        soaked
    }

    /// Where nothing failed, (1 - rate)^n is 5 %: the exact form of the rule of three.
    #[test]
    fn the_bound_is_that_of_clopper_and_pearson() {
        for trials in [1, 17, 1000, 1_000_000] {
            let exact = 1.0 - 0.05_f64.powf(1.0 / f64::from(trials));
            let bound = upper_bound(0, trials);
            assert!(
                (bound / exact - 1.0).abs() < 1e-6,
                "{trials}: {bound} {exact}"
            );
        }
        // R: binom.test(1, 100, alternative = "less")$conf.int[2], and for 5 of 10.
        assert!((upper_bound(1, 100) - 0.046_559_81).abs() < 1e-6);
        assert!((upper_bound(5, 10) - 0.777_558_8).abs() < 1e-6);
        assert!((upper_bound(3, 3) - 1.0).abs() < 1e-12);
        assert!((upper_bound(0, 0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn what_says_nothing_of_the_kernel_is_no_trial_that_held() {
        let held = soaked(&[(Outcome::Pass, 9), (Outcome::ExpectedFailure, 1)]);
        assert_eq!((held.judged(), held.failures()), (10, 0));
        assert_eq!(held.verdict(), OutcomeClass::Good);
        let lost = soaked(&[(Outcome::Pass, 9), (Outcome::InfraError, 1)]);
        assert_eq!((lost.made(), lost.judged(), lost.failures()), (10, 9, 0));
        assert_eq!(lost.verdict(), OutcomeClass::Untested);
        assert!(lost.at_most() > held.at_most());
        let failed = soaked(&[(Outcome::Pass, 8), (Outcome::Hang, 2)]);
        assert_eq!(failed.verdict(), OutcomeClass::Bad);
        assert_eq!(failed.reasons, [(9, "hang: why".to_owned())]);
        assert_eq!(soaked(&[]).verdict(), OutcomeClass::Untested);
        // Broken off by the user.
        let mut cut = soaked(&[(Outcome::Pass, 9)]);
        cut.planned = 10;
        assert_eq!(cut.verdict(), OutcomeClass::Untested);
    }
}
