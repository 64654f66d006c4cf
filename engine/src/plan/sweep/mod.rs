//! Sweeps: what the command asks of the KVM host, and what the KVM host answers.

mod beginning;
mod message;
mod points;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Shard, TrialPlan};

pub use beginning::{Beginning, Made, TICK};
pub use message::{Effort, Message, SweptTrial};
pub use points::{Boundary, Point, Points, Reach, SecondNmi, Step, Tried, boundaries};

/// How late ticks are in a trial. One that comes makes up for a self-IPI that is missing.
pub const TICKS_LATE: Duration = Duration::from_millis(100);

/// A sweep with everything resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepPlan {
    /// The scenario's trial. None of its injections is made but the one that begins the path.
    pub trial: TrialPlan,
    /// Index of the injection that begins the path; their number where it begins elsewhere.
    pub request: u32,
    /// Where the path begins.
    pub beginning: Beginning,
    /// What is made there.
    pub made: Made,
    /// Begin only where the task comes to this instruction of the kernel, once that is made.
    pub then: Option<u64>,
    /// Begin at the first instruction of the handler of what is made, instead of behind it.
    pub in_handler: bool,
    /// Machines that work in parallel.
    pub jobs: u32,
    /// The boundaries to try.
    pub points: Points,
    /// The part of these boundaries that is tried, if not all are; of pairs, the part of the first NMIs.
    pub shard: Option<Shard>,
    /// The second NMI of each trial, if there is one.
    pub pairs: Option<Pairs>,
    /// What an earlier sweep tried and this one skips.
    pub done: BTreeSet<Tried>,
    /// Longest path, in instructions.
    pub longest: u32,
    /// The path ends with this of its task's arrivals in user mode: 1, or more where signal handlers come before the
    /// code that was interrupted.
    pub arrivals: u32,
    /// Address of `nmi_longest_ns`, where the path is not to have the kernel's complaint about a handler that takes more
    /// than a millisecond: in single steps each does (`nmi_check_duration`, arch/x86/kernel/nmi.c).
    pub patience: Option<u64>,
    /// Longest trial, in milliseconds of the KVM host's clock, where those before it do not take long. A longer one counts
    /// as a hang.
    pub limit_ms: u64,
    /// The other vCPUs run on the way to a point, too, instead of standing still.
    pub others_run: bool,
    /// Compare the whole machine with the checkpoint after each restore.
    pub check_restores: bool,
}

impl SweepPlan {
    /// Whether the path is of whichever task comes to its beginning.
    #[must_use]
    pub fn any_task(&self) -> bool {
        matches!(self.beginning, Beginning::Kernel { any_task: true, .. })
    }

    /// Numbers of the boundaries of a path that this part tries; of pairs, those for the first NMI.
    #[must_use]
    pub fn own(&self, path: &[Step]) -> Vec<u32> {
        let mut numbers = self.points.of(path);
        if self.shard.is_some() {
            let all = boundaries(path);
            numbers.retain(|number| self.is_own(&all, *number));
        }
        numbers
    }

    /// Whether the boundary with this number is in this part.
    #[must_use]
    pub fn is_own(&self, path: &[Boundary], number: u32) -> bool {
        let at = path.get(number as usize);
        self.shard
            .is_none_or(|shard| at.is_some_and(|at| shard.has(*at)))
    }

    /// The first instruction of the NMI handler; 0 if no trial needs it.
    #[must_use]
    pub fn nmi_entry(&self) -> u64 {
        self.pairs.as_ref().map_or(0, |pairs| pairs.entry)
    }
}

/// A second NMI in each trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pairs {
    /// The boundaries to try for it, on the path as the first NMI changed it.
    pub points: Points,
    /// Try all of them behind each first NMI, even where first NMIs are alike.
    pub all: bool,
    /// The first instruction of the NMI handler, `asm_exc_nmi`.
    pub entry: u64,
    /// Address of the variable `callchain_cpus_entries`, if known. Each sample writes the buffers
    /// behind it, and nothing reads them later.
    pub callchains: Option<u64>,
}
