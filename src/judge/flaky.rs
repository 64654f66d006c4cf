//! Results of scenarios that were run once more because they did not pass.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::outcome::{Outcome, OutcomeClass, class_code};
use super::result::{ScenarioResult, seconds};

/// What a flaky result counts as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum FlakyIs {
    /// As good: the exit code is that of a pass.
    Pass,
    /// As the attempts that did not pass: the exit code is 1, or 125 if they say nothing about the kernel.
    #[default]
    Fail,
}

/// An attempt that did not pass, and after which the scenario was run once more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Attempt {
    /// Its outcome.
    pub outcome: Outcome,
    /// Every reason against a pass, as of a result.
    pub reasons: Vec<String>,
    /// How long it took, in seconds.
    #[serde(serialize_with = "seconds")]
    #[schemars(with = "f64")]
    pub duration: Duration,
    /// Files that were written.
    pub artifacts: Vec<PathBuf>,
}

impl FlakyIs {
    /// The word on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
        }
    }
}

impl Attempt {
    /// What is kept of an attempt that did not pass.
    #[must_use]
    pub fn of(result: &ScenarioResult) -> Self {
        Self {
            outcome: result.outcome,
            reasons: result.reasons.clone(),
            duration: result.duration,
            artifacts: result.artifacts.iter().map(|it| it.path.clone()).collect(),
        }
    }

    /// Its outcome and its gravest reason, in a line.
    fn line(&self, number: usize) -> String {
        let reason = self.reasons.first().map_or("", String::as_str);
        format!("attempt {number}: {}: {reason}", self.outcome.name())
    }
}

impl ScenarioResult {
    /// Whether it is worth another attempt. What the kernel or the KVM host lacks, it lacks the next time too, and what is
    /// flaky stays so.
    #[must_use]
    pub fn may_be_retried(&self) -> bool {
        let is_settled = matches!(self.outcome, Outcome::Skip | Outcome::Flaky);
        !is_settled && self.outcome.class() != OutcomeClass::Good
    }

    /// The result of a trial whose machine was started twice, because the first did not come to its agent: `why`. It is `flaky` if it is
    /// good: a kernel that does not boot now and then is no good one, and neither may the KVM host be.
    #[must_use]
    pub fn started_twice(mut self, why: &str) -> Self {
        let told = format!("{}: {why}", Outcome::BootError.name());
        let first = Attempt {
            outcome: Outcome::BootError,
            reasons: vec![why.to_owned()],
            duration: Duration::ZERO,
            artifacts: Vec::new(),
        };
        if self.outcome.class() == OutcomeClass::Good {
            let told = format!("{told}; {} when it was booted again", self.outcome.name());
            self.reasons.insert(0, told);
            self.outcome = Outcome::Flaky;
        } else {
            self.reasons.push(format!("before that, {told}"));
        }
        self.attempts.insert(0, first);
        self
    }

    /// The result of several attempts, of which this is the last: `flaky` if it is good and those before are not.
    #[must_use]
    pub fn after(mut self, mut before: Vec<Attempt>) -> Self {
        if before.is_empty() {
            return self;
        }
        let told = before.iter().zip(1..).map(|(it, number)| it.line(number));
        let mut told: Vec<String> = told.collect();
        if self.outcome == Outcome::Flaky || self.outcome.class() == OutcomeClass::Good {
            told.push(format!(
                "attempt {}: {}",
                before.len() + 1,
                self.outcome.name()
            ));
            told.append(&mut self.reasons);
            self.reasons = told;
            self.outcome = Outcome::Flaky;
        } else {
            self.reasons.append(&mut told);
        }
        self.duration += before.iter().map(|it| it.duration).sum::<Duration>();
        before.append(&mut self.attempts);
        self.attempts = before;
        self
    }

    /// Whether it says anything about the kernel. One whose machine was started twice, and is good otherwise, does not.
    #[must_use]
    pub fn is_tested(&self) -> bool {
        self.class() != OutcomeClass::Untested
    }

    /// What it says about the kernel. A flaky result says what the attempts that did not pass say.
    #[must_use]
    pub fn class(&self) -> OutcomeClass {
        match self.outcome {
            Outcome::Flaky => {
                OutcomeClass::of_all(self.attempts.iter().map(|it| it.outcome.class()))
            }
            outcome => outcome.class(),
        }
    }

    /// Whether it is neither good nor skipped: its reasons are shown.
    #[must_use]
    pub fn went_wrong(&self) -> bool {
        self.class() != OutcomeClass::Good && self.outcome != Outcome::Skip
    }

    /// What it counts as for the exit code.
    #[must_use]
    pub fn counted(&self, flaky_is: FlakyIs) -> OutcomeClass {
        match (self.outcome, flaky_is) {
            (Outcome::Flaky, FlakyIs::Pass) => OutcomeClass::Good,
            _ => self.class(),
        }
    }
}

