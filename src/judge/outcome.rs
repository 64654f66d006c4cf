//! The outcomes of a scenario, and the exit code that follows from them. docs/outcomes.md has the
//! table.

use serde::{Deserialize, Serialize};

/// The outcome of one scenario. Only [`Outcome::Pass`] is a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every invariant that could be checked holds, the injections were made, all expectations
    /// are met, and the snapshot is the same.
    Pass,
    /// Some of that does not hold.
    Fail,
    /// There are violations, and each matches a finding: a listed kernel bug that is understood.
    ExpectedFailure,
    /// The kernel lacks what the scenario tests.
    Skip,
    /// The guest kernel panicked or oopsed.
    GuestPanic,
    /// The guest or its workload stopped making progress.
    Hang,
    /// The time limit passed while the guest was still making progress.
    Timeout,
    /// The guest did not boot as far as its agent.
    BootError,
    /// The harness or the KVM host failed.
    InfraError,
}

/// What an outcome says about the kernel under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeClass {
    /// The kernel is right, or wrong only in known ways.
    Good,
    /// The kernel is wrong.
    Bad,
    /// Nothing: the kernel was not tested.
    Untested,
}

impl Outcome {
    /// Every outcome, in the order of docs/outcomes.md.
    pub const ALL: [Self; 9] = [
        Self::Pass,
        Self::ExpectedFailure,
        Self::Fail,
        Self::GuestPanic,
        Self::Hang,
        Self::Skip,
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
            Self::Hang => "hang",
            Self::Timeout => "timeout",
            Self::BootError => "boot-error",
            Self::InfraError => "infra-error",
        }
    }

    /// Whether it says anything about the kernel.
    #[must_use]
    pub fn is_tested(self) -> bool {
        self.class() != OutcomeClass::Untested
    }

    /// What it says about the kernel.
    ///
    /// A timeout says nothing: the guest was still working, and how far it gets in a given time
    /// depends on the speed of the KVM host and on its load. A bisection must not call a commit
    /// bad for that. A kernel that keeps user mode from advancing is a `hang`, or fails the
    /// scenario's `expect: progress`.
    #[must_use]
    pub const fn class(self) -> OutcomeClass {
        match self {
            Self::Pass | Self::ExpectedFailure => OutcomeClass::Good,
            Self::Fail | Self::GuestPanic | Self::Hang => OutcomeClass::Bad,
            Self::Skip | Self::BootError | Self::Timeout | Self::InfraError => {
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
/// scenarios.
pub fn exit_code(outcomes: impl IntoIterator<Item = Outcome>) -> u8 {
    let mut code = None;
    for outcome in outcomes {
        code = match (outcome.class(), code) {
            _ if outcome == Outcome::Skip => code,
            (OutcomeClass::Bad, _) | (_, Some(1)) => Some(1),
            (OutcomeClass::Untested, _) | (_, Some(EXIT_UNTESTED)) => Some(EXIT_UNTESTED),
            (OutcomeClass::Good, _) => Some(0),
        };
    }
    code.unwrap_or(EXIT_UNTESTED)
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
                ("hang", 1),
                ("skip", 125),
                ("boot-error", 125),
                ("timeout", 125),
                ("infra-error", 125),
            ]
        );
        assert_eq!(exit_code([]), 125, "nothing run is nothing tested");
        assert_eq!(exit_code([Outcome::Pass, Outcome::Skip]), 0);
        assert_eq!(exit_code([Outcome::Skip, Outcome::Skip]), 125);
        assert_eq!(exit_code([Outcome::Skip, Outcome::InfraError]), 125);
        assert_eq!(exit_code([Outcome::Skip, Outcome::Fail]), 1);
        assert_eq!(exit_code([Outcome::Fail, Outcome::InfraError]), 1);
        assert_eq!(exit_code([Outcome::Pass, Outcome::ExpectedFailure]), 0);
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
