//! Injections that come some time after the start, or after the one that they follow.

use std::time::{Duration, Instant};

/// An injection that waits for its time.
#[derive(Debug)]
struct Pending {
    due: Instant,
    spec: u32,
    vcpu: u8,
}

/// All of a trial.
#[derive(Debug, Default)]
pub struct Delays {
    pending: Vec<Pending>,
}

impl Delays {
    /// Injection `spec` is due at `due`, into `vcpu` where it has no target of its own.
    pub fn add(&mut self, spec: u32, vcpu: u8, due: Instant) {
        self.pending.push(Pending { due, spec, vcpu });
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Instant> {
        self.pending.iter().map(|it| it.due).min()
    }

    /// Takes the one that is longest due: (index in the scenario, vCPU).
    pub fn take_due(&mut self, now: Instant) -> Option<(u32, u8)> {
        let next = self.next().filter(|due| *due <= now)?;
        let at = self.pending.iter().position(|it| it.due == next)?;
        let taken = self.pending.remove(at);
        Some((taken.spec, taken.vcpu))
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
        assert_eq!(delays.take_due(start), None);
        let late = later(start, 5000);
        assert_eq!(delays.take_due(late), Some((2, 1)));
        assert_eq!(delays.take_due(late), Some((1, 0)));
        assert_eq!(delays.take_due(late), None);
    }
}
