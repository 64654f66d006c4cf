//! What can come out of a scenario, and what a command says of it by its exit code. The table is
//! docs/outcomes.md.

use serde::{Deserialize, Serialize};

/// What came out of one scenario. Only [`Outcome::Pass`] is a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every invariant that could be checked holds, the scenario's point was reached, what it
    /// expects was met, and its snapshot is the same.
    Pass,
    /// Something of that is not so.
    Fail,
    /// Violations, and each of them is a finding: a kernel bug that is understood and listed.
    ExpectedFailure,
    /// The kernel has nothing that could be tested.
    Skip,
    /// The guest kernel panicked or oopsed.
    GuestPanic,
    /// The guest stood still, or its workload did.
    Hang,
    /// The time was over while the guest was still making progress.
    Timeout,
    /// The guest never got as far as its agent.
    BootError,
    /// The harness or the KVM host failed.
    InfraError,
}

/// What an outcome says of the kernel under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is right, or wrong as it is known to be.
    Good,
    /// It is wrong.
    Bad,
    /// Nothing.
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

    /// Whether it says anything of the kernel.
    #[must_use]
    pub fn is_tested(self) -> bool {
        self.verdict() != Verdict::Untested
    }

    /// What it says of the kernel.
    ///
    /// A timeout says nothing: the guest was still working, and how far it gets in a given time
    /// depends on how fast the KVM host is and what runs beside it. A bisection must not call a
    /// commit bad for that. A kernel that keeps its user mode from working is a `hang`, or fails
    /// the scenario's `expect: progress`.
    #[must_use]
    pub const fn verdict(self) -> Verdict {
        match self {
            Self::Pass | Self::ExpectedFailure => Verdict::Good,
            Self::Fail | Self::GuestPanic | Self::Hang => Verdict::Bad,
            Self::Skip | Self::BootError | Self::Timeout | Self::InfraError => Verdict::Untested,
        }
    }
}

/// Exit code of a command that was told to do what cannot be: usage, scenario files.
pub const EXIT_USAGE: u8 = 2;
/// Exit code where something could not be tested; `git bisect run` takes it for "skip".
pub const EXIT_UNTESTED: u8 = 125;
/// Exit code after Ctrl-C, as shells have it.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The exit code of a run: 1 if the kernel is wrong, else 125 if some of it could not be tested,
/// else 0. A run of nothing tested nothing; nor did one of skips only. Beside other outcomes a skip
/// does not count: that a stock kernel has no lab client says nothing against the rest of a library.
pub fn exit_code(outcomes: impl IntoIterator<Item = Outcome>) -> u8 {
    let mut code = None;
    for outcome in outcomes {
        code = match (outcome.verdict(), code) {
            _ if outcome == Outcome::Skip => code,
            (Verdict::Bad, _) | (_, Some(1)) => Some(1),
            (Verdict::Untested, _) | (_, Some(EXIT_UNTESTED)) => Some(EXIT_UNTESTED),
            (Verdict::Good, _) => Some(0),
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
