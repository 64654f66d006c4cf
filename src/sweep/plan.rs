//! What crosses to the KVM host for a sweep, and what comes back.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::runner::TrialPlan;
use crate::trace::recording::{Injection, Recording, RingBytes, TrialEnd};

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
    /// Machines that work side by side.
    pub jobs: u32,
    /// Which boundaries to try.
    pub points: Points,
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
    /// A trial is over.
    Trial(Box<SweptTrial>),
    /// A boundary was not met again: each time the way there was another.
    Missed {
        /// Its number in the path.
        point: u32,
    },
    /// A trial is made once more, because of how it ended: it hung, or the KVM host failed.
    Again {
        /// The boundary's number in the path.
        point: u32,
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
    /// The boundary's number in the path, from 0.
    pub point: u32,
    /// What the rings got since before the request.
    pub rings: Vec<RingBytes>,
    /// The request, the NMI at the boundary, and the request of the iteration that followed.
    pub injections: Vec<Injection>,
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
