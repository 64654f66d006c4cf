//! The time of a trial: when it is to be wound up, and when to give up.

use std::time::{Duration, Instant};

use super::books::Going;
use crate::plan::{Settle, TrialPlan};

/// Share of the run limit that is left for the end of a trial that is wound up, so that it still ends in order and can
/// say which injections are missing.
const FOR_ITS_END: f64 = 0.3;
/// How often the settle time at most that a workload gets which does not come on.
const SETTLES: u64 = 10;

/// How long a trial has taken, and may take.
#[derive(Debug)]
pub struct Clock {
    boot_limit: Duration,
    run_limit: Duration,
    run_limit_in_all: Duration,
    settle: Settle,
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
            run_limit_in_all: Duration::from_millis(plan.limits.run_ms_in_all()),
            settle: plan.settle,
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

    /// Whether the workload has run long enough; `injected`: when all injections were made; `reached`: when the guest
    /// last came on ([`Books::last_reached`](super::books::Books::last_reached)); `going`: how far the workload has come
    /// since all were made.
    pub fn is_enough(
        &self,
        injected: Option<Instant>,
        reached: Option<Instant>,
        going: impl FnOnce() -> Going,
    ) -> bool {
        let ran = |ms: u64, times: u64| {
            longer_than(injected, Duration::from_millis(ms.saturating_mul(times)))
        };
        let is_settled = match self.settle {
            Settle::ItEnds => false,
            Settle::Ms(ms) => ran(ms, 1) && (ran(ms, SETTLES) || going().one),
            Settle::Iterations { .. } if injected.is_none() => false,
            Settle::Iterations { most_ms } => {
                let going = going();
                going.all || ran(most_ms, SETTLES) || (ran(most_ms, 1) && going.one)
            }
        };
        let for_its_end = self.run_limit.mul_f64(FOR_ITS_END);
        is_settled || self.nears_a_limit(reached, for_its_end)
    }

    /// Whether the trial is beyond its run limit.
    pub fn run_over(&self, reached: Option<Instant>) -> bool {
        self.nears_a_limit(reached, Duration::ZERO)
    }

    /// Whether the trial has no more than this left of one of its limits.
    fn nears_a_limit(&self, reached: Option<Instant>, left: Duration) -> bool {
        let but = |limit: Duration| limit.saturating_sub(left);
        longer_than(self.running_since.max(reached), but(self.run_limit))
            || longer_than(self.running_since, but(self.run_limit_in_all))
    }
}

fn longer_than(since: Option<Instant>, limit: Duration) -> bool {
    since.is_some_and(|at| at.elapsed() > limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock of a trial that began so many ms ago and may take a second.
    fn after(ms: u64) -> Clock {
        let began = Instant::now().checked_sub(Duration::from_millis(ms));
        Clock {
            boot_limit: Duration::ZERO,
            run_limit: Duration::from_secs(1),
            run_limit_in_all: Duration::from_secs(4),
            settle: Settle::Ms(0),
            started: Instant::now(),
            running_since: began,
        }
    }

    #[test]
    fn a_workload_that_does_not_come_on_gets_ten_times_the_settle_time() {
        let clock = Clock {
            settle: Settle::Ms(10),
            ..after(0)
        };
        for (ms, going, standing) in [(5, false, false), (50, true, false), (150, true, true)] {
            let injected = Instant::now().checked_sub(Duration::from_millis(ms));
            let is_enough = |one| clock.is_enough(injected, None, || Going { one, all: one });
            assert_eq!(
                (is_enough(true), is_enough(false)),
                (going, standing),
                "{ms} ms"
            );
        }
    }

    #[test]
    fn a_trial_without_injections_is_wound_up_and_then_given_up() {
        let states = [600, 800, 1100].map(after);
        let said = states.map(|it| (it.is_enough(None, None, Going::default), it.run_over(None)));
        assert_eq!(said, [(false, false), (true, false), (true, true)]);
    }

    #[test]
    fn a_guest_that_comes_on_lengthens_a_trial_up_to_four_times() {
        for (ms, is_enough, is_over) in [
            (1100, false, false),
            (3600, false, false),
            (3800, true, false),
            (4100, true, true),
        ] {
            let (clock, now) = (after(ms), Some(Instant::now()));
            let said = (
                clock.is_enough(None, now, Going::default),
                clock.run_over(now),
            );
            assert_eq!(said, (is_enough, is_over), "{ms} ms");
        }
    }

    #[test]
    fn a_workload_that_ends_by_itself_is_not_told_to() {
        let clock = Clock {
            settle: Settle::ItEnds,
            ..after(600)
        };
        let injected = Instant::now().checked_sub(Duration::from_millis(600));
        let going = Going {
            one: true,
            all: true,
        };
        assert!(!clock.is_enough(injected, None, || going));
    }

    #[test]
    fn a_workload_that_has_come_on_is_enough_at_once() {
        let clock = Clock {
            settle: Settle::Iterations { most_ms: 10 },
            ..after(0)
        };
        let [none, one, all] =
            [(false, false), (true, false), (true, true)].map(|(one, all)| Going { one, all });
        for (ms, enough) in [
            (0, [false, false, true]),
            (50, [false, true, true]),
            (150, [true; 3]),
        ] {
            let injected = Instant::now().checked_sub(Duration::from_millis(ms));
            let said = [none, one, all].map(|going| clock.is_enough(injected, None, || going));
            assert_eq!(said, enough, "{ms} ms");
        }
        assert!(
            !clock.is_enough(None, None, || all),
            "before the last injection"
        );
    }
}
