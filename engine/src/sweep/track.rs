//! A path that trials are made on, and the checkpoints along it.

use std::sync::Arc;

use unwindlab_vmm::Checkpoint;

use crate::plan::sweep::{Reach, Step};
use unwindlab_oracle::trace::recording::Injection;

/// Boundaries from one checkpoint of the path to the next: a trial steps over half of them on
/// average, which costs less than a checkpoint for each.
pub(super) const STRIDE: u32 = 24;

/// A checkpoint on a path.
#[derive(Clone)]
pub(super) struct PathCheckpoint {
    /// The boundary's number.
    pub(super) at: u32,
    pub(super) checkpoint: Checkpoint,
}

/// A path.
pub(super) struct Track {
    /// Every boundary, with what the guest was about to execute.
    pub(super) path: Arc<[Step]>,
    /// What was injected before it begins.
    pub(super) made: Vec<Injection>,
    /// The first boundary behind the last one in the kernel.
    pub(super) user_mode: u32,
    first: PathCheckpoint,
    last: PathCheckpoint,
    before: Option<PathCheckpoint>,
}

impl Track {
    /// A path that begins at this checkpoint.
    pub(super) fn new(path: Arc<[Step]>, made: Vec<Injection>, behind: Checkpoint) -> Self {
        let first = PathCheckpoint {
            at: 0,
            checkpoint: behind,
        };
        let kernel = path.iter().rposition(|step| !step.user);
        let user_mode = kernel.map_or(0, |last| last + 1);
        Self {
            user_mode: u32::try_from(user_mode).unwrap_or(u32::MAX),
            path,
            made,
            last: first.clone(),
            first,
            before: None,
        }
    }

    /// The checkpoint to go to a point from: the last one may be beyond it. To user mode the way
    /// is gone at once.
    pub(super) fn nearest(&self, point: u32) -> &PathCheckpoint {
        let from = match point > self.user_mode {
            true => self.last_run(),
            false => point,
        };
        let in_time = |it: &&PathCheckpoint| it.at <= from;
        let last = Some(&self.last).filter(in_time);
        let before = self.before.as_ref().filter(in_time);
        match point > self.user_mode && from == 0 {
            true => &self.first,
            false => last.or(before).unwrap_or(&self.first),
        }
    }

    /// One before that, if there is one.
    pub(super) fn earlier(&self, point: u32) -> &PathCheckpoint {
        let nearest = self.nearest(point).at;
        let before = self.before.as_ref().filter(|it| it.at < nearest);
        before.unwrap_or(&self.first)
    }

    /// Where the path begins.
    pub(super) fn first(&self) -> &PathCheckpoint {
        &self.first
    }

    /// The last boundary before the path's end in user mode to which the guest does not come by a
    /// single step; the path's first if it does everywhere.
    pub(super) fn last_run(&self) -> u32 {
        let kernel = self.path.get(..self.user_mode as usize).unwrap_or_default();
        let last = kernel.iter().rposition(|step| step.reach != Reach::Stepped);
        u32::try_from(last.unwrap_or(0)).unwrap_or(u32::MAX)
    }

    /// The furthest checkpoint.
    pub(super) fn last(&self) -> &PathCheckpoint {
        &self.last
    }

    /// Takes one further along the path.
    pub(super) fn push(&mut self, next: PathCheckpoint) {
        self.before = Some(std::mem::replace(&mut self.last, next));
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
