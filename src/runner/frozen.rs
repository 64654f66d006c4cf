//! vCPUs that stand still because the scenario says so, and whose turn it is in a schedule.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use unwindlab_vmm::Run;

/// One that stands still.
#[derive(Debug)]
struct Held {
    /// The injection that froze it.
    by: u32,
    since: Instant,
    limit: Duration,
    /// After that time it just goes on.
    passing: bool,
    /// How it is to go on; none while what it stopped for is being dealt with.
    run: Option<Run>,
}

/// All of a trial.
#[derive(Debug, Default)]
pub struct Frozen {
    held: BTreeMap<u8, Held>,
    /// Points of the schedule passed so far.
    passed: u64,
    /// vCPUs that came to their point before its turn: the point.
    early: BTreeMap<u8, u32>,
}

impl Frozen {
    /// The vCPU stands still from now on.
    pub fn freeze(&mut self, vcpu: u8, by: u32, limit: Duration, run: Option<Run>, now: Instant) {
        self.held.entry(vcpu).or_insert(Held {
            by,
            since: now,
            limit,
            passing: false,
            run,
        });
    }

    /// One that stands still does so for its limit at most.
    pub fn passing(&mut self, vcpu: u8) {
        if let Some(held) = self.held.get_mut(&vcpu) {
            held.passing = true;
        }
    }

    /// One that has stood still for as long as it was to.
    #[must_use]
    pub fn over(&self, now: Instant) -> Option<u8> {
        self.beyond_limit(now, true).map(|(vcpu, ..)| vcpu)
    }

    fn beyond_limit(&self, now: Instant, passing: bool) -> Option<(u8, u32, Duration)> {
        self.held.iter().find_map(|(&vcpu, held)| {
            let time = now.saturating_duration_since(held.since);
            let is_late = held.passing == passing && time > held.limit;
            is_late.then_some((vcpu, held.by, time))
        })
    }

    /// Whether it stands still.
    #[must_use]
    pub fn is(&self, vcpu: u8) -> bool {
        self.held.contains_key(&vcpu)
    }

    /// Keeps it from going on, and remembers how it wanted to; false where it is not frozen.
    pub fn keep(&mut self, vcpu: u8, run: Run) -> bool {
        match self.held.get_mut(&vcpu) {
            Some(held) => {
                held.run = Some(run);
                true
            }
            None => false,
        }
    }

    /// It is not frozen any more. How it is to go on, if it is up to the caller to let it.
    pub fn thaw(&mut self, vcpu: u8) -> Option<Run> {
        self.early.remove(&vcpu);
        self.held.remove(&vcpu)?.run
    }

    /// One that has been held for too long: (vCPU, injection, for how long).
    #[must_use]
    pub fn too_long(&self, now: Instant) -> Option<(u8, u32, Duration)> {
        self.beyond_limit(now, false)
    }

    /// Those that stand still.
    #[must_use]
    pub fn all(&self) -> Vec<u8> {
        self.held.keys().copied().collect()
    }

    /// Whether point `turn` of `of` may be passed now.
    #[must_use]
    pub fn is_turn(&self, turn: u32, of: u32) -> bool {
        self.passed % u64::from(of.max(1)) == u64::from(turn)
    }

    /// The vCPU is at point `turn`, too early.
    pub fn wait_for(&mut self, vcpu: u8, turn: u32) {
        self.early.insert(vcpu, turn);
    }

    /// A point was passed. The vCPU whose turn it is now, if one waits.
    pub fn passed(&mut self, of: u32) -> Option<u8> {
        self.passed += 1;
        let early = self.early.iter();
        { early }.find_map(|(&vcpu, &turn)| self.is_turn(turn, of).then_some(vcpu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_frozen_goes_on_as_it_wanted_to() {
        let now = Instant::now();
        let mut frozen = Frozen::default();
        assert!(!frozen.keep(1, Run::Continue));
        frozen.freeze(1, 0, Duration::from_secs(1), None, now);
        assert!(frozen.is(1) && frozen.keep(1, Run::Step));
        assert_eq!(frozen.too_long(now), None);
        let late = now + Duration::from_secs(2);
        assert_eq!(frozen.too_long(late), Some((1, 0, Duration::from_secs(2))));
        assert_eq!(frozen.thaw(1), Some(Run::Step));
        assert_eq!(frozen.thaw(1), None);
        assert!(frozen.all().is_empty());
    }

    #[test]
    fn points_are_passed_in_turn_round_and_round() {
        let mut frozen = Frozen::default();
        for _ in 0..2 {
            assert!(frozen.is_turn(0, 2) && !frozen.is_turn(1, 2));
            frozen.wait_for(1, 1);
            assert_eq!(frozen.passed(2), Some(1));
            frozen.thaw(1);
            assert!(frozen.is_turn(1, 2));
            assert_eq!(frozen.passed(2), None);
        }
    }
}
