//! One generated mutant, and what became of it.

use serde::{Deserialize, Serialize};
use unwindlab_guest_kernel::build::generate::GeneratedMutant;

use crate::judge::outcome::OutcomeClass;

/// A mutant, or the kernel without one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MutationRecord {
    /// The kernel without a mutant: it must pass whatever kills a mutant.
    Control(Control),
    /// A mutant.
    Mutant(Box<MutationRow>),
}

/// What became of the kernel without a mutant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// It passes all tests.
    Clean,
    /// It does not pass this one.
    Unclean(String),
    /// It could not be tested.
    Untested(String),
}

/// A mutant and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MutationRow {
    /// The mutant.
    pub mutant: GeneratedMutant,
    /// What became of it.
    pub fate: MutationFate,
    /// Why it changes nothing that anybody could see, if somebody has argued that (guest-kernel/mutation/argued.txt).
    /// It is tested all the same.
    pub argued: Option<String>,
    /// How long its tests took, without the build.
    pub seconds: f64,
}

/// What became of a generated mutant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MutationFate {
    /// It does not compile, or the kernel does not link.
    DoesNotCompile,
    /// Its objects are those of the kernel without it.
    Equivalent,
    /// Its objects are those of this mutant, which counts for both.
    Twin(String),
    /// A test tells it from the kernel without it.
    Killed(Kill),
    /// No test does.
    Survived(Survival),
    /// No test executes what it changes.
    NotCovered,
    /// It could not be tested, or not by all tests.
    Untested(String),
}

/// How a mutant was killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Kill {
    /// The invariants that fell; where none did, the word for the outcome: `boot-error`, `guest-panic`, `hang`,
    /// `fail` (what the scenario expects was not met).
    pub by: Vec<String>,
    /// The scenario, or the sweep as a command.
    pub test: String,
    /// How many tests were made, with this one.
    pub tests: usize,
}

/// How far a mutant got that survived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Survival {
    /// How many tests were made.
    pub tests: usize,
    /// The first test that executes what it changes; unknown for a macro.
    pub nearest: Option<String>,
    /// Findings that something that fell was taken for, and that the kernel without a mutant does not show.
    pub excused: Vec<String>,
    /// Tests that did not pass once and then did: no kills.
    pub unsteady: Vec<String>,
}

impl MutationFate {
    /// What it says of the tests.
    #[must_use]
    pub const fn class(&self) -> OutcomeClass {
        match self {
            Self::DoesNotCompile | Self::Equivalent | Self::Twin(_) | Self::Killed(_) => {
                OutcomeClass::Good
            }
            Self::Survived(_) | Self::NotCovered => OutcomeClass::Bad,
            Self::Untested(_) => OutcomeClass::Untested,
        }
    }
}
