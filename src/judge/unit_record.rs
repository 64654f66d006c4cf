//! A result as it is read again from the file of a part, and results of one scenario as one.

use std::time::Duration;

use serde::Deserialize;

use super::counts::Counts;
use super::flaky::{Attempt, FlakyIs};
use super::outcome::{Outcome, OutcomeClass};
use super::result::{JudgedViolation, ScenarioResult, Trials};

/// What is read of a result.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UnitResult {
    /// The scenario.
    pub name: String,
    outcome: Outcome,
    reasons: Vec<String>,
    violations: Vec<JudgedViolation>,
    program_finding: Option<String>,
    counts: Counts,
    duration: f64,
    #[serde(default)]
    attempts: Vec<UnitAttempt>,
    trials: Option<Trials>,
}

#[derive(Debug, Clone, Deserialize)]
struct UnitAttempt {
    outcome: Outcome,
    reasons: Vec<String>,
    duration: f64,
}

impl UnitResult {
    /// Reads a line.
    ///
    /// # Errors
    /// [`serde_json::Error`] where it is not that of a result.
    pub fn read(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }
}

/// What no trial takes is no time: times are added.
fn time(seconds: f64) -> Duration {
    const MOST: f64 = 1e9;
    match seconds <= MOST {
        true => Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        false => Duration::ZERO,
    }
}

impl From<UnitResult> for ScenarioResult {
    fn from(read: UnitResult) -> Self {
        let attempts = read.attempts.into_iter().map(|it| Attempt {
            outcome: it.outcome,
            reasons: it.reasons,
            duration: time(it.duration),
            artifacts: Vec::new(),
        });
        Self {
            reasons: read.reasons,
            violations: read.violations,
            program_finding: read.program_finding,
            counts: read.counts,
            duration: time(read.duration),
            attempts: attempts.collect(),
            trials: read.trials,
            ..Self::not_run(&read.name, read.outcome, String::new())
        }
    }
}

/// The trials that a scenario is to have.
#[derive(Debug, Clone, Copy)]
pub struct Planned<'a> {
    /// The scenario.
    pub name: &'a str,
    /// How many.
    pub planned: u32,
    /// Whether a preemption must have been made in one of them.
    pub explores: bool,
}

impl ScenarioResult {
    /// What came of one thing that was run so often, at least once: `flaky` if it was good once and not always.
    #[must_use]
    pub fn of_several(mut results: Vec<Self>) -> Option<Self> {
        let rank = |it: &Self| match (it.outcome, it.outcome.class()) {
            // The last is what it is, with those before it.
            (Outcome::Flaky, _) => 3,
            (_, OutcomeClass::Good) => 2,
            (_, OutcomeClass::Bad) => 1,
            (_, OutcomeClass::Untested) => 0,
        };
        results.sort_by_key(rank);
        let last = results.pop()?;
        let is_good = |it: &&Self| rank(it) >= 2;
        let before = results.iter().filter(|it| !is_good(it));
        let before = before.map(Attempt::of).collect();
        Some(last.after(before))
    }

