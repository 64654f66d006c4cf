//! Periodic injections: when the next one is due on which vCPU.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Injections without progress after which a period is doubled.
const PATIENCE: u32 = 8;
/// A period is doubled so often at most.
const DOUBLINGS: u32 = 7;

/// The time between two injections.
#[derive(Debug, Clone)]
pub struct Period {
    shortest: Duration,
    backs_off: bool,
    /// Injections since each thread of the workload has come on.
    in_vain: u32,
    /// The workload's progress when they began.
    progress: Vec<u64>,
}

impl Period {
    /// A period of `shortest`. One that `backs_off` is doubled after every 8 injections in which
    /// some thread of the workload did not come on: a machine that takes longer than `shortest` for
    /// an NMI and its walk would otherwise do nothing but take NMIs, whatever the kernel does.
    pub fn new(shortest: Duration, backs_off: bool) -> Self {
        Self {
            shortest,
            backs_off,
            in_vain: 0,
            progress: Vec::new(),
        }
    }

    /// Begins the next period, with the workload's `progress`.
    fn begin(&mut self, progress: impl FnOnce() -> Vec<u64>) -> Duration {
        if self.backs_off {
            let now = progress();
            if { self.progress.iter().zip(&now) }.any(|(before, now)| before == now) {
                self.in_vain = self.in_vain.saturating_add(1);
            } else {
                self.in_vain = 0;
                self.progress = now;
            }
        }
        let doublings = (self.in_vain / PATIENCE).min(DOUBLINGS);
        self.shortest.saturating_mul(1 << doublings)
    }
}

/// One periodic injection on one vCPU.
#[derive(Debug)]
struct Timer {
    spec: u32,
    vcpu: u8,
    period: Period,
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
    pub fn add(&mut self, spec: u32, vcpu: u8, period: Period, count: u64, now: Instant) {
        self.timers.push(Timer {
            spec,
            vcpu,
            left: count,
            next: now + period.shortest,
            period,
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
    /// `progress` says how far each thread of the workload is.
    pub fn take_due(
        &mut self,
        now: Instant,
        progress: impl FnOnce() -> Vec<u64>,
    ) -> Option<(u32, u8)> {
        let due = self
            .timers
            .iter_mut()
            .find(|t| t.left > 0 && t.next <= now)?;
        due.next = now + due.period.begin(progress);
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

    /// A workload that never comes on.
    fn stands() -> Vec<u64> {
        vec![7]
    }

    #[test]
    fn injections_come_one_period_apart_and_end() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut rates = Rates::default();
        rates.add(3, 1, Period::new(ms(10), false), 2, start);
        assert_eq!(rates.take_due(start + ms(9), stands), None);
        assert_eq!(rates.take_due(start + ms(35), stands), Some((3, 1)));
        let early = rates.take_due(start + ms(36), stands);
        assert_eq!(early, None, "no burst to catch up");
        assert_eq!(rates.next(), Some(start + ms(45)));
        assert!(!rates.complete());
        rates.made(3, 1);
        rates.made(3, 1);
        assert!(rates.complete());
        assert_eq!(rates.next(), None);
    }

    #[test]
    fn a_period_is_doubled_until_every_thread_comes_on() {
        let ms = Duration::from_millis;
        let mut period = Period::new(ms(2), true);
        period.begin(|| vec![0, 0]);
        for _ in 0..7 {
            assert_eq!(period.begin(|| vec![1, 0]), ms(2));
        }
        for _ in 0..8 {
            assert_eq!(period.begin(|| vec![2, 0]), ms(4));
        }
        assert_eq!(period.begin(|| vec![2, 0]), ms(8));
        assert_eq!(period.begin(|| vec![2, 1]), ms(2));
        for _ in 0..1_000 {
            period.begin(|| vec![2, 1]);
        }
        assert_eq!(period.begin(|| vec![2, 1]), ms(256));
    }
}
