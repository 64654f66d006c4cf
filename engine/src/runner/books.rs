//! What was done in a trial so far: how often each injection was made, and how far the workload was
//! at the first one and when all were made.

use std::collections::BTreeMap;
use std::time::Instant;

use unwindlab_oracle::trace::recording::{Injection, Recording, ThreadProgress};

use crate::driver::Driver;
use crate::plan::ActionPlan;

/// The books of a trial.
#[derive(Debug, Default)]
pub struct Books {
    /// By injection: how often it was made.
    made: BTreeMap<u32, u64>,
    /// By injection that comes after a time: how often that time has begun.
    begun: BTreeMap<u32, u64>,
    /// The workload's progress at the first injection.
    first_progress: Vec<u64>,
    /// The same when all injections were made, or the trial was wound up.
    last_progress: Vec<u64>,
    /// When the last injection was made for which the guest had to come to its place, or a thread was seen to have ended
    /// one more of the iterations that it is to make.
    last_reached: Option<Instant>,
    /// How many of those were ended then, by all threads.
    iterations: u64,
    /// When all injections were made.
    completed: Option<Instant>,
}

/// Which threads of a workload have made [`ITERATIONS`] iterations since all injections were made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Going {
    /// One of them, or there is none.
    pub one: bool,
    /// All of them.
    pub all: bool,
}

/// Iterations of a thread that end no sooner than one that began behind the last injection.
const ITERATIONS: u64 = 2;

impl Books {
    /// How often an injection was made.
    pub fn made(&self, spec: u32) -> u64 {
        self.made.get(&spec).copied().unwrap_or(0)
    }

    /// How many injections were made.
    pub fn total(&self) -> u64 {
        self.made.values().sum()
    }

    /// The guest has come to the place of an injection that was made.
    pub fn reach(&mut self) {
        self.last_reached = Some(Instant::now());
    }

    /// The threads have made so many iterations, of those that they are to make.
    pub fn iterate(&mut self, iterations: &[u64]) {
        let sum = iterations
            .iter()
            .fold(0, |sum: u64, it| sum.saturating_add(*it));
        if sum > self.iterations {
            self.iterations = sum;
            self.reach();
        }
    }

    /// When it last did, or ended an iteration, if ever.
    pub fn last_reached(&self) -> Option<Instant> {
        self.last_reached
    }

    /// When all injections were made, if they are.
    pub fn completed(&self) -> Option<Instant> {
        self.completed
    }

    /// An injection is about to be made.
    pub fn begin(&mut self, driver: &Driver) {
        if self.first_progress.is_empty() {
            self.first_progress = driver.progress();
        }
    }

    /// Writes an injection down that was made.
    pub fn note(&mut self, recording: &mut Recording, action: ActionPlan, injection: Injection) {
        *self.made.entry(injection.spec).or_default() += 1;
        let list = match action {
            // An overflow is an NMI too.
            ActionPlan::Nmi | ActionPlan::PmuOverflow => &mut recording.injections,
            ActionPlan::Fail { .. } => &mut recording.failures,
            _ => &mut recording.actions,
        };
        list.push(injection);
    }

    /// Whether injection `spec`, which was just made, is the last of those that another one comes
    /// `after` to be made so often.
    pub fn completes(&self, after: &[u32], spec: u32) -> bool {
        after.contains(&spec)
            && after
                .iter()
                .all(|other| self.made(*other) >= self.made(spec))
    }

    /// Begins the time after which an injection comes, unless it has begun so often before.
    pub fn begin_delay(&mut self, spec: u32, most: u64) -> bool {
        let begun = self.begun.entry(spec).or_default();
        let begins = *begun < most;
        *begun += u64::from(begins);
        begins
    }

    /// All injections are made.
    pub fn complete(&mut self, driver: &Driver) {
        if self.completed.is_none() {
            self.completed = Some(Instant::now());
            self.last_progress = driver.progress();
        }
    }

    /// How far the workload has come since all injections were made.
    pub fn going(&self, driver: &Driver) -> Going {
        self.going_to(&driver.progress())
    }

    fn going_to(&self, now: &[u64]) -> Going {
        let then = self.last_progress.iter().copied();
        let both = now.iter().zip(then.chain(std::iter::repeat(0)));
        let mut going = both.map(|(now, then)| now.saturating_sub(then) >= ITERATIONS);
        let one = now.is_empty() || going.clone().any(|it| it);
        Going {
            one,
            all: going.all(|it| it),
        }
    }

    /// Nothing is injected any more.
    pub fn close(&mut self, driver: &Driver) {
        if self.last_progress.is_empty() {
            self.last_progress = driver.progress();
        }
    }

    /// How far each thread of the workload was, with what it has done at the end.
    pub fn progress(&self, recording: &Recording, at_end: &[u64]) -> Vec<ThreadProgress> {
        let count = |list: &[u64], i: usize| list.get(i).copied().unwrap_or(0);
        (0_usize..)
            .zip(&recording.threads)
            .map(|(i, thread)| ThreadProgress {
                thread: thread.thread,
                at_first_injection: count(&self.first_progress, i),
                at_last_injection: count(&self.last_progress, i),
                at_end: count(at_end, i),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(books: &mut Books, spec: u32) {
        let injection = Injection {
            spec,
            vcpu: 0,
            rip: 0,
            cpl: 0,
            thread: None,
            iteration: None,
            exact: false,
            interrupt_waits: false,
            stack_pointer: 0,
        };
        books.note(&mut Recording::default(), ActionPlan::Nmi, injection);
    }

    #[test]
    fn several_are_complete_when_the_last_of_them_is_made_so_often() {
        let mut books = Books::default();
        let mut completions = Vec::new();
        // The first runs ahead, the second overtakes it, the third is of no interest.
        for spec in [0, 0, 2, 1, 1, 1, 0] {
            make(&mut books, spec);
            completions.push(books.completes(&[0, 1], spec));
        }
        assert_eq!(completions, [false, false, false, true, true, false, true]);
        assert!(books.completes(&[2], 2) && !books.completes(&[], 2));
        assert_eq!(books.total(), 7);
    }

    #[test]
    fn an_iteration_is_a_place_that_was_reached() {
        let mut books = Books::default();
        let mut reached = Vec::new();
        // The last of them are the words of a guest that scribbles over them.
        for iterations in [[0, 0], [0, 1], [0, 1], [1, 0], [u64::MAX, 1], [0, 0]] {
            let before = books.last_reached();
            books.iterate(&iterations);
            reached.push(books.last_reached() != before);
        }
        assert_eq!(reached, [false, true, false, false, true, false]);
    }

    #[test]
    fn threads_come_on_by_two_iterations() {
        let books = Books {
            last_progress: vec![5, 8],
            ..Books::default()
        };
        let going = |now: &[u64]| {
            let going = books.going_to(now);
            (going.one, going.all)
        };
        assert_eq!(going(&[]), (true, true));
        assert_eq!(going(&[6, 9]), (false, false));
        assert_eq!(going(&[7, 9]), (true, false));
        assert_eq!(going(&[7, 10]), (true, true));
        // Scribbled over.
        assert_eq!(going(&[0, u64::MAX, 1]), (true, false));
    }

    #[test]
    fn a_time_begins_no_more_often_than_it_may() {
        let mut books = Books::default();
        let begins: Vec<bool> = (0..3).map(|_| books.begin_delay(4, 2)).collect();
        assert_eq!(begins, [true, true, false]);
    }
}
