//! The time of a trial: when it is to be wound up, and when to give up.

use std::time::{Duration, Instant};

use crate::plan::TrialPlan;

/// Share of the run limit after which a trial whose points are not all reached is wound up, so
/// that it still ends in order and can say which ones.
const WIND_UP: f64 = 0.7;

/// How long a trial has taken, and may take.
#[derive(Debug)]
pub struct Clock {
    boot_limit: Duration,
    run_limit: Duration,
    settle: Duration,
    started: Instant,
    /// When the agent said Ready.
    running_since: Option<Instant>,
}

impl Clock {
    /// The clock of a trial that starts now.
    pub fn start(plan: &TrialPlan) -> Self {
        Self {
            boot_limit: Duration::from_millis(plan.limits.boot_ms),
            run_limit: Duration::from_millis(plan.limits.run_ms),
            settle: Duration::from_millis(plan.settle_ms),
            started: Instant::now(),
            running_since: None,
        }
    }

    /// The trial starts only now.
    pub fn restart(&mut self) {
        self.started = Instant::now();
    }

    /// The agent says Ready.
    pub fn run(&mut self, now: Instant) {
        self.running_since = Some(now);
    }

    /// Whether the agent has said Ready.
    pub fn is_running(&self) -> bool {
        self.running_since.is_some()
    }

    /// Milliseconds since the start.
    pub fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The limit of the boot, where the trial is beyond it.
    pub fn boot_over(&self) -> Option<Duration> {
        (self.started.elapsed() > self.boot_limit).then_some(self.boot_limit)
    }

    /// Whether the workload has run long enough; `injected`: when all injections were made.
    pub fn is_enough(&self, injected: Option<Instant>) -> bool {
        injected.is_some_and(|at| at.elapsed() > self.settle)
            || self.runs_longer_than(self.run_limit.mul_f64(WIND_UP))
    }

    /// Whether the trial is beyond its run limit.
    pub fn run_over(&self) -> bool {
        self.runs_longer_than(self.run_limit)
    }

    fn runs_longer_than(&self, limit: Duration) -> bool {
        self.running_since.is_some_and(|at| at.elapsed() > limit)
    }
}
