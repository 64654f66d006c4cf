//! Periodic injections: when the next one is due on which vCPU.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One periodic injection on one vCPU.
#[derive(Debug)]
struct Timer {
    spec: u32,
    vcpu: u8,
    period: Duration,
    left: u64,
    next: Instant,
}

/// All periodic injections of a trial.
#[derive(Debug, Default)]
pub struct Rates {
    timers: Vec<Timer>,
    /// By vCPU: since when an NMI waits to be taken.
    untaken: BTreeMap<u8, Instant>,
}

impl Rates {
    /// Adds `count` injections into `vcpu`, the first one period from `now`.
    pub fn add(&mut self, spec: u32, vcpu: u8, period: Duration, count: u64, now: Instant) {
        self.timers.push(Timer {
            spec,
            vcpu,
            period,
            left: count,
            next: now + period,
        });
    }

    /// All injections are made.
    pub fn complete(&self) -> bool {
        self.timers.iter().all(|t| t.left == 0)
    }

    /// When the next injection is due.
    pub fn next(&self) -> Option<Instant> {
        self.timers
            .iter()
            .filter(|t| t.left > 0)
            .map(|t| t.next)
            .min()
    }

    /// Takes one injection that is due: (index in the scenario, vCPU). The next one is a period
    /// from now, not from when this one was due: a late injection is never made up for by a
    /// burst, because the period is what gives the guest time to make progress.
    pub fn take_due(&mut self, now: Instant) -> Option<(u32, u8)> {
        let due = self
            .timers
            .iter_mut()
            .find(|t| t.left > 0 && t.next <= now)?;
        due.next = now + due.period;
        Some((due.spec, due.vcpu))
    }

    /// Counts an injection that was really made.
    pub fn made(&mut self, spec: u32, vcpu: u8) {
        self.untaken.remove(&vcpu);
        if let Some(timer) = self
            .timers
            .iter_mut()
            .find(|t| t.spec == spec && t.vcpu == vcpu)
        {
            timer.left = timer.left.saturating_sub(1);
        }
    }

    /// An injection was not made because the last NMI still waits. Returns for how long it has.
    pub fn not_taken(&mut self, vcpu: u8, now: Instant) -> Duration {
        let since = *self.untaken.entry(vcpu).or_insert(now);
        now.saturating_duration_since(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn injections_come_one_period_apart_and_end() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut rates = Rates::default();
        rates.add(3, 1, ms(10), 2, start);
        assert_eq!(rates.take_due(start + ms(9)), None);
        assert_eq!(rates.take_due(start + ms(35)), Some((3, 1)));
        assert_eq!(rates.take_due(start + ms(36)), None, "no burst to catch up");
        assert!(!rates.complete());
        rates.made(3, 1);
        rates.made(3, 1);
        assert!(rates.complete());
        assert_eq!(rates.next(), None);
    }
}
