//! Injections at an event that is seen from outside: a record in a ring, one in the log of the lab
//! client, a mark of a workload thread, an exit of a vCPU.
//!
//! Marks and exits stop the vCPU, and are seen at once. The rings and the log are looked at every
//! millisecond: an injection finds the guest as it is by then.

use crate::driver::session::OutputCursor;
use crate::plan::EventPlan;

/// One injection.
#[derive(Debug)]
struct Watcher {
    spec: u32,
    event: EventPlan,
    hit: u64,
    repeat: u64,
    /// How often it may be made by now.
    released: u64,
    made: u64,
    /// Since it was last made.
    seen: u64,
}

/// All of a trial.
#[derive(Debug, Default)]
pub struct Sightings {
    watchers: Vec<Watcher>,
    /// How far the rings and the log were looked at.
    pub cursor: OutputCursor,
}

impl Sightings {
    /// Adds an injection; `follows`: it waits for another one.
    pub fn add(&mut self, spec: u32, event: EventPlan, hit: u64, repeat: u64, follows: bool) {
        self.watchers.push(Watcher {
            spec,
            event,
            hit,
            repeat,
            released: if follows { 0 } else { u64::MAX },
            made: 0,
            seen: 0,
        });
    }

    /// Injection `spec` may be made once more.
    pub fn release(&mut self, spec: u32) {
        for watcher in self.watchers.iter_mut().filter(|it| it.spec == spec) {
            watcher.released = watcher.released.saturating_add(1);
        }
    }

    /// All are made.
    pub fn complete(&self) -> bool {
        self.watchers.iter().all(|it| it.made >= it.repeat)
    }

    /// Whether the rings and the log are of interest.
    pub fn reads_rings(&self) -> bool {
        self.watchers.iter().any(|it| {
            it.made < it.repeat && matches!(it.event, EventPlan::Record(_) | EventPlan::Lab(_))
        })
    }

    /// Something was seen: the injections that it is the event of.
    pub fn see(&mut self, event: EventPlan) -> Vec<u32> {
        let mut due = Vec::new();
        for watcher in self
            .watchers
            .iter_mut()
            .filter(|it| it.event.covers(&event))
        {
            if watcher.made >= watcher.repeat.min(watcher.released) {
                continue;
            }
            watcher.seen += 1;
            if watcher.seen >= watcher.hit {
                watcher.seen = 0;
                watcher.made += 1;
                due.push(watcher.spec);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFERRED: EventPlan = EventPlan::Record(22);

    #[test]
    fn every_so_many_of_its_kind() {
        let mut sightings = Sightings::default();
        sightings.add(4, DEFERRED, 2, 2, false);
        assert!(sightings.see(EventPlan::Record(9)).is_empty());
        let due: Vec<_> = (0..6).map(|_| sightings.see(DEFERRED).len()).collect();
        assert_eq!(due, [0, 1, 0, 1, 0, 0]);
        assert!(sightings.complete() && !sightings.reads_rings());
    }

    #[test]
    fn what_follows_counts_from_there() {
        let mut sightings = Sightings::default();
        sightings.add(0, EventPlan::Mark(1), 1, 9, true);
        assert!(sightings.see(EventPlan::Mark(1)).is_empty());
        sightings.release(0);
        assert_eq!(sightings.see(EventPlan::Mark(1)), [0]);
        assert!(
            sightings.see(EventPlan::Mark(1)).is_empty(),
            "once a release"
        );
    }
}
