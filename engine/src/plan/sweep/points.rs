//! The instruction boundaries of a path, and which of them a sweep tries.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// One step of a path: the state at an instruction boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The next instruction.
    pub rip: u64,
    /// The current `task_struct`.
    pub task: u64,
    /// Whether the CPU is in user mode.
    pub user: bool,
    /// How the CPU comes here from the boundary before.
    #[serde(default)]
    pub reach: Reach,
    /// The time stamp that the instruction before read, if it read one. Who tries the path again has
    /// it read the same.
    #[serde(skip)]
    pub clock: Option<u64>,
}

/// How a CPU comes to a boundary from the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reach {
    /// By a single step.
    #[default]
    Stepped,
    /// By running to a breakpoint, from user mode: a single step would leave the trap flag on the
    /// kernel's stack, and an interrupt is to be taken.
    Ran,
    /// By a single step into another task, and by running until the path's task is back.
    Returned,
}

/// An instruction boundary, identified in the same way in every boot of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(u64, u32)", into = "(u64, u32)")]
pub struct Boundary {
    /// The next instruction.
    pub rip: u64,
    /// How often the path has come to this instruction, this time included: from 1.
    pub occurrence: u32,
}

impl From<(u64, u32)> for Boundary {
    fn from((rip, occurrence): (u64, u32)) -> Self {
        Self { rip, occurrence }
    }
}

impl From<Boundary> for (u64, u32) {
    fn from(boundary: Boundary) -> Self {
        (boundary.rip, boundary.occurrence)
    }
}

/// The boundaries of a path.
pub fn boundaries<'a>(path: impl IntoIterator<Item = &'a Step>) -> Vec<Boundary> {
    let mut times = HashMap::new();
    let boundary = |step: &Step| {
        let occurrence: &mut u32 = times.entry(step.rip).or_default();
        *occurrence += 1;
        Boundary {
            rip: step.rip,
            occurrence: *occurrence,
        }
    };
    path.into_iter().map(boundary).collect()
}

/// Where the NMIs of a trial came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Point {
    /// The boundary's number in the path, from 0.
    pub number: u32,
    /// The boundary.
    pub at: Boundary,
    /// The second NMI, if there was one.
    pub then: Option<SecondNmi>,
}

/// Where a second NMI came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SecondNmi {
    /// The boundary's number, counted from the boundary of the first NMI. 0 is that same
    /// boundary, once the first handler has returned to it.
    pub number: u32,
    /// The boundary, in the path that starts at the boundary of the first NMI.
    pub at: Boundary,
}

/// What was tried, identified in the same way in every boot: the boundary of the NMI, and that of
/// the second NMI.
pub type Tried = (Boundary, Option<Boundary>);

impl Point {
    /// A point without a second NMI.
    #[must_use]
    pub const fn single(number: u32, at: Boundary) -> Self {
        Self {
            number,
            at,
            then: None,
        }
    }

    /// What identifies the point in another boot.
    #[must_use]
    pub fn tried(&self) -> Tried {
        (self.at, self.then.map(|then| then.at))
    }
}

impl fmt::Display for Point {
    /// `17`, or `17:4` with a second NMI.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.then {
            None => write!(out, "{}", self.number),
            Some(then) => write!(out, "{}:{}", self.number, then.number),
        }
    }
}

/// Which boundaries of the path to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Points {
    /// All, or those in some functions.
    In {
        /// The functions' code; `None` is everywhere.
        functions: Option<Vec<Range<u64>>>,
        /// Only the first boundary at each address.
        once: bool,
    },
    /// One boundary: the n-th time that the path comes to one of these addresses.
    At {
        /// More than one if functions share a name.
        addresses: Vec<u64>,
        /// n, from 1.
        occurrence: u32,
    },
    /// The boundaries with these numbers in the path.
    These(Vec<u32>),
}

impl Points {
    /// Numbers of the boundaries to try.
    #[must_use]
    pub fn of(&self, path: &[Boundary]) -> Vec<u32> {
        let mut seen = BTreeSet::new();
        let mut times = 0;
        let mut is_chosen = |number: u32, rip: u64| match self {
            Self::In { functions, once } => {
                let within = |ranges: &Vec<Range<u64>>| ranges.iter().any(|it| it.contains(&rip));
                functions.as_ref().is_none_or(within) && (!once || seen.insert(rip))
            }
            Self::At {
                addresses,
                occurrence,
            } => {
                times += u32::from(addresses.contains(&rip));
                addresses.contains(&rip) && times == *occurrence
            }
            Self::These(numbers) => numbers.contains(&number),
        };
        (0..)
            .zip(path)
            .filter(|(number, boundary)| is_chosen(*number, boundary.rip))
            .map(|(number, _)| number)
            .collect()
    }
}
