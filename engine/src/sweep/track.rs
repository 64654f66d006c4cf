//! A path that trials are made on, and the checkpoints along it.

use std::sync::Arc;

use unwindlab_vmm::Checkpoint;

use crate::plan::sweep::{Reach, Step};
use unwindlab_oracle::trace::recording::Injection;

/// Boundaries from one checkpoint of the path to the next: a trial steps over half of them on
/// average, which costs less than a checkpoint for each.
pub(super) const STRIDE: u32 = 24;
/// Checkpoints of a path of up to this many times [`STRIDE`] boundaries, which is as long as a path may be by default. One takes
/// 10 to 30 KiB, besides the pages in which it differs from the one before.
const MOST: usize = 4200;

/// A checkpoint on a path.
#[derive(Clone)]
pub(super) struct PathCheckpoint<C = Checkpoint> {
    /// The boundary's number.
    pub(super) at: u32,
    pub(super) checkpoint: Arc<C>,
}

/// The checkpoints along a path.
#[derive(Clone)]
pub(super) struct Checkpoints<C = Checkpoint> {
    /// Where the path begins.
    first: PathCheckpoint<C>,
    /// The others, in the path's order.
    further: Vec<PathCheckpoint<C>>,
    /// Boundaries from one to the next.
    stride: u32,
}

impl<C> Checkpoints<C> {
    /// Of a path that begins at this one.
    pub(super) fn new(first: C) -> Self {
        Self {
            first: PathCheckpoint {
                at: 0,
                checkpoint: Arc::new(first),
            },
            further: Vec::new(),
            stride: STRIDE,
        }
    }

    /// Whether there is to be one at this boundary.
    pub(super) const fn are_due(&self, at: u32) -> bool {
        at.is_multiple_of(self.stride)
    }

    /// Takes one further along the path. Where there are too many, only every other one stays.
    pub(super) fn push(&mut self, at: u32, checkpoint: C) {
        let checkpoint = Arc::new(checkpoint);
        self.further.push(PathCheckpoint { at, checkpoint });
        if self.further.len() > MOST {
            self.stride = self.stride.saturating_mul(2);
            let stride = self.stride;
            self.further.retain(|it| it.at.is_multiple_of(stride));
        }
    }

    /// The last one that is not behind this boundary.
    fn up_to(&self, boundary: u32) -> &PathCheckpoint<C> {
        let count = self.further.partition_point(|it| it.at <= boundary);
        let last = count.checked_sub(1).and_then(|it| self.further.get(it));
        last.unwrap_or(&self.first)
    }
}

/// A path.
#[derive(Clone)]
pub(super) struct Track {
    /// Every boundary, with what the guest was about to execute.
    pub(super) path: Arc<[Step]>,
    /// What was injected before it begins.
    pub(super) made: Vec<Injection>,
    /// The first boundary behind the last one in the kernel.
    pub(super) user_mode: u32,
    checkpoints: Checkpoints,
}

impl Track {
    /// A path, and its checkpoints.
    pub(super) fn new(path: Arc<[Step]>, made: Vec<Injection>, checkpoints: Checkpoints) -> Self {
        let kernel = path.iter().rposition(|step| !step.user);
        let user_mode = kernel.map_or(0, |last| last + 1);
        Self {
            user_mode: u32::try_from(user_mode).unwrap_or(u32::MAX),
            path,
            made,
            checkpoints,
        }
    }

    /// The checkpoint to go to a point from. To user mode the way is gone at once.
    pub(super) fn nearest(&self, point: u32) -> &PathCheckpoint {
        let from = match point > self.user_mode {
            true => self.last_run(),
            false => point,
        };
        self.checkpoints.up_to(from)
    }

    /// One before that, if there is one.
    pub(super) fn earlier(&self, point: u32) -> &PathCheckpoint {
        self.checkpoints
            .up_to(self.nearest(point).at.saturating_sub(1))
    }

    /// Where the path begins.
    pub(super) fn first(&self) -> &PathCheckpoint {
        &self.checkpoints.first
    }

    /// Uses the checkpoint at this boundary no more, unless it is the first.
    pub(super) fn leave_out(&mut self, at: u32) {
        self.checkpoints.further.retain(|it| it.at != at);
    }

    /// The same path without the checkpoints behind this boundary.
    pub(super) fn only_up_to(&self, boundary: u32) -> Self {
        let mut track = self.clone();
        track.checkpoints.further.retain(|it| it.at <= boundary);
        track
    }

    /// The last boundary before the path's end in user mode to which the guest does not come by a
    /// single step; the path's first if it does everywhere.
    pub(super) fn last_run(&self) -> u32 {
        let kernel = self.path.get(..self.user_mode as usize).unwrap_or_default();
        let last = kernel.iter().rposition(|step| step.reach != Reach::Stepped);
        u32::try_from(last.unwrap_or(0)).unwrap_or(u32::MAX)
    }

    /// The step at a boundary.
    pub(super) fn step(&self, point: u32) -> Option<&Step> {
        self.path.get(point as usize)
    }

    /// Whether a task returned to user mode on the way to a boundary: this one, or another while it
    /// was away.
    pub(super) fn returns_before(&self, point: u32) -> bool {
        let way = self.path.get(..=point as usize).unwrap_or(&self.path);
        let mut kernel = way.iter().skip_while(|step| step.user);
        kernel.any(|step| step.user || step.reach == Reach::Returned)
    }

    /// The steps behind a boundary, up to another one.
    pub(super) fn steps(&self, from: u32, to: u32) -> &[Step] {
        let range = (from as usize).saturating_add(1)..(to as usize).saturating_add(1);
        self.path.get(range).unwrap_or_default()
    }

    /// How many boundaries there are.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.path.len()).unwrap_or(u32::MAX)
    }

    /// The first boundary behind this one at which another instruction stands: `rep` stands still.
    pub(super) fn after(&self, point: u32) -> Option<u32> {
        let rip = self.step(point)?.rip;
        (point + 1..self.len()).find(|it| self.step(*it).is_some_and(|step| step.rip != rip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn along(boundaries: u32) -> Checkpoints<u32> {
        let mut checkpoints = Checkpoints::new(0);
        for at in (1..boundaries).filter(|at| at % STRIDE == 0) {
            if checkpoints.are_due(at) {
                checkpoints.push(at, at);
            }
        }
        checkpoints
    }

    #[test]
    fn a_way_begins_at_the_last_checkpoint_that_is_not_behind_it() {
        let checkpoints = along(100);
        let from = |boundary| *checkpoints.up_to(boundary).checkpoint;
        let all = [0, 23, 24, 25, 47, 48, 95, 96, 1000].map(from);
        assert_eq!(all, [0, 0, 24, 24, 24, 48, 72, 96, 96]);
    }

    #[test]
    fn of_too_many_checkpoints_every_other_one_stays() {
        let most = u32::try_from(MOST).unwrap();
        let full = along(STRIDE * most + 1);
        assert_eq!(full.further.len(), MOST);
        let twice = along(STRIDE * (most + 1) + 1);
        assert_eq!(twice.further.len(), MOST.div_ceil(2));
        assert!(twice.further.iter().all(|it| it.at % (2 * STRIDE) == 0));
        let long = along(STRIDE * most * 5);
        assert!(long.further.len() <= MOST);
        let last = long.up_to(u32::MAX).at;
        assert!(last >= STRIDE * (most * 5 - 8), "{last}");
    }
}