    /// What came of these trials of a scenario: that of the first that counts as bad, or else of the first that counts as not
    /// tested, or is missing.
    #[must_use]
    pub fn of_trials(of: Planned<'_>, results: &[Self], flaky_is: FlakyIs) -> Self {
        let Planned {
            name,
            planned,
            explores,
        } = of;
        let mut trials = Trials::default();
        let mut duration = Duration::ZERO;
        for result in results {
            let preemptions = result.trials.map_or(0, |it| it.preemptions);
            trials.made = trials.made.saturating_add(1);
            trials.preemptions = trials.preemptions.saturating_add(preemptions);
            trials.expected_failures += u32::from(result.outcome == Outcome::ExpectedFailure);
            duration = duration.saturating_add(result.duration);
        }
        let missing = planned.saturating_sub(trials.made);
        let first = |class| { results.iter() }.find(|it| it.counted(flaky_is) == class);
        let bad = first(OutcomeClass::Bad).or_else(|| first(OutcomeClass::Untested));
        let chosen = match bad {
            Some(result) => result.clone(),
            None if missing > 0 => Self::not_run(
                name,
                Outcome::InfraError,
                format!("{missing} of {planned} trials are missing"),
            ),
            None if explores && trials.preemptions == 0 => Self::not_run(
                name,
                Outcome::Fail,
                "point not reached: no preemption was made in any trial".to_owned(),
            ),
            None => {
                let is = |outcome| { results.iter() }.find(|it| it.outcome == outcome);
                let told = is(Outcome::Flaky).or_else(|| is(Outcome::ExpectedFailure));
                match told.or(results.last()) {
                    Some(result) => result.clone(),
                    None => Self::not_run(name, Outcome::InfraError, "no trial".to_owned()),
                }
            }
        };
        Self {
            duration,
            trials: Some(trials),
            ..chosen
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::flaky::exit_code_of;

    fn result(outcome: Outcome, preemptions: u64) -> ScenarioResult {
        let mut result = ScenarioResult::not_run("s", outcome, outcome.name().to_owned());
        result.trials = Some(Trials {
            made: 1,
            expected_failures: 0,
            preemptions,
        });
        result
    }

    fn of(outcomes: &[Outcome], planned: u32, preemptions: u64) -> ScenarioResult {
        let results = outcomes.iter().map(|it| result(*it, preemptions));
        let results: Vec<ScenarioResult> = results.collect();
        let of = Planned {
            name: "s",
            planned,
            explores: true,
        };
        ScenarioResult::of_trials(of, &results, FlakyIs::Fail)
    }

    #[test]
    fn trials_are_what_the_worst_of_them_is() {
        use Outcome::{ExpectedFailure, Fail, Flaky, InfraError, Pass};
        assert_eq!(of(&[Pass, Pass], 2, 1).outcome, Pass);
        assert_eq!(of(&[Pass, ExpectedFailure], 2, 1).outcome, ExpectedFailure);
        assert_eq!(of(&[InfraError, Fail], 3, 1).outcome, Fail);
        assert_eq!(of(&[Pass, InfraError], 2, 1).outcome, InfraError);
        assert_eq!(of(&[Pass, Flaky], 2, 1).outcome, Flaky);
        let trials = of(&[Pass, ExpectedFailure, Pass], 3, 2).trials.unwrap();
        assert_eq!(
            (trials.made, trials.expected_failures, trials.preemptions),
            (3, 1, 6)
        );
    }

    #[test]
    fn trials_that_are_missing_or_explored_nothing_are_no_pass() {
        let missing = of(&[Outcome::Pass], 2, 1);
        assert_eq!(missing.outcome, Outcome::InfraError);
        assert_eq!(missing.reasons, ["1 of 2 trials are missing"]);
        let nothing = of(&[Outcome::Pass, Outcome::Pass], 2, 0);
        assert_eq!(nothing.outcome, Outcome::Fail);
        assert_eq!(of(&[], 2, 0).outcome, Outcome::InfraError);
    }

    #[test]
    fn a_flaky_trial_that_counts_as_good_hides_nothing() {
        let flaky = result(Outcome::Pass, 1).after(vec![Attempt::of(&result(Outcome::Hang, 0))]);
        let of = |other| {
            let results = [flaky.clone(), result(other, 1)];
            let of = Planned {
                name: "s",
                planned: 2,
                explores: false,
            };
            let all = ScenarioResult::of_trials(of, &results, FlakyIs::Pass);
            exit_code_of(&[all], FlakyIs::Pass)
        };
        assert_eq!(of(Outcome::Pass), 0);
        assert_eq!(of(Outcome::InfraError), 125);
        assert_eq!(of(Outcome::Fail), 1);
    }

    #[test]
    fn what_was_run_twice_is_flaky_if_only_one_is_good() {
        use Outcome::{Fail, Hang, InfraError, Pass};
        let of = |outcomes: &[Outcome]| {
            let results = outcomes.iter().map(|it| result(*it, 0)).collect();
            ScenarioResult::of_several(results).unwrap()
        };
        let code = |outcomes: &[Outcome]| exit_code_of(&[of(outcomes)], FlakyIs::Fail);
        assert_eq!(of(&[Pass, Pass]).outcome, Pass);
        assert_eq!(of(&[Pass, Fail]).outcome, Outcome::Flaky);
        assert_eq!((code(&[Pass, Fail]), code(&[Fail, Pass])), (1, 1));
        assert_eq!(code(&[InfraError, Pass]), 125);
        assert_eq!(of(&[Hang, InfraError]).outcome, Hang);
        assert_eq!(code(&[Hang, InfraError]), 1);
        assert!(ScenarioResult::of_several(Vec::new()).is_none());
    }
}
