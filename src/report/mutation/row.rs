//! One generated mutant, and what became of it.

use anstyle::{AnsiColor, Style};
use serde::{Deserialize, Serialize};
use unwindlab_engine::text::printable;
use unwindlab_guest_kernel::build::generate::GeneratedMutant;

use super::MutationScore;

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

impl Control {
    /// What two runs say together: the worse counts.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unclean(why), _) => Self::Unclean(why),
            (Self::Untested(why), Self::Clean) => Self::Untested(why),
            (_, other) => other,
        }
    }
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Survival {
    /// How many tests were made.
    pub tests: usize,
    /// How many were not, for lack of time.
    #[serde(default)]
    pub left: usize,
    /// Whether it made no difference where it stands, in any scenario that executes it.
    #[serde(default)]
    pub same: bool,
    /// A test that executes what it changes; unknown for a macro.
    pub nearest: Option<String>,
    /// Findings that something that fell was taken for, and that the kernel without a mutant does not show.
    pub excused: Vec<String>,
    /// Tests that did not pass once and then did: no kills.
    pub unsteady: Vec<String>,
}

impl From<Vec<MutationRecord>> for MutationScore {
    fn from(records: Vec<MutationRecord>) -> Self {
        let mut score = Self::default();
        for record in records {
            match record {
                MutationRecord::Control(control) => score.control = Some(control),
                MutationRecord::Mutant(row) => score.rows.push(*row),
            }
        }
        score
    }
}

impl Control {
    /// What became of it, in one line for the terminal.
    #[must_use]
    pub fn line(&self) -> String {
        let (colour, text) = match self {
            Self::Clean => (AnsiColor::Green, "passes".to_owned()),
            Self::Unclean(why) => (AnsiColor::Red, format!("does not pass: {why}")),
            Self::Untested(why) => (AnsiColor::Yellow, format!("not tested: {why}")),
        };
        let style: Style = colour.on_default().bold();
        format!("{style}(no mutant){style:#}  {}", printable(&text))
    }
}
