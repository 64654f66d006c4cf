//! Scenarios side by side, each worker with a KVM host of its own.
//!
//! A scenario with two vCPUs keeps little more than one CPU busy, as one with a single vCPU does, so each counts the same. The first worker
//! prefers those with several vCPUs, so that hardly any other host makes their machines too, and the few of a kind of machine that hardly any other
//! has: its host is the one that is kept. Results are told in the order of the library. A worker looks for what it prefers among the next few only,
//! so that few results wait for those before them.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
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

/// Among how many of the scenarios that are left a worker looks for one that it prefers.
const WINDOW: usize = 32;

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
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Taken,
    /// For the others rather than the first worker. Some are not run at all.
    Others,
    /// For the first worker: has several vCPUs or a kind of machine that few have, or is the first of its kind.
    First,
}

impl Turns {
    fn of(units: &[RunUnit<'_>]) -> Self {
        let kinds = units.iter().map(RunUnit::kind);
        Self {
            left: Mutex::new(preferred(kinds, MachineKind::has_several_vcpus)),
        }
    }

    fn left(&self) -> MutexGuard<'_, Vec<Turn>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next for a worker: what it prefers, or else whatever comes first.
    fn next(&self, is_first: bool) -> Option<usize> {
        let mut left = self.left();
        let preferred = match is_first {
            true => Turn::First,
            false => Turn::Others,
        };
        let lowest = left.iter().position(|it| *it != Turn::Taken)?;
        let mut near = left.iter().skip(lowest).take(WINDOW);
        let number = lowest + near.position(|it| *it == preferred).unwrap_or(0);
        *left.get_mut(number)? = Turn::Taken;
        Some(number)
    }

    fn stop(&self) {
        self.left().clear();
    }
}

/// Who prefers which scenario, by the kinds of their machines; one that is not run has none.
fn preferred<K: PartialEq>(
    kinds: impl Iterator<Item = Option<K>>,
    has_several_vcpus: fn(&K) -> bool,
) -> Vec<Turn> {
    let mut turns = Vec::new();
    let mut by_kind: Vec<(K, Vec<usize>)> = Vec::new();
    for (number, kind) in kinds.enumerate() {
        turns.push(Turn::Others);
        let Some(kind) = kind else {
            continue;
        };
        match by_kind.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, numbers)) => numbers.push(number),
            None => by_kind.push((kind, vec![number])),
        }
    }
    let most = by_kind.iter().map(|(_, numbers)| numbers.len()).max();
    for (kind, numbers) in by_kind {
        let few = numbers.len() < FEW && Some(numbers.len()) < most;
        let of_first = match few || has_several_vcpus(&kind) {
            true => numbers.len(),
            // What is kept then has a machine of each kind.
            false => 1,
        };
        for number in numbers.into_iter().take(of_first) {
            if let Some(turn) = turns.get_mut(number) {
                *turn = Turn::First;
            }
        }
    }
    turns
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
        while let Some(number) = turns.next(is_first) {
            let Some(unit) = units.get(number) else {
                break;
            };
            let result = self.run_or_skip(&mut executor, *unit);
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
    fn the_first_worker_has_several_vcpus_rare_kinds_and_one_of_each() {
        let mut kinds = vec![Some(1); FEW + 1];
        kinds.extend([Some(2); FEW]);
        kinds.extend([None, Some(3), Some(3)]);
        let of_first: Vec<usize> = preferred(kinds.into_iter(), |it| *it == 2)
            .iter()
            .enumerate()
            .filter_map(|(number, turn)| (*turn == Turn::First).then_some(number))
            .collect();
        let several = FEW + 1..2 * FEW + 1;
        let expected = [0]
            .into_iter()
            .chain(several)
            .chain([2 * FEW + 2, 2 * FEW + 3]);
        assert_eq!(of_first, expected.collect::<Vec<_>>());
        assert!(preferred([Some(1); 2].into_iter(), |_| false) == [Turn::First, Turn::Others]);
    }

    #[test]
    fn a_worker_takes_what_it_prefers_among_the_next_few() {
        let turns = |left| Turns {
            left: Mutex::new(left),
        };
        let taken = |turns: &Turns, is_first| {
            let taken: Vec<usize> = std::iter::from_fn(|| turns.next(is_first)).collect();
            taken
        };
        let four = || turns(vec![Turn::Others, Turn::First, Turn::Others, Turn::First]);
        assert_eq!(taken(&four(), true), [1, 3, 0, 2]);
        assert_eq!(taken(&four(), false), [0, 2, 1, 3]);
        let stopped = four();
        stopped.stop();
        assert!(taken(&stopped, true).is_empty());
        let mut left = vec![Turn::Others; WINDOW + 2];
        left[WINDOW] = Turn::First;
        let far = turns(left);
        let numbers = [true, true, true].map(|is_first| far.next(is_first));
        assert_eq!(numbers, [Some(0), Some(WINDOW), Some(1)]);
    }
}
