//! What crosses to the KVM host for a sweep, and what comes back.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::TrialPlan;
use unwindlab_oracle::trace::LabLog;
use unwindlab_oracle::trace::recording::{Injection, Recording, RingBytes, TrialEnd};

/// A sweep with everything resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepPlan {
    /// The scenario's trial. Its injection [`request`](Self::request) begins the path; no other is
    /// made.
    pub trial: TrialPlan,
    /// Index of the injection that makes the request: an NMI at an instruction of the kernel.
    pub request: u32,
    /// Whether the request is made; otherwise the path is that of an entry that has not asked yet, from
    /// the same place on.
    pub asks: bool,
    /// Where the path begins, if not at the request's place.
    pub from: Option<u64>,
    /// Machines that work side by side.
    pub jobs: u32,
    /// Which boundaries to try.
    pub points: Points,
    /// A second NMI in each trial, if there is to be one.
    pub pairs: Option<Pairs>,
    /// What was tried before, and is not to be tried again.
    pub done: BTreeSet<Tried>,
    /// Longest path, in instructions.
    pub longest: u32,
    /// Longest trial, in milliseconds of the KVM host's clock: what is not over by then hangs.
    pub limit_ms: u64,
    /// Compare the whole machine with the checkpoint after each restore.
    pub check_restores: bool,
}

/// Which boundaries of the path to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Points {
    /// All, or those in some functions.
    In {
        /// Where the code lies; `None` is everywhere.
        functions: Option<Vec<Range<u64>>>,
        /// Only the first at each address.
        once: bool,
    },
    /// The one at one of these addresses, this time that the path comes by there, from 1.
    At {
        /// More than one where functions share a name.
        addresses: Vec<u64>,
        /// Which time.
        occurrence: u32,
    },
    /// These, by their number in the path.
    These(Vec<u32>),
}

impl SweepPlan {
    /// The first instruction of the NMI's handler; 0 where no trial needs it.
    #[must_use]
    pub fn nmi_entry(&self) -> u64 {
        self.pairs.as_ref().map_or(0, |pairs| pairs.entry)
    }
}

/// A second NMI in each trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pairs {
    /// Which boundaries to try for it, of the path as the first NMI changed it.
    pub points: Points,
    /// Try them behind each first NMI, also behind those that are alike.
    pub all: bool,
    /// The first instruction of the NMI's handler, `asm_exc_nmi`.
    pub entry: u64,
    /// The variable `callchain_cpus_entries`, where it is known: what it leads to is written by each sample and
    /// read by nobody later.
    pub callchains: Option<u64>,
}

/// An instruction boundary, by what it is in every boot of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(u64, u32)", into = "(u64, u32)")]
pub struct Boundary {
    /// The next instruction.
    pub rip: u64,
    /// Which time the path comes by there, from 1.
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

/// Where the NMIs of a trial came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Point {
    /// The boundary's number in the path, from 0.
    pub number: u32,
    /// The boundary.
    pub at: Boundary,
    /// The second NMI, if there was one.
    pub then: Option<Then>,
}

/// Where a second NMI came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Then {
    /// The boundary's number, counted from that of the first: 0 is the same boundary, when the first
    /// handler has returned to it.
    pub number: u32,
    /// The boundary, in the path from that of the first on.
    pub at: Boundary,
}

/// What was tried, by what it is in every boot: the boundary, and that of the second NMI.
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

    /// The same in another boot.
    #[must_use]
    pub fn tried(&self) -> Tried {
        (self.at, self.then.map(|then| then.at))
    }
}

impl std::fmt::Display for Point {
    /// `17`, or `17:4` with a second NMI.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.then {
            None => write!(out, "{}", self.number),
            Some(then) => write!(out, "{}:{}", self.number, then.number),
        }
    }
}

/// Every boundary of a path.
pub fn boundaries<'a>(path: impl IntoIterator<Item = &'a Step>) -> Vec<Boundary> {
    let mut times = std::collections::HashMap::new();
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

impl Points {
    /// Numbers of the boundaries that are wanted.
    #[must_use]
    pub fn of(&self, path: &[Boundary]) -> Vec<u32> {
        let mut seen = BTreeSet::new();
        let mut times = 0;
        let mut is_wanted = |number: u32, rip: u64| match self {
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
            .filter(|(number, boundary)| is_wanted(*number, boundary.rip))
            .map(|(number, _)| number)
            .collect()
    }
}

/// One instruction boundary of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The next instruction.
    pub rip: u64,
    /// The `task_struct` that is current there.
    pub task: u64,
    /// It is in user mode.
    pub user: bool,
}

/// From the KVM host, in this order: one `Path`, any number of `Trial`s in any order, one `Done`;
/// or a `Failed` instead of anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The path, and what all trials have in common.
    Path {
        /// Without rings, injections and logs.
        common: Box<Recording>,
        /// Every boundary.
        path: Vec<Step>,
    },
    /// Of pairs: which boundaries are alike is known.
    Alike {
        /// Boundaries for the first NMI.
        firsts: u32,
        /// Those behind which every boundary is tried.
        stand_for_all: u32,
        /// About how many trials that makes.
        trials: u64,
    },
    /// Of pairs: the path behind a first NMI that stands for some boundaries.
    Changed {
        /// How many pairs it stands for.
        pairs: u64,
    },
    /// A trial is over.
    Trial(Box<SweptTrial>),
    /// A boundary was not met again: each time the way there was another.
    Missed {
        /// Which.
        point: Point,
    },
    /// A trial is made once more, because of how it ended: it hung, or the KVM host failed.
    Again {
        /// Where its NMIs came.
        point: Point,
        /// How it ended.
        end: TrialEnd,
    },
    /// All are.
    Done(Effort),
    /// The sweep cannot go on.
    Failed {
        /// Why, in one line.
        reason: String,
    },
}

/// One trial of a sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweptTrial {
    /// Where its NMIs came.
    pub point: Point,
    /// What the rings got since the iteration began.
    pub rings: Vec<RingBytes>,
    /// The log of the lab client: of its slots, those that the path's beginning does not have.
    pub lab: Option<LabLog>,
    /// The request, the NMIs, and the request of the iteration that followed.
    pub injections: Vec<Injection>,
    /// What the kernel printed, as `/dev/kmsg` has it.
    pub kernel_log: String,
    /// What the console got.
    pub console: String,
    /// How it ended.
    pub end: TrialEnd,
}

/// What a sweep cost on the KVM host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// Microseconds that each restore took.
    pub restores_us: Vec<u32>,
    /// Pages that each copied.
    pub copied: Vec<u32>,
    /// Pages that each looked at.
    pub looked_at: Vec<u32>,
    /// Microseconds that the steps to each point took.
    pub steps_us: Vec<u32>,
    /// Microseconds from each NMI to the end of its trial.
    pub runs_us: Vec<u32>,
    /// Microseconds that reading the rings and telling took.
    pub tells_us: Vec<u32>,
}

impl Effort {
    /// That of another machine beside this one.
    pub fn add(&mut self, other: Self) {
        self.restores_us.extend(other.restores_us);
        self.copied.extend(other.copied);
        self.looked_at.extend(other.looked_at);
        self.steps_us.extend(other.steps_us);
        self.runs_us.extend(other.runs_us);
        self.tells_us.extend(other.tells_us);
    }
}
