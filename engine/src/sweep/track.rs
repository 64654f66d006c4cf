//! A path that trials are made on, and the checkpoints along it.

use std::sync::Arc;

use unwindlab_vmm::Checkpoint;

use crate::plan::sweep::Step;
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
    /// The first boundary in user mode; the path's end where there is none.
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
        let user_mode = path.iter().position(|step| step.user);
        let user_mode = user_mode.unwrap_or(path.len());
        Self {
            user_mode: u32::try_from(user_mode).unwrap_or(u32::MAX),
            path,
            made,
            last: first.clone(),
            first,
            before: None,
        }
    }

    /// The checkpoint to go to a point from: the last one may be beyond it. To user mode the whole
    /// path is gone at once.
    pub(super) fn nearest(&self, point: u32) -> &PathCheckpoint {
        match &self.before {
            _ if point > self.user_mode => &self.first,
            Some(before) if point < self.last.at => before,
            _ => &self.last,
        }
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
