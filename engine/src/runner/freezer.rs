//! vCPUs that stand still because the scenario says so, and whose turn it is in a schedule.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use unwindlab_oracle::trace::recording::VcpuPlace;
use unwindlab_vmm::{Pause, Run};

use crate::driver::{Driver, DriverError};

/// A vCPU that stands still.
#[derive(Debug)]
struct FrozenVcpu {
    /// The injection that froze it.
    by: u32,
    since: Instant,
    limit: Duration,
    /// After that time it just goes on.
    passing: bool,
}

/// A vCPU that stood still for longer than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrozenTooLong {
    /// The vCPU.
    pub vcpu: u8,
    /// The injection that froze it.
    pub by: u32,
    /// For how long it stood still.
    pub time: Duration,
}

/// All frozen vCPUs of a trial. The driver holds each of them.
#[derive(Debug, Default)]
pub struct Freezer {
    frozen: BTreeMap<u8, FrozenVcpu>,
    /// Points of the schedule passed so far.
    passed: u64,
    /// vCPUs that came to their point before its turn: the point.
    early: BTreeMap<u8, u32>,
}

impl Freezer {
    /// Stops a vCPU because of injection `by`; it stands still from now on.
    pub fn freeze(
        &mut self,
        driver: &mut Driver,
        vcpu: u8,
        by: u32,
        limit: Duration,
    ) -> Result<VcpuPlace, DriverError> {
        let paused = driver.vcpu(vcpu)?.pause()?;
        let place = driver.place(vcpu)?;
        // One that stopped for a reason of its own goes on when that has been dealt with.
        driver.hold(vcpu, (paused == Pause::Paused).then_some(Run::AsBefore));
        self.note(vcpu, by, limit, Instant::now());
        Ok(place)
    }

    /// Has a vCPU that stopped at point `turn` of the schedule, injection `by`, wait for its turn.
    pub fn wait_for_turn(
        &mut self,
        driver: &mut Driver,
        vcpu: u8,
        by: u32,
        limit: Duration,
        turn: u32,
    ) {
        driver.hold(vcpu, None);
        self.note(vcpu, by, limit, Instant::now());
        self.early.insert(vcpu, turn);
    }

    /// Lets a vCPU go on, if it is frozen.
    pub fn thaw(&mut self, driver: &mut Driver, vcpu: u8) -> Result<(), DriverError> {
        match self.release(driver, vcpu) {
            Some(run) => driver.resume(vcpu, run),
            None => Ok(()),
        }
    }

    /// Freezes a vCPU no longer. Returns how it is to go on, where it is up to the caller to resume
    /// it.
    pub fn release(&mut self, driver: &mut Driver, vcpu: u8) -> Option<Run> {
        self.early.remove(&vcpu);
        self.frozen.remove(&vcpu);
        driver.release(vcpu)
    }

    /// Lets all vCPUs go on.
    pub fn thaw_all(&mut self, driver: &mut Driver) -> Result<(), DriverError> {
        let all: Vec<u8> = self.frozen.keys().copied().collect();
        all.into_iter().try_for_each(|vcpu| self.thaw(driver, vcpu))
    }

    /// Lets those go on that stood still for as long as they were to.
    pub fn thaw_over(&mut self, driver: &mut Driver) -> Result<(), DriverError> {
        while let Some(over) = self.beyond_limit(Instant::now(), true) {
            self.thaw(driver, over.vcpu)?;
        }
        Ok(())
    }

    /// A frozen vCPU stands still for its limit at most, and that is no fault of the trial.
    pub fn set_passing(&mut self, vcpu: u8) {
        if let Some(frozen) = self.frozen.get_mut(&vcpu) {
            frozen.passing = true;
        }
    }

    /// Whether a vCPU is frozen.
    pub fn is_frozen(&self, vcpu: u8) -> bool {
        self.frozen.contains_key(&vcpu)
    }

    /// One that has been frozen for too long.
    pub fn too_long(&self, now: Instant) -> Option<FrozenTooLong> {
        self.beyond_limit(now, false)
    }

    /// Whether point `turn` of `of` may be passed now.
    pub fn is_turn(&self, turn: u32, of: u32) -> bool {
        self.passed % u64::from(of.max(1)) == u64::from(turn)
    }

    /// A point was passed. The vCPU whose turn it is now, if one waits.
    pub fn passed(&mut self, of: u32) -> Option<u8> {
        self.passed += 1;
        let early = self.early.iter();
        { early }.find_map(|(&vcpu, &turn)| self.is_turn(turn, of).then_some(vcpu))
    }

    fn note(&mut self, vcpu: u8, by: u32, limit: Duration, now: Instant) {
        self.frozen.entry(vcpu).or_insert(FrozenVcpu {
            by,
            since: now,
            limit,
            passing: false,
        });
    }

    fn beyond_limit(&self, now: Instant, passing: bool) -> Option<FrozenTooLong> {
        self.frozen.iter().find_map(|(&vcpu, frozen)| {
            let time = now.saturating_duration_since(frozen.since);
            let is_late = frozen.passing == passing && time > frozen.limit;
            is_late.then_some(FrozenTooLong {
                vcpu,
                by: frozen.by,
                time,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_frozen_for_too_long_is_told_of() {
        let now = Instant::now();
        let mut freezer = Freezer::default();
        freezer.note(1, 0, Duration::from_secs(1), now);
        assert!(freezer.is_frozen(1));
        assert_eq!(freezer.too_long(now), None);
        let late = now + Duration::from_secs(2);
        let too_long = FrozenTooLong {
            vcpu: 1,
            by: 0,
            time: Duration::from_secs(2),
        };
        assert_eq!(freezer.too_long(late), Some(too_long));
        freezer.set_passing(1);
        assert_eq!(freezer.too_long(late), None);
        assert_eq!(freezer.beyond_limit(late, true), Some(too_long));
    }

    #[test]
    fn points_are_passed_in_turn_round_and_round() {
        let mut freezer = Freezer::default();
        for _ in 0..2 {
            assert!(freezer.is_turn(0, 2) && !freezer.is_turn(1, 2));
            freezer.early.insert(1, 1);
            assert_eq!(freezer.passed(2), Some(1));
            freezer.early.remove(&1);
            assert!(freezer.is_turn(1, 2));
            assert_eq!(freezer.passed(2), None);
        }
    }
}
