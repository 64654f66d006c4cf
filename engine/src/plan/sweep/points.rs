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
    /// Whether the next instruction is the kernel's, and reads and writes general registers and arithmetic
    /// flags only: an NMI before it does what one behind it does.
    #[serde(default)]
    pub local: bool,
    /// The time stamp that the instruction before read, if it read one. Who tries the path again has
    /// it read the same.
    #[serde(skip)]
    pub clock: Option<u64>,
}

impl Step {
    /// Whether an NMI here does what one at the next boundary does, which is this one.
    const fn is_like(&self, next: &Self) -> bool {
        self.local && !next.user && matches!(next.reach, Reach::Stepped)
    }
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
        /// Also those for which the next one stands ([`Step::local`]).
        each: bool,
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
    pub fn of(&self, path: &[Step]) -> Vec<u32> {
        let left_out = self.left_out(path);
        let mut chosen = self.with_left_out(path);
        chosen.retain(|number| !left_out.contains(number));
        chosen
    }

    /// Numbers of those that are left out, because the next one is chosen and stands for them.
    #[must_use]
    pub fn left_out(&self, path: &[Step]) -> BTreeSet<u32> {
        let Self::In { each: false, .. } = self else {
            return BTreeSet::new();
        };
        let chosen: BTreeSet<u32> = self.with_left_out(path).into_iter().collect();
        let alike = (0..).zip(path.windows(2)).filter(|(number, two)| {
            matches!(two, [this, next] if this.is_like(next))
                && chosen.contains(number)
                && chosen.contains(&(number + 1))
        });
        alike.map(|(number, _)| number).collect()
    }

    /// Numbers of the boundaries to try and of those that are left out.
    #[must_use]
    pub fn with_left_out(&self, path: &[Step]) -> Vec<u32> {
        let mut seen = BTreeSet::new();
        let mut times = 0;
        let mut is_chosen = |number: u32, rip: u64| match self {
            Self::In {
                functions, once, ..
            } => {
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
            .filter(|(number, step)| is_chosen(*number, step.rip))
            .map(|(number, _)| number)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: Points = Points::In {
        functions: None,
        once: false,
        each: true,
    };

    fn all_but_alike() -> Points {
        Points::In {
            functions: None,
            once: false,
            each: false,
        }
    }

    fn path(local: &[bool]) -> Vec<Step> {
        let step = |(number, local): (u64, &bool)| Step {
            rip: 0x1000 + number,
            task: 1,
            user: false,
            reach: Reach::Stepped,
            local: *local,
            clock: None,
        };
        (0..).zip(local).map(step).collect()
    }

    #[test]
    fn the_last_of_a_run_stands_for_all_of_it() {
        let path = path(&[true, true, false, true, false, false]);
        assert_eq!(all_but_alike().of(&path), [2, 4, 5]);
        assert_eq!(EACH.of(&path), [0, 1, 2, 3, 4, 5]);
        assert_eq!(all_but_alike().with_left_out(&path), EACH.of(&path));
        assert_eq!(all_but_alike().left_out(&path), [0, 1, 3].into());
    }

    #[test]
    fn one_that_is_not_chosen_or_not_stepped_to_stands_for_none() {
        let mut path = path(&[true; 6]);
        path[2].reach = Reach::Returned;
        path[4].user = true;
        assert_eq!(all_but_alike().of(&path), [1, 3, 5]);
        let only = Points::In {
            functions: Some(vec![0x1000..0x1001, 0x1004..0x1005]),
            once: false,
            each: false,
        };
        assert_eq!(only.of(&path), [0, 4]);
        assert_eq!(Points::These(vec![0, 1]).of(&path), [0, 1], "as named");
    }

    #[test]
    fn of_each_instruction_the_first_time_counts() {
        let mut path = path(&[true, false, true, false]);
        path[2].rip = path[0].rip;
        path[3].rip = path[1].rip;
        let once = Points::In {
            functions: None,
            once: true,
            each: false,
        };
        assert_eq!(once.of(&path), [1]);
    }
}
