//! What the KVM host sends during a sweep.

use serde::{Deserialize, Serialize};

use super::{Point, Step};
use unwindlab_oracle::trace::recording::{Injection, Recording, RingBytes, TrialEnd};
use unwindlab_oracle::trace::tracefs::TracefsHeld;
use unwindlab_oracle::trace::{LabLog, Witness};

/// From the KVM host: any number of `Recording`, one `Path`, then any number of the others in any
/// order but for `Alike`, which comes before any `Changed`; last one `Done`. Instead of any of these, `Failed` ends the sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The path is being recorded. Sent about once a second.
    Recording {
        /// Instructions so far, those on the way to its beginning included.
        instructions: u32,
    },
    /// The path, and what all trials have in common.
    Path {
        /// Without rings, injections and logs.
        common: Box<Recording>,
        /// Every boundary.
        path: Vec<Step>,
    },
    /// Of pairs: it is known which first NMIs are alike.
    Alike {
        /// Boundaries for the first NMI.
        firsts: u32,
        /// Those of them behind which every boundary is tried.
        stand_for_all: u32,
        /// Number of trials of the others.
        near: u64,
    },
    /// Of pairs: the path behind a first NMI that represents others is known.
    Changed {
        /// How many trials there are behind it.
        trials: u64,
        /// How many pairs it represents.
        pairs: u64,
    },
    /// A trial is over.
    Trial(Box<SweptTrial>),
    /// The path did not come to a boundary again: it differed each time.
    Missed {
        /// The boundary.
        point: Point,
    },
    /// A trial is made once more because it hung or the KVM host failed.
    Retried {
        /// Where its NMIs came.
        point: Point,
        /// How it ended.
        end: TrialEnd,
        /// What was written to the console.
        console: String,
    },
    /// The machines are at work on what takes long. Sent about once a second.
    Working,
    /// All trials are over.
    Done(Effort),
    /// The sweep cannot go on.
    Failed {
        /// Why, in one line.
        reason: String,
    },
}

/// One trial of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweptTrial {
    /// Where its NMIs came.
    pub point: Point,
    /// What the rings received since the iteration began.
    pub rings: Vec<RingBytes>,
    /// The log of the lab client, without the slots that precede the path.
    pub lab: Option<LabLog>,
    /// What instances of tracefs wrote since the iteration began.
    pub tracefs: Option<TracefsHeld>,
    /// The returns to user mode since the request, or since the NMIs where the task had been in user
    /// mode before.
    pub witness: Option<Witness>,
    /// The request, the NMIs, and the request of the iteration that followed.
    pub injections: Vec<Injection>,
    /// What the kernel printed, as `/dev/kmsg` shows it.
    pub kernel_log: String,
    /// What was written to the console.
    pub console: String,
    /// How it ended.
    pub end: TrialEnd,
}

/// What a sweep cost on the KVM host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// Paths that were recorded and left, because they led through another task.
    pub left: u32,
    /// Microseconds of each restore.
    pub restores_us: Vec<u32>,
    /// Pages that each restore copied.
    pub copied: Vec<u32>,
    /// Pages that each restore looked at.
    pub looked_at: Vec<u32>,
    /// Microseconds of the steps to each point.
    pub steps_us: Vec<u32>,
    /// Microseconds of each checkpoint further along the path.
    pub checkpoints_us: Vec<u32>,
    /// Ways that led elsewhere than the path.
    pub strayed: u32,
    /// Microseconds from each NMI to the end of its trial.
    pub runs_us: Vec<u32>,
    /// Microseconds of reading the rings and sending them.
    pub tells_us: Vec<u32>,
}

impl Effort {
    /// Adds the effort of another machine.
    pub fn add(&mut self, other: Self) {
        self.left = self.left.saturating_add(other.left);
        self.restores_us.extend(other.restores_us);
        self.copied.extend(other.copied);
        self.looked_at.extend(other.looked_at);
        self.steps_us.extend(other.steps_us);
        self.checkpoints_us.extend(other.checkpoints_us);
        self.strayed = self.strayed.saturating_add(other.strayed);
        self.runs_us.extend(other.runs_us);
        self.tells_us.extend(other.tells_us);
    }
}
