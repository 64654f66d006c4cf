//! What a generated mutant counts as.

use super::{MutationFate, MutationRow};

/// What a mutant counts as: the columns of the tables. Each mutant counts as one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It does not compile.
    NoCode,
    /// It has the objects of the kernel without it.
    Same,
    /// It has the objects of another mutant.
    Twin,
    /// A test tells it from the kernel without it.
    Killed,
    /// A test executes it and none kills it, and nobody has argued why.
    Survived,
    /// No test kills it, and somebody has argued why none can.
    Argued,
    /// No test executes it, and nobody has argued why.
    NotCovered,
    /// It could not be tested, or not by all tests.
    Untested,
}

impl Standing {
    /// All, in the order of the tables.
    pub const ALL: [Self; 8] = [
        Self::NoCode,
        Self::Same,
        Self::Twin,
        Self::Killed,
        Self::Survived,
        Self::Argued,
        Self::NotCovered,
        Self::Untested,
    ];

    /// The heading of its column.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoCode => "no code",
            Self::Same => "same",
            Self::Twin => "twin",
            Self::Killed => "killed",
            Self::Survived => "survived",
            Self::Argued => "argued",
            Self::NotCovered => "not covered",
            Self::Untested => "untested",
        }
    }
}

impl MutationRow {
    /// What it counts as.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        match (&self.fate, &self.argued) {
            (MutationFate::DoesNotCompile, _) => Standing::NoCode,
            (MutationFate::Equivalent, _) => Standing::Same,
            (MutationFate::Twin(_), _) => Standing::Twin,
            (MutationFate::Killed(_), _) => Standing::Killed,
            (MutationFate::Survived(_) | MutationFate::NotCovered, Some(_)) => Standing::Argued,
            (MutationFate::Survived(_), None) => Standing::Survived,
            (MutationFate::NotCovered, None) => Standing::NotCovered,
            (MutationFate::Untested(_), _) => Standing::Untested,
        }
    }

    /// Whether it was killed although somebody has argued that no test can kill it.
    #[must_use]
    pub const fn is_refuted(&self) -> bool {
        matches!(
            (&self.fate, &self.argued),
            (MutationFate::Killed(_), Some(_))
        )
    }
}
