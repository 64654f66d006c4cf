//! Injections that come some time after the start, or after the one that they follow.

use std::time::{Duration, Instant};

/// An injection that waits for its time.
#[derive(Debug, Clone, Copy)]
pub struct Delayed {
    /// Its index in the scenario.
    pub spec: u32,
    /// Where it is made if it has no target of its own.
    pub vcpu: u8,
    /// When it was due before it was put off.
    first_due: Instant,
    due: Instant,
}

impl Delayed {
    /// Whether it is due for the first time.
    pub fn is_new(&self) -> bool {
        self.due == self.first_due
    }
}

/// An injection that is put off is made after at most so many times its delay. It is tried so often in each.
const DELAYS: u32 = 10;

/// All of a trial.
#[derive(Debug, Default)]
pub struct Delays {
    pending: Vec<Delayed>,
}

impl Delays {
    /// Injection `spec` is due at `due`, into `vcpu` where it has no target of its own.
    pub fn add(&mut self, spec: u32, vcpu: u8, due: Instant) {
        self.pending.push(Delayed {
            spec,
            vcpu,
            first_due: due,
            due,
        });
    }

    /// Puts off one that is due by a tenth of its delay. False, and nothing is done, if ten delays are over.
    pub fn put_off(&mut self, delayed: Delayed, now: Instant, delay: Duration) -> bool {
        let last = delayed.first_due + delay * (DELAYS - 1);
        let due = (now + delay / DELAYS).min(last);
        if now < last {
            self.pending.push(Delayed { due, ..delayed });
        }
        now < last
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Instant> {
        self.pending.iter().map(|it| it.due).min()
    }

    /// Takes the one that is longest due.
    pub fn take_due(&mut self, now: Instant) -> Option<Delayed> {
        let next = self.next().filter(|due| *due <= now)?;
        let at = self.pending.iter().position(|it| it.due == next)?;
        Some(self.pending.remove(at))
    }
}

/// When something that is so many microseconds away is due.
pub fn later(now: Instant, micros: u64) -> Instant {
    now + Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_due_comes_first_and_once() {
        let start = Instant::now();
        let mut delays = Delays::default();
        delays.add(1, 0, later(start, 2000));
        delays.add(2, 1, later(start, 1000));
        assert_eq!(delays.next(), Some(later(start, 1000)));
        let mut take = |now| delays.take_due(now).map(|it| (it.spec, it.vcpu));
        assert_eq!(take(start), None);
        let late = later(start, 5000);
        assert_eq!(take(late), Some((2, 1)));
        assert_eq!(take(late), Some((1, 0)));
        assert_eq!(take(late), None);
    }

    #[test]
    fn one_that_is_put_off_waits_for_ten_delays_at_most() {
        let start = Instant::now();
        let delay = Duration::from_micros(1000);
        let mut delays = Delays::default();
        delays.add(1, 0, later(start, 1000));
        let mut now = later(start, 1400);
        let mut times = (0, 0);
        while let Some(it) = delays.take_due(now) {
            times.0 += u32::from(it.is_new());
            if !delays.put_off(it, now, delay) {
                break;
            }
            times.1 += 1;
            now = delays.next().unwrap();
        }
        assert_eq!((times, now), ((1, 86), later(start, 10_000)));
    }
}
