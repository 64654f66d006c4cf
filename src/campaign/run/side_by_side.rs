//! Scenarios side by side, each worker with a KVM host of its own.
//!
//! A scenario with one vCPU keeps one CPU busy, so several run at a time. One with more vCPUs runs alone: beside others its vCPUs would wait
//! for each other longer than on any real machine. All of those run on the first worker's host, so that no other makes their
//! machines too. Results are told in the order of the library.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;

use super::LibraryRun;
use super::library_run::NO_HOST;
use super::unit::{RunUnit, UnitFinished};
use crate::campaign::error::CampaignError;
use crate::judge::ScenarioResult;

/// Most scenarios at a time, unless the user wants more.
const MOST: u64 = 4;
/// KiB of memory that a KVM host may come to take; most take a third of it.
const HOST_KIB: u64 = 4 << 20;

/// How many scenarios this machine has CPUs and free memory for at a time, at least 1.
#[must_use]
pub fn jobs_of_this_machine() -> usize {
    let cpus = thread::available_parallelism().map_or(1, |it| it.get() as u64);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    usize::try_from(jobs_for(cpus, &memory)).unwrap_or(1)
}

/// The same, by what /proc/meminfo says (proc_meminfo(5)).
fn jobs_for(cpus: u64, memory: &str) -> u64 {
    let mut lines = memory.lines();
    let available = lines.find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let hosts = kib.unwrap_or_default() / HOST_KIB;
    cpus.min(hosts).clamp(1, MOST)
}

/// A scenario that is over.
struct Done {
    number: usize,
    /// Nothing where the user interrupted it.
    result: Result<Option<ScenarioResult>, CampaignError>,
    host: String,
    unkept: Vec<CampaignError>,
}

/// Which scenarios are left.
struct Turns {
    /// By number; none once no more are to be run.
    left: Mutex<Vec<Turn>>,
    /// Held by all for reading while a scenario runs, or by one for writing.
    gate: RwLock<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Taken,
    /// Has one vCPU, or is not run at all.
    Beside,
    /// Runs while nothing else does.
    Alone,
}

impl Turns {
    fn of(units: &[RunUnit<'_>]) -> Self {
        let turn = |unit: &RunUnit<'_>| match unit.runs_alone() {
            true => Turn::Alone,
            false => Turn::Beside,
        };
        Self {
            left: Mutex::new(units.iter().map(turn).collect()),
            gate: RwLock::new(()),
        }
    }

    fn left(&self) -> MutexGuard<'_, Vec<Turn>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next for a worker: the first worker takes any, the others those that run beside others.
    fn next(&self, is_first: bool) -> Option<(usize, Turn)> {
        let mut left = self.left();
        let takes = |turn: &Turn| match turn {
            Turn::Taken => false,
            Turn::Beside => true,
            Turn::Alone => is_first,
        };
        let number = left.iter().position(takes)?;
        let turn = std::mem::replace(left.get_mut(number)?, Turn::Taken);
        Some((number, turn))
    }

    fn stop(&self) {
        self.left().clear();
    }
}

impl LibraryRun<'_> {
    /// Runs the scenarios of `library`, as many at a time as the options say.
    pub(super) fn side_by_side(
        &mut self,
        units: &[RunUnit<'_>],
        finished: &mut UnitFinished<'_>,
    ) -> Result<(), CampaignError> {
        let turns = Turns::of(units);
        let workers = (0..self.options.jobs.min(units.len())).map(|_| self.worker());
        let workers: Vec<_> = workers.collect();
        thread::scope(|scope| {
            let (send, receive) = channel();
            for (number, mut worker) in workers.into_iter().enumerate() {
                let (send, turns) = (send.clone(), &turns);
                scope.spawn(move || worker.take_turns(number == 0, units, turns, &send));
            }
            drop(send);
            let gathered = self.gather(receive, units, finished);
            turns.stop();
            gathered
        })
    }

    fn take_turns(
        &mut self,
        is_first: bool,
        units: &[RunUnit<'_>],
        turns: &Turns,
        send: &Sender<Done>,
    ) {
        let mut executor = None;
        while let Some((number, turn)) = turns.next(is_first) {
            let Some(unit) = units.get(number) else {
                break;
            };
            let (beside, alone) = match turn {
                Turn::Alone => (None, turns.gate.write().ok()),
                _ => (turns.gate.read().ok(), None),
            };
            let result = self.run_or_skip(&mut executor, *unit);
            drop((beside, alone));
            let is_over = !matches!(result, Ok(Some(_)));
            let done = Done {
                number,
                result,
                host: self.host.clone(),
                unkept: std::mem::take(&mut self.unkept),
            };
            // Nobody waits for it any more after an error.
            if send.send(done).is_err() || is_over {
                break;
            }
        }
        if is_first {
            self.keep(executor);
        }
    }

    /// Takes results as they come, and tells them in order.
    fn gather(
        &mut self,
        receive: Receiver<Done>,
        units: &[RunUnit<'_>],
        finished: &mut UnitFinished<'_>,
    ) -> Result<(), CampaignError> {
        let mut waiting = BTreeMap::new();
        let mut next = 0;
        for done in receive {
            self.unkept.extend(done.unkept);
            let Some(result) = done.result? else {
                continue;
            };
            waiting.insert(done.number, (result, done.host));
            while let Some((result, host)) = waiting.remove(&next) {
                self.tell(units.get(next), result, host, finished)?;
                next += 1;
            }
        }
        // One before these was interrupted, or is not run any more.
        for (number, (result, host)) in waiting {
            self.tell(units.get(number), result, host, finished)?;
        }
        Ok(())
    }

    fn tell(
        &mut self,
        unit: Option<&RunUnit<'_>>,
        result: ScenarioResult,
        host: String,
        finished: &mut UnitFinished<'_>,
    ) -> Result<(), CampaignError> {
        // A scenario that was not run may come from a worker that has no host yet.
        if host != NO_HOST {
            self.host = host;
        }
        if let Some(unit) = unit {
            finished(unit, &result, &self.host)?;
        }
        self.results.push(result);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_room_for_as_many_as_it_has_cpus_and_memory_for() {
        let memory = |gib: u64| format!("MemTotal: 1 kB\nMemAvailable: {} kB\n", gib << 20);
        assert_eq!(jobs_for(2, &memory(24)), 2);
        assert_eq!(jobs_for(64, &memory(256)), 4);
        assert_eq!(jobs_for(4, &memory(9)), 2);
        assert_eq!(jobs_for(4, &memory(1)), 1);
        assert_eq!(jobs_for(4, ""), 1);
    }

    #[test]
    fn those_that_run_alone_are_the_first_workers() {
        let turns = Turns {
            left: Mutex::new(vec![Turn::Alone, Turn::Beside, Turn::Alone, Turn::Beside]),
            gate: RwLock::new(()),
        };
        let number = |is_first| turns.next(is_first).map(|(number, _)| number);
        assert_eq!(number(false), Some(1));
        assert_eq!(number(true), Some(0));
        assert_eq!(number(false), Some(3));
        assert_eq!(number(false), None);
        assert_eq!(number(true), Some(2));
        assert_eq!(number(true), None);
        let turns = Turns::of(&[]);
        turns.stop();
        assert_eq!(turns.next(true).map(|(number, _)| number), None);
    }
}
