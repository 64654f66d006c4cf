//! Two NMIs a trial: one at each boundary of the path, and one at each boundary from there on.
//!
//! The second one's boundaries are those of the path as the first NMI changed it. That path is
//! recorded anew behind each first NMI that stands for itself; many do not have to (see `alike`).

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::error::SweepError;
use super::guest::checkpoint;
use super::progress::Progress;
use super::track::Track;
use super::trial::{Approach, TRIES};
use super::walk::Recorded;
use super::worker::{Nmis, Worker};
use crate::plan::sweep::{Boundary, Message, Pairs, Point, Reach, SecondNmi, Step, boundaries};

/// The instruction `sti`.
const STI: u8 = 0xfb;
/// How often a machine that is done with comparing looks whether the others are.
const WAIT: Duration = Duration::from_millis(2);
/// What [`comparing`](super::engine::Common::comparing) is where one machine still compares.
const LAST: u32 = 2;

impl Worker<'_> {
    /// All pairs, together with the other machines.
    pub(super) fn pairs(&mut self, pairs: &Pairs) -> Result<(), SweepError> {
        let mut track = self.whole();
        let wanted = self.plan.points.of(&self.common.track.path);
        let mut firsts = Vec::new();
        for number in wanted {
            if self.may_be_first(&track, number)? {
                firsts.push(number);
            }
        }
        if !self.compared(&track, &firsts, pairs)? {
            return Ok(());
        }
        let firsts = self.own(&firsts);
        while let Some(next) = self.common.firsts.take(1, count_of(&firsts)) {
            let Some(&number) = firsts.get(next.start as usize) else {
                continue;
            };
            let go_on = match self.is_alike(number) {
                true => self.near(&mut track, number, pairs)?,
                false => self.far(&mut track, number, pairs)?,
            };
            if !go_on {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether a first NMI may come at a boundary: in user mode it is in an entry of its own, and
    /// behind `sti` it is taken at the next boundary.
    fn may_be_first(&mut self, track: &Track, number: u32) -> Result<bool, SweepError> {
        let before = number.checked_sub(1).and_then(|it| track.step(it));
        let opcode = match before {
            Some(step) => {
                let mut opcode = [0];
                let vcpu = self.walk.driver.vcpu(self.walk.start.vcpu)?;
                vcpu.read_virt(step.rip, &mut opcode)?;
                opcode
            }
            None => [0],
        };
        Ok(opcode != [STI] && track.step(number).is_some_and(|step| !step.user))
    }

    /// Finds out which boundaries are alike, and waits until all machines have; whether to go on.
    fn compared(
        &mut self,
        track: &Track,
        firsts: &[u32],
        pairs: &Pairs,
    ) -> Result<bool, SweepError> {
        let compared = match pairs.all {
            true => Ok(()),
            false => self.compare(firsts, pairs),
        };
        let was_last = self.common.comparing.fetch_sub(1, Ordering::AcqRel) == LAST;
        compared?;
        if was_last {
            let firsts = self.own(firsts);
            let (alike, stand): (Vec<u32>, Vec<u32>) =
                firsts.iter().partition(|it| self.is_alike(**it));
            let near = |number: &u32| self.near_ones(track, *number, pairs).len() as u64;
            let told = self.tell(Message::Alike {
                firsts: count_of(&firsts),
                stand_for_all: count_of(&stand),
                near: alike.iter().map(near).sum(),
            });
            // Only now may the others tell of what is counted with it.
            self.common.comparing.store(0, Ordering::Release);
            return Ok(told);
        }
        while self.common.comparing.load(Ordering::Acquire) > 0 {
            if self.common.stopped.load(Ordering::Relaxed) {
                return Ok(false);
            }
            thread::sleep(WAIT);
        }
        Ok(true)
    }

    /// Those of the first NMIs that are in the part of this sweep. The comparison is of all, so that each part finds
    /// out the same. Should two parts find out different things, no pair is lost: who has a boundary that is like the
    /// next one leaves pairs to whoever has the next one, who tries them or leaves them on likewise; the last boundary
    /// of all is like no other.
    fn own(&self, firsts: &[u32]) -> Vec<u32> {
        let is_own = |number: &u32| self.plan.is_own(&self.common.boundaries, *number);
        firsts.iter().copied().filter(is_own).collect()
    }

    fn is_alike(&self, number: u32) -> bool {
        let alike = self.common.alike.get(number as usize);
        alike.is_some_and(|it| it.load(Ordering::Relaxed))
    }

    /// The two pairs that no other boundary stands for, as far as they are wanted: a second NMI at the same
    /// boundary, and at the next.
    fn near_ones(&self, track: &Track, number: u32, pairs: &Pairs) -> Vec<(u32, Boundary, Nmis)> {
        let next = track.after(number);
        let steps = [Some(number), next].into_iter().flatten();
        let steps: Vec<Step> = steps.filter_map(|it| track.step(it).copied()).collect();
        let path = boundaries(&steps);
        let wanted = pairs.points.of(&steps);
        let all = [Some(Nmis::Two), next.map(Nmis::AndAt)];
        (0..)
            .zip(path)
            .zip(all.into_iter().flatten())
            .map(|((second, at), nmis)| (second, at, nmis))
            .filter(|(second, ..)| wanted.contains(second))
            .collect()
    }

    /// Tries them.
    fn near(&mut self, track: &mut Track, number: u32, pairs: &Pairs) -> Result<bool, SweepError> {
        for (second, at, nmis) in self.near_ones(track, number, pairs) {
            if !self.second(track, number, (number, nmis), (second, at))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// All pairs behind a first NMI.
    fn far(&mut self, track: &mut Track, number: u32, pairs: &Pairs) -> Result<bool, SweepError> {
        let at = self.common.boundaries.get(number as usize);
        let (Some(first), Some(&at)) = (track.step(number), at) else {
            return Ok(true);
        };
        let mut changed = None;
        for _ in 0..TRIES {
            changed = self.changed(track, number, pairs.entry)?;
            if changed.is_some() {
                break;
            }
        }
        let Some(mut changed) = changed else {
            return self.miss(Point::single(number, at));
        };
        let steps: Vec<Step> = [first]
            .into_iter()
            .chain(changed.path.iter())
            .copied()
            .collect();
        let path = boundaries(&steps);
        let seconds = pairs.points.of(&steps);
        if !self.tell(Message::Changed {
            trials: seconds.len() as u64,
            pairs: self.stands_for(track, number, &changed, pairs),
        }) {
            return Ok(false);
        }
        for second in seconds {
            let Some(&at) = path.get(second as usize) else {
                continue;
            };
            let go_on = match second.checked_sub(1) {
                None => self.second(track, number, (number, Nmis::Two), (second, at))?,
                Some(behind) => {
                    self.second(&mut changed, number, (behind, Nmis::One), (second, at))?
                }
            };
            if !go_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One trial. `number` is the boundary of the first NMI, `second` that of the second one; `how`
    /// says to which boundary of the track to go, and what to do there.
    fn second(
        &mut self,
        track: &mut Track,
        number: u32,
        how: (u32, Nmis),
        second: (u32, Boundary),
    ) -> Result<bool, SweepError> {
        let Some(&at) = self.common.boundaries.get(number as usize) else {
            return Ok(true);
        };
        let point = Point {
            number,
            at,
            then: Some(SecondNmi {
                number: second.0,
                at: second.1,
            }),
        };
        if self.plan.done.contains(&point.tried()) {
            return Ok(true);
        }
        self.try_point(track, how.0, how.1, point)
    }

    /// The path behind an NMI at a boundary, from the next boundary on; `None` where the way led
    /// elsewhere.
    fn changed(
        &mut self,
        track: &Track,
        number: u32,
        entry: u64,
    ) -> Result<Option<Track>, SweepError> {
        let Some(next) = track.after(number).and_then(|it| track.step(it)) else {
            return Ok(None);
        };
        if !self.go(track, track.nearest(number), number, Approach::Steps)? {
            return Ok(None);
        }
        let mut made = track.made.clone();
        made.push(self.nmi()?);
        if !self.walk.run_to(entry)? {
            return Ok(None);
        }
        let left = match next.reach {
            Reach::Returned => self.walk.come_back(next.rip),
            _ => self.walk.leave_handler(next.rip),
        };
        if !self.is_the_way(left)? {
            return Ok(None);
        }
        let behind = checkpoint(&mut self.walk.driver)?;
        // What counts is the way from there once the machine is put back: in the middle of reading
        // the guest's clock the reading starts over (see `try_often`).
        self.restore(&behind)?;
        // The other machines speak meanwhile, and such a path is short.
        let mut heard = |_| true;
        let mut progress = Progress::new(&mut heard);
        match self.walk.path_from(behind, self.plan, &mut progress) {
            Ok(Recorded {
                path,
                checkpoints,
                checkpoints_us,
            }) => {
                self.effort.checkpoints_us.extend(checkpoints_us);
                Ok(Some(Track::new(path.into(), made, checkpoints)))
            }
            Err(error) => self.is_the_way(Err(error)).map(|_| None),
        }
    }

    /// How many pairs are tried by those behind a first NMI: its own, and those of the boundaries
    /// before it that are like it.
    fn stands_for(&self, track: &Track, number: u32, changed: &Track, pairs: &Pairs) -> u64 {
        let alike = (0..number).rev().take_while(|it| self.is_alike(*it));
        let all = [number].into_iter().chain(alike);
        all.map(|first| {
            let before = (first..=number).filter_map(|it| track.step(it));
            let path: Vec<Step> = before.chain(changed.path.iter()).copied().collect();
            pairs.points.with_left_out(&path).len() as u64
        })
        .sum()
    }
}

fn count_of<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}
