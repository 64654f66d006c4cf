//! The outcomes of a scenario, and the exit code that follows from them. docs/outcomes.md has the
//! table.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The outcome of one scenario. Only [`Outcome::Pass`] is a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every invariant that could be checked holds, the injections were made, all expectations
    /// are met, and the snapshot is the same.
    Pass,
    /// Some of that does not hold.
    Fail,
    /// There are violations, and each matches a finding: a listed kernel bug that is understood.
    ExpectedFailure,
    /// The kernel lacks what the scenario tests, by its symbols, or the KVM host does.
    Skip,
    /// The guest says that its kernel lacks what the scenario tests. Nobody else says so.
    GuestSkip,
    /// The guest kernel panicked or oopsed.
    GuestPanic,
    /// The guest did what no agent does: it broke the protocol, or announced what its plan has not.
    GuestMisbehaved,
    /// The guest or its workload stopped making progress.
    Hang,
    /// The time limit passed while the guest was still making progress.
    Timeout,
    /// It did not pass, and passed when it was run once more (`--retries`).
    Flaky,
    /// The guest did not boot as far as its agent.
    BootError,
    /// The harness or the KVM host failed.
    InfraError,
}

/// What an outcome says about the kernel under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutcomeClass {
    /// The kernel is right, or wrong only in known ways.
    Good,
    /// The kernel is wrong.
    Bad,
    /// Nothing: the kernel was not tested.
    Untested,
}

impl OutcomeClass {
    /// That of several together: bad if any is, else untested if any is or there is none.
    pub fn of_all(classes: impl IntoIterator<Item = Self>) -> Self {
        let worse = |one, other| match (one, other) {
            (Self::Bad, _) | (_, Self::Bad) => Self::Bad,
            (Self::Untested, _) | (_, Self::Untested) => Self::Untested,
            (Self::Good, Self::Good) => Self::Good,
        };
        classes.into_iter().reduce(worse).unwrap_or(Self::Untested)
    }
}

impl Outcome {
    /// Every outcome, in the order of docs/outcomes.md.
    pub const ALL: [Self; 12] = [
        Self::Pass,
        Self::ExpectedFailure,
        Self::Fail,
        Self::GuestPanic,
        Self::GuestMisbehaved,
        Self::Hang,
        Self::Flaky,
        Self::Skip,
        Self::GuestSkip,
        Self::BootError,
        Self::Timeout,
        Self::InfraError,
    ];

    /// The word in tables and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::ExpectedFailure => "expected-failure",
            Self::Skip => "skip",
            Self::GuestPanic => "guest-panic",
            Self::GuestMisbehaved => "guest-misbehaved",
            Self::GuestSkip => "guest-skip",
            Self::Hang => "hang",
            Self::Flaky => "flaky",
            Self::Timeout => "timeout",
            Self::BootError => "boot-error",
            Self::InfraError => "infra-error",
        }
    }

    /// Whether the guest ended its trial before its time, which is the kernel's fault: what was recorded is cut short,
    /// and lacks what a violation is told by.
    #[must_use]
    pub const fn is_death(self) -> bool {
        matches!(self, Self::GuestPanic | Self::GuestMisbehaved | Self::Hang)
    }

    /// What it says about the kernel.
    ///
    /// A timeout says nothing: the guest was still working, and how far it gets in a given time
    /// depends on the speed of the KVM host and on its load. A bisection must not call a commit
    /// bad for that. A kernel that keeps user mode from advancing is a `hang`, or fails the
    /// scenario's `expect: progress`.
    ///
    /// A flaky result says what the attempts before the last say: [`ScenarioResult::class`] knows them. Alone,
    /// it counts as bad.
    ///
    /// [`ScenarioResult::class`]: super::result::ScenarioResult::class
    #[must_use]
    pub const fn class(self) -> OutcomeClass {
        match self {
            Self::Pass | Self::ExpectedFailure => OutcomeClass::Good,
            Self::Fail | Self::GuestPanic | Self::GuestMisbehaved | Self::Hang | Self::Flaky => {
                OutcomeClass::Bad
            }
            Self::Skip | Self::GuestSkip | Self::BootError | Self::Timeout | Self::InfraError => {
                OutcomeClass::Untested
            }
        }
    }
}

/// Exit code for wrong usage and for scenario files with errors.
pub const EXIT_USAGE: u8 = 2;
/// Exit code if something could not be tested; `git bisect run` skips such a commit.
pub const EXIT_UNTESTED: u8 = 125;
/// Exit code after Ctrl-C, as in shells.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The exit code of a run: 1 if the kernel is wrong, else 125 if something could not be tested,
/// else 0. A run without scenarios, or with skips only, tested nothing. A skip beside other
/// outcomes does not count: that a stock kernel lacks the lab client says nothing about the other
/// scenarios. A skip that only the guest asks for does: a kernel could hide its failures behind it.
pub fn exit_code(outcomes: impl IntoIterator<Item = Outcome>) -> u8 {
    let counted = outcomes.into_iter().filter(|it| *it != Outcome::Skip);
    class_code(OutcomeClass::of_all(counted.map(Outcome::class)))
}

/// The exit code of what was judged so.
#[must_use]
pub const fn class_code(class: OutcomeClass) -> u8 {
    match class {
        OutcomeClass::Good => 0,
        OutcomeClass::Bad => 1,
        OutcomeClass::Untested => EXIT_UNTESTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes() {
        let alone = Outcome::ALL.map(|outcome| (outcome.name(), exit_code([outcome])));
        assert_eq!(
            alone,
            [
                ("pass", 0),
                ("expected-failure", 0),
                ("fail", 1),
                ("guest-panic", 1),
                ("guest-misbehaved", 1),
                ("hang", 1),
                ("flaky", 1),
                ("skip", 125),
                ("guest-skip", 125),
                ("boot-error", 125),
                ("timeout", 125),
                ("infra-error", 125),
            ]
        );
        assert_eq!(exit_code([]), 125, "nothing run is nothing tested");
        assert_eq!(exit_code([Outcome::Pass, Outcome::Skip]), 0);
        assert_eq!(exit_code([Outcome::Skip, Outcome::Skip]), 125);
        assert_eq!(exit_code([Outcome::Pass, Outcome::GuestSkip]), 125);
        assert_eq!(exit_code([Outcome::Skip, Outcome::InfraError]), 125);
        assert_eq!(exit_code([Outcome::Skip, Outcome::Fail]), 1);
        assert_eq!(exit_code([Outcome::Fail, Outcome::InfraError]), 1);
        assert_eq!(exit_code([Outcome::Pass, Outcome::ExpectedFailure]), 0);
    }

    #[test]
    fn who_dies_is_bad_and_so_is_who_fails() {
        for outcome in Outcome::ALL {
            let is_bad = outcome.class() == OutcomeClass::Bad;
            let is_told = matches!(outcome, Outcome::Fail | Outcome::Flaky);
            assert_eq!(is_bad, outcome.is_death() || is_told);
        }
    }

    #[test]
    fn names_are_the_serialised_ones() {
        for outcome in Outcome::ALL {
            let json = serde_json::to_value(outcome).unwrap();
            assert_eq!(json, outcome.name());
        }
    }

    #[test]
    fn documented() {
        let page = include_str!("../../docs/outcomes.md");
        for outcome in Outcome::ALL {
            let row = format!("| `{}` | {} |", outcome.name(), exit_code([outcome]));
            assert!(page.contains(&row), "docs/outcomes.md lacks: {row}");
        }
    }
}