/// The exit code of a run, as [`exit_code`](super::exit_code) has it, with what a flaky result counts as.
#[must_use]
pub fn exit_code_of(results: &[ScenarioResult], flaky_is: FlakyIs) -> u8 {
    class_code(class_of(results, flaky_is))
}

/// What a run says of the kernel.
#[must_use]
pub fn class_of(results: &[ScenarioResult], flaky_is: FlakyIs) -> OutcomeClass {
    let counted = results.iter().filter(|it| it.outcome != Outcome::Skip);
    OutcomeClass::of_all(counted.map(|it| it.counted(flaky_is)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::exit_code;

    fn result(outcome: Outcome) -> ScenarioResult {
        let mut result = ScenarioResult::not_run("a", outcome, "why".to_owned());
        result.duration = Duration::from_secs(2);
        result
    }

    fn after(last: Outcome, before: &[Outcome]) -> ScenarioResult {
        let before = before.iter().map(|it| Attempt::of(&result(*it)));
        result(last).after(before.collect())
    }

    #[test]
    fn what_passes_when_it_is_run_once_more_is_flaky_and_no_pass() {
        for good in [Outcome::Pass, Outcome::ExpectedFailure] {
            let flaky = after(good, &[Outcome::Hang, Outcome::InfraError]);
            assert_eq!(flaky.outcome, Outcome::Flaky);
            let told = [
                "attempt 1: hang: why",
                "attempt 2: infra-error: why",
                &format!("attempt 3: {}", good.name()),
                "why",
            ];
            assert_eq!(flaky.reasons, told);
            assert_eq!(flaky.duration.as_secs(), 6);
            assert_eq!(flaky.attempts.len(), 2);
        }
    }

    #[test]
    fn what_never_passes_is_what_it_was_last() {
        let failed = after(Outcome::Fail, &[Outcome::Hang]);
        assert_eq!(failed.outcome, Outcome::Fail);
        assert_eq!(failed.reasons, ["why", "attempt 1: hang: why"]);
        assert_eq!(after(Outcome::Pass, &[]).outcome, Outcome::Pass);
    }

    #[test]
    fn a_boot_that_succeeds_the_second_time_only_is_no_pass() {
        for good in [Outcome::Pass, Outcome::ExpectedFailure] {
            let twice = result(good).started_twice("triple fault");
            assert_eq!(twice.outcome, Outcome::Flaky);
            let told = format!(
                "boot-error: triple fault; {} when it was booted again",
                good.name()
            );
            assert_eq!(twice.reasons, [told.as_str(), "why"]);
            assert!(!twice.is_tested() && !twice.may_be_retried());
            let alone = std::slice::from_ref(&twice);
            assert_eq!(exit_code_of(alone, FlakyIs::Fail), 125);
            assert_eq!(exit_code_of(alone, FlakyIs::Pass), 0);
            let later = twice.after(vec![Attempt::of(&result(Outcome::Hang))]);
            assert_eq!(later.outcome, Outcome::Flaky);
            assert_eq!(later.attempts.len(), 2);
            assert_eq!(exit_code_of(&[later], FlakyIs::Fail), 1);
        }
        let failed = result(Outcome::Fail).started_twice("triple fault");
        assert_eq!(failed.outcome, Outcome::Fail);
        assert_eq!(
            failed.reasons,
            ["why", "before that, boot-error: triple fault"]
        );
        assert_eq!(failed.attempts.len(), 1);
        assert!(failed.is_tested());
    }

    #[test]
    fn a_flaky_result_counts_as_what_went_wrong() {
        let code = |before: &[Outcome], flaky_is| {
            let results = [result(Outcome::Pass), after(Outcome::Pass, before)];
            exit_code_of(&results, flaky_is)
        };
        assert_eq!(code(&[Outcome::Hang], FlakyIs::Fail), 1);
        assert_eq!(code(&[Outcome::InfraError], FlakyIs::Fail), 125);
        assert_eq!(
            code(&[Outcome::InfraError, Outcome::Fail], FlakyIs::Fail),
            1
        );
        assert_eq!(code(&[Outcome::Hang], FlakyIs::Pass), 0);
        let failed = [after(Outcome::Hang, &[Outcome::Hang])];
        assert_eq!(exit_code_of(&failed, FlakyIs::Pass), 1);
    }

    #[test]
    fn without_retries_the_codes_are_the_same() {
        for outcome in Outcome::ALL {
            if outcome != Outcome::Flaky {
                let code = exit_code_of(&[result(outcome)], FlakyIs::Fail);
                assert_eq!(code, exit_code([outcome]));
            }
        }
        assert_eq!(exit_code_of(&[], FlakyIs::Pass), 125);
    }

    #[test]
    fn what_the_kernel_lacks_is_not_asked_again() {
        let retried = Outcome::ALL
            .into_iter()
            .filter(|it| result(*it).may_be_retried());
        assert!(retried.eq(Outcome::ALL.into_iter().filter(|it| {
            !matches!(
                it,
                Outcome::Pass | Outcome::ExpectedFailure | Outcome::Skip | Outcome::Flaky
            )
        })));
    }
}
