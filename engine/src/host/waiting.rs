//! How long the threads of a KVM host waited for a CPU. Ticks come in real time: a guest whose host seldom gets a CPU may execute nothing
//! else. It makes no progress then, which says nothing about its kernel.

use std::collections::BTreeMap;
use std::fs;

use unwindlab_oracle::trace::recording::TrialEnd;

use crate::plan::sweep::{Message, Point};

/// A host that waited for more of its time ran nothing but its guest's ticks, perhaps: guests of good kernels were seen to come no
/// further at 97 % (docs/soak.md).
const STARVED: u64 = 80;

/// What each thread of a process has got, by its number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Waiting(BTreeMap<u32, Times>);

/// In nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Times {
    /// On a CPU.
    ran: u64,
    /// On a run queue, for a CPU.
    waited: u64,
}

impl Waiting {
    /// Of a process, up to now. A kernel that does not tell (CONFIG_SCHED_INFO) makes it empty.
    pub(super) fn of(process: u32) -> Self {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
            return Self::default();
        };
        let times = threads.flatten().filter_map(|thread| {
            let number = thread.file_name().to_str()?.parse().ok()?;
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            Some((number, times(&text)?))
        });
        Self(times.collect())
    }

    /// How many percent of the time since then, in which the threads wanted a CPU, they waited for one.
    fn percent_since(&self, then: &Self) -> Option<u64> {
        let (mut ran, mut waited) = (0_u64, 0_u64);
        for (number, now) in &self.0 {
            let before = then.0.get(number).copied().unwrap_or_default();
            ran = ran.saturating_add(now.ran.saturating_sub(before.ran));
            waited = waited.saturating_add(now.waited.saturating_sub(before.waited));
        }
        let wanted = ran.saturating_add(waited);
        waited.saturating_mul(100).checked_div(wanted)
    }

    /// The end of a trial that began then and ends now: that of a guest which makes no progress proves
    /// nothing where its host was starved.
    pub(super) fn judge(&self, then: &Self, end: TrialEnd) -> TrialEnd {
        match (end, self.percent_since(then)) {
            (TrialEnd::Hang { places }, Some(percent)) if percent > STARVED => {
                TrialEnd::Starved { places, percent }
            }
            (end, _) => end,
        }
    }
}

/// The tries of a sweep's points: one that hangs is made once more, and only the last one stands.
#[derive(Debug, Default)]
pub(super) struct SweptTries {
    /// When the last one of each began that was made once more.
    again: BTreeMap<Point, Waiting>,
}

impl SweptTries {
    /// Judges the hang of a try as [`Waiting::judge`] does; `now` reads the host's times.
    pub(super) fn weigh(&mut self, message: &mut Message, now: impl FnOnce() -> Waiting) {
        match message {
            Message::Retried { point, .. } => _ = self.again.insert(*point, now()),
            Message::Trial(trial) => {
                let begun = self.again.remove(&trial.point);
                if let (Some(begun), TrialEnd::Hang { .. }) = (begun, &trial.end) {
                    trial.end = now().judge(&begun, std::mem::take(&mut trial.end));
                }
            }
            _ => {}
        }
    }
}

/// A thread's, from the text of its `schedstat`: on the CPU, on a run queue, and how many times it was given a CPU
/// (Documentation/scheduler/sched-stats.rst).
fn times(text: &str) -> Option<Times> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let (ran, waited) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(Times { ran, waited })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::sweep::{Boundary, SweptTrial};

    fn waiting(threads: &[(u32, &str)]) -> Waiting {
        let times = threads
            .iter()
            .map(|(number, text)| (*number, times(text).unwrap()));
        Waiting(times.collect())
    }

    fn hang() -> TrialEnd {
        TrialEnd::Hang { places: Vec::new() }
    }

    #[test]
    fn a_hang_of_a_starved_host_is_none() {
        let then = waiting(&[(1, "1000 5000 3"), (2, "7 7 1")]);
        let starved = waiting(&[(1, "1100 5600 9"), (3, "10 400 2")]);
        let end = starved.judge(&then, hang());
        let percent = 1000 * 100 / 1110;
        assert_eq!(
            end,
            TrialEnd::Starved {
                places: Vec::new(),
                percent
            }
        );
        assert_eq!(starved.judge(&then, TrialEnd::Timeout), TrialEnd::Timeout);
    }

    #[test]
    fn a_hang_of_a_host_that_got_a_fifth_of_what_it_wanted_is_one() {
        let then = waiting(&[(1, "1000 5000 3")]);
        let slow = waiting(&[(1, "1020 5080 9")]);
        assert_eq!(slow.percent_since(&then), Some(80));
        assert_eq!(slow.judge(&then, hang()), hang());
    }

    #[test]
    fn where_the_kernel_does_not_tell_a_hang_is_one() {
        let nothing = waiting(&[(1, "0 0 0")]);
        assert_eq!(nothing.judge(&nothing, hang()), hang());
        assert_eq!(Waiting::default().judge(&nothing, hang()), hang());
        assert_eq!(times("12"), None);
        assert_eq!(times("a b c"), None);
    }

    #[test]
    fn the_last_try_of_a_point_is_weighed_from_its_beginning() {
        let point = |number| Point::single(number, Boundary::from((0x1000, number)));
        let judged = |begun: &str, tried: u32| {
            let mut tries = SweptTries::default();
            // Several machines make tries side by side.
            for (number, begun) in [(3, begun), (4, "2000 9000 5")] {
                let mut retried = Message::Retried {
                    point: point(number),
                    end: hang(),
                    console: String::new(),
                };
                tries.weigh(&mut retried, || waiting(&[(1, begun)]));
            }
            let mut trial = Message::Trial(Box::new(SweptTrial {
                point: point(tried),
                end: hang(),
                ..SweptTrial::default()
            }));
            tries.weigh(&mut trial, || waiting(&[(1, "2000 9000 5")]));
            let Message::Trial(trial) = trial else {
                panic!("{trial:?}");
            };
            trial.end
        };
        let starved = judged("1900 1000 4", 3);
        assert!(
            matches!(starved, TrialEnd::Starved { percent: 98, .. }),
            "{starved:?}"
        );
        assert_eq!(judged("1000 8900 4", 3), hang());
        // The first try of a point.
        assert_eq!(judged("1900 1000 4", 5), hang());
    }

    #[test]
    fn this_process_has_run() {
        let spin = std::time::Instant::now();
        while spin.elapsed().as_millis() < 20 {}
        let times = Waiting::of(std::process::id()).0;
        assert!(times.values().any(|it| it.ran > 0), "{times:?}");
    }
}
