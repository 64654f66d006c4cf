//! Scenarios side by side, each worker with a KVM host of its own.
//!
//! A scenario with one vCPU keeps one CPU busy, so several run at a time. One with more vCPUs runs alone: beside others its vCPUs would wait
//! for each other longer than on any real machine. All of those run on the first worker's host, so that no other makes their
//! machines too, and several in a row, because each time the others have to come to an end first. So do the few of a kind of machine that
//! hardly any other has, beside others: the first worker's host is the one that is kept. Results are told in the order of the library.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;

use super::LibraryRun;
use super::library_run::NO_HOST;
use super::unit::{RunUnit, UnitFinished};
use crate::campaign::error::CampaignError;
use crate::judge::ScenarioResult;
use unwindlab_engine::runner::boot::MachineKind;

/// Most scenarios at a time, unless the user wants more.
const MOST: u64 = 4;
/// KiB of memory that a KVM host may come to take; most take a third of it.
const HOST_KIB: u64 = 4 << 20;

/// Among how many scenarios those that run alone are put behind the others: as many may wait to be told.
const WINDOW: usize = 32;

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

/// So many scenarios or more of a kind of machine are worth one on each host.
const FEW: usize = 8;

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
    /// Has one vCPU, and a kind of machine that few have: the first worker's.
    Rare,
    /// Runs while nothing else does.
    Alone,
}

impl Turns {
    fn of(units: &[RunUnit<'_>]) -> Self {
        let mut kinds: Vec<(MachineKind, usize)> = Vec::new();
        for kind in units.iter().filter_map(RunUnit::kind) {
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, times)) => *times += 1,
                None => kinds.push((kind, 1)),
            }
        }
        let most = kinds.iter().map(|(_, times)| *times).max().unwrap_or(0);
        let is_rare = |kind: MachineKind| {
            let few = |times: usize| times < FEW && times < most;
            kinds
                .iter()
                .any(|(known, times)| *known == kind && few(*times))
        };
        let turn = |unit: &RunUnit<'_>| match unit.runs_alone() {
            true => Turn::Alone,
            false if unit.kind().is_some_and(is_rare) => Turn::Rare,
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

    /// The next for a worker. The first worker takes those that run beside others until one that runs alone is far behind, and then, while
    /// it `is_alone`, all of those up to there. The others take those that run beside others and are of no rare kind.
    fn next(&self, is_first: bool, is_alone: bool) -> Option<(usize, Turn)> {
        let mut left = self.left();
        let next = |wanted: Turn| left.iter().position(|it| *it == wanted);
        let of_first = |wanted: Turn| next(wanted).filter(|_| is_first);
        let (rare, alone) = (of_first(Turn::Rare), of_first(Turn::Alone));
        let beside = next(Turn::Beside).into_iter().chain(rare).min();
        let number = match (beside, alone) {
            (Some(beside), Some(alone)) if is_alone && alone < beside => alone,
            (Some(beside), Some(alone)) if beside >= alone + WINDOW => alone,
            (beside, alone) => beside.or(alone)?,
        };
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
        let mut alone = None;
        while let Some((number, turn)) = turns.next(is_first, alone.is_some()) {
            let Some(unit) = units.get(number) else {
                break;
            };
            let beside = match turn {
                Turn::Alone => {
                    // It is still alone behind another one.
                    alone = alone.or_else(|| turns.gate.write().ok());
                    None
                }
                _ => {
                    alone = None;
                    turns.gate.read().ok()
                }
            };
            let result = self.run_or_skip(&mut executor, *unit);
            drop(beside);
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
        drop(alone);
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
        self.push(result);
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
    fn those_that_run_alone_are_the_first_workers_and_come_behind_the_next_few() {
        let turns = |left| Turns {
            left: Mutex::new(left),
            gate: RwLock::new(()),
        };
        let four = turns(vec![Turn::Alone, Turn::Beside, Turn::Alone, Turn::Beside]);
        let number = |is_first| four.next(is_first, false).map(|(number, _)| number);
        assert_eq!(number(false), Some(1));
        assert_eq!(number(true), Some(3));
        assert_eq!(number(false), None);
        assert_eq!(number(true), Some(0));
        assert_eq!(number(true), Some(2));
        assert_eq!(number(true), None);
        let mut left = vec![Turn::Beside; WINDOW + 4];
        for alone in [0, 1, WINDOW + 2] {
            left[alone] = Turn::Alone;
        }
        let many = turns(left);
        let mut is_alone = false;
        let numbers = std::iter::from_fn(|| {
            let (number, turn) = many.next(true, is_alone)?;
            is_alone = turn == Turn::Alone;
            Some(number)
        });
        let expected = (2..WINDOW).chain([0, 1, WINDOW, WINDOW + 1, WINDOW + 3, WINDOW + 2]);
        assert!(numbers.eq(expected));
        let rare = || turns(vec![Turn::Rare, Turn::Beside, Turn::Beside]);
        let of_all = |workers: [bool; 3]| {
            let rare = rare();
            workers.map(|is_first| rare.next(is_first, false).map(|(number, _)| number))
        };
        assert_eq!(of_all([true; 3]), [Some(0), Some(1), Some(2)]);
        assert_eq!(of_all([false; 3]), [Some(1), Some(2), None]);
        let turns = Turns::of(&[]);
        turns.stop();
        assert_eq!(turns.next(true, false).map(|(number, _)| number), None);
    }
}
