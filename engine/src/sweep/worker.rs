//! The trials of one machine of a sweep.

use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::engine::{Common, FromWorker};
use super::error::SweepError;
use super::teller::Teller;
use super::track::{STRIDE, Track};
use super::walk::Walk;
use crate::plan::sweep::{Effort, Message, Point, SweepPlan};

/// One machine.
pub(super) struct Worker<'p> {
    pub(super) plan: &'p SweepPlan,
    pub(super) common: &'p Common,
    pub(super) walk: Walk,
    teller: Teller<'p>,
    pub(super) effort: Effort,
    /// Trials that came to their end, and how long they took.
    pub(super) completed: u32,
    pub(super) took: Duration,
    /// Points in a row that were not met again.
    missed: u32,
}

/// Time between two messages that there is work, where there is nothing else to tell. An outer machine
/// that says nothing for long is taken for dead, and a budget is looked at with each message.
const PAUSE: Duration = Duration::from_secs(1);
/// So many points in a row that are not met again are the machine's fault, not the path's.
pub(super) const MAX_MISSED: u32 = 32;

/// How the NMIs of a trial come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nmis {
    /// One at the boundary.
    One,
    /// One, and another as soon as its handler begins: it waits until that returns.
    Two,
    /// One, and another at this boundary of the path, which is the next the vCPU comes to.
    AndAt(u32),
}

impl<'p> Worker<'p> {
    pub(super) fn new(
        plan: &'p SweepPlan,
        common: &'p Common,
        walk: Walk,
        send: &'p Sender<FromWorker>,
    ) -> Self {
        Self {
            plan,
            common,
            walk,
            teller: Teller::new(send),
            effort: Effort::default(),
            completed: 0,
            took: Duration::ZERO,
            missed: 0,
        }
    }

    /// Makes trials as long as there are any.
    pub(super) fn run(mut self) -> Result<Effort, SweepError> {
        match &self.plan.pairs {
            None => self.singles()?,
            Some(pairs) => self.pairs(pairs)?,
        }
        Ok(self.effort)
    }

    /// Stretches of [`STRIDE`] boundaries go to whoever is free.
    fn singles(&mut self) -> Result<(), SweepError> {
        let mut track = self.whole();
        let points = self.plan.own(&self.common.track.path);
        while let Some(stretch) = self.common.singles.take(STRIDE, track.len()) {
            for &number in points.iter().filter(|it| stretch.contains(*it)) {
                let Some(&at) = self.common.boundaries.get(number as usize) else {
                    continue;
                };
                let point = Point::single(number, at);
                if self.plan.done.contains(&point.tried()) {
                    continue;
                }
                if !self.try_point(&mut track, number, Nmis::One, point)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The whole path, from the request on.
    pub(super) fn whole(&self) -> Track {
        self.common.track.clone()
    }

    /// Makes a trial and tells its result; false where the sweep is to stop.
    pub(super) fn try_point(
        &mut self,
        track: &mut Track,
        number: u32,
        nmis: Nmis,
        point: Point,
    ) -> Result<bool, SweepError> {
        match self.try_often(track, number, nmis, point)? {
            Some(trial) => {
                self.missed = 0;
                Ok(self.tell(Message::Trial(Box::new(trial))))
            }
            None => self.miss(point),
        }
    }

    /// Tells that a point was not met again; false where the sweep is to stop.
    pub(super) fn miss(&mut self, point: Point) -> Result<bool, SweepError> {
        self.missed += 1;
        if self.missed > MAX_MISSED {
            return Err(SweepError::TooManyMissed { last: point });
        }
        Ok(self.tell(Message::Missed { point }))
    }

    /// Tells now and then that there is work.
    pub(super) fn working(&mut self) {
        if self.teller.silent() >= PAUSE {
            self.tell(Message::Working);
        }
    }

    /// Whether a way was the path's. Where the guest ended, stood still or did something else, it was not,
    /// and all vCPUs are stopped.
    pub(super) fn is_the_way(
        &mut self,
        went: Result<bool, SweepError>,
    ) -> Result<bool, SweepError> {
        match went {
            Err(error) if error.is_another_way() => {
                self.walk.driver.machine.pause_all()?;
                Ok(false)
            }
            went => went,
        }
    }

    /// Whether anybody listens.
    pub(super) fn tell(&mut self, message: Message) -> bool {
        self.teller.tell(message) && !self.common.stopped.load(Ordering::Relaxed)
    }
}
