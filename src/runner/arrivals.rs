//! Injections at an instruction: which breakpoint hits count, and what is due at each.
//!
//! A breakpoint is passed by every task. Only a workload thread between its arm mark and its
//! next mark counts, told by the kernel's own `current_task`; everything else goes on.
//!
//! When an NMI has been injected at a breakpoint, its handler returns to the very instruction,
//! where the breakpoint stops the vCPU again if it is told to revisit it: that is how several
//! NMIs land on one instruction of one kernel entry.

use std::collections::HashMap;

/// One injection plan of the arrival kind, and how far it is.
#[derive(Debug)]
pub struct Arrival {
    /// Index of the injection in the scenario.
    pub spec: u32,
    /// The instruction.
    pub address: u64,
    /// First iteration of a thread that counts, from 1.
    pub first: u64,
    /// Which hit within an iteration, from 1.
    pub hit: u64,
    /// Iterations in which the injection is made.
    pub repeat: u64,
    /// NMIs at each.
    pub times: u32,
    done: u64,
    missed: u64,
    armed: HashMap<u32, Armed>,
}

#[derive(Debug)]
struct Armed {
    task: u64,
    iteration: u64,
    hits: u64,
    injected: u32,
}

/// What a breakpoint hit calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Inject, for this injection, thread and iteration.
    Inject {
        /// Index of the injection in the scenario.
        spec: u32,
        /// The workload thread that is current.
        thread: u32,
        /// Its iteration.
        iteration: u64,
        /// More are due at this very arrival: come back once the handler has returned.
        again: bool,
    },
    /// Not ours: go on.
    Pass,
}

impl Arrival {
    /// A plan that has not begun.
    #[must_use]
    pub fn new(spec: u32, address: u64, first: u64, hit: u64, repeat: u64, times: u32) -> Self {
        Self {
            spec,
            address,
            first,
            hit,
            repeat,
            times,
            done: 0,
            missed: 0,
            armed: HashMap::new(),
        }
    }

    /// All its injections are made.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.done >= self.repeat
    }
}

/// All arrival injections of a trial.
#[derive(Debug, Default)]
pub struct Arrivals {
    list: Vec<Arrival>,
    iterations: HashMap<u32, u64>,
}

impl Arrivals {
    /// Those of a plan.
    #[must_use]
    pub fn new(list: Vec<Arrival>) -> Self {
        Self {
            list,
            iterations: HashMap::new(),
        }
    }

    /// The distinct addresses at which there is still something to do.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        let mut open: Vec<u64> = self
            .list
            .iter()
            .filter(|a| !a.complete())
            .map(|a| a.address)
            .collect();
        open.sort_unstable();
        open.dedup();
        open
    }

    /// All injections are made.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.list.iter().all(Arrival::complete)
    }

    /// Iterations that ended before the instruction was reached often enough.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.list.iter().map(|a| a.missed).sum()
    }

    /// A thread is about to begin its next iteration; `task` is the kernel's current task.
    pub fn arm(&mut self, thread: u32, task: u64) {
        let iteration = self.iterations.entry(thread).or_insert(0);
        *iteration += 1;
        let iteration = *iteration;
        for arrival in &mut self.list {
            if arrival.armed.remove(&thread).is_some() {
                arrival.missed += 1;
            }
            let begun = arrival.done + arrival.armed.len() as u64;
            if iteration >= arrival.first && begun < arrival.repeat {
                arrival.armed.insert(
                    thread,
                    Armed {
                        task,
                        iteration,
                        hits: 0,
                        injected: 0,
                    },
                );
            }
        }
    }

    /// A thread is back in user mode.
    pub fn disarm(&mut self, thread: u32) {
        for arrival in &mut self.list {
            if arrival.armed.remove(&thread).is_some() {
                arrival.missed += 1;
            }
        }
    }

    /// A vCPU whose current task is `task` is about to execute the instruction at `pc`.
    pub fn hit(&mut self, pc: u64, task: u64) -> Due {
        for arrival in self.list.iter_mut().filter(|a| a.address == pc) {
            let Some((&thread, armed)) = arrival.armed.iter_mut().find(|(_, a)| a.task == task)
            else {
                continue;
            };
            // Once the first NMI is in, coming by again means its handler has returned.
            if armed.injected == 0 {
                armed.hits += 1;
                if armed.hits < arrival.hit {
                    continue;
                }
            }
            armed.injected += 1;
            let iteration = armed.iteration;
            let again = armed.injected < arrival.times;
            if !again {
                arrival.armed.remove(&thread);
                arrival.done += 1;
            }
            return Due::Inject {
                spec: arrival.spec,
                thread,
                iteration,
                again,
            };
        }
        Due::Pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: u64 = 0xffff_8880_0000_1000;
    const OTHER: u64 = 0xffff_8880_0000_2000;

    fn one(first: u64, hit: u64, repeat: u64, times: u32) -> Arrivals {
        Arrivals::new(vec![Arrival::new(0, 0x10, first, hit, repeat, times)])
    }

    #[test]
    fn only_the_armed_task_counts() {
        let mut arrivals = one(1, 1, 1, 1);
        assert_eq!(arrivals.hit(0x10, TASK), Due::Pass, "not armed");
        arrivals.arm(0, TASK);
        assert_eq!(arrivals.hit(0x10, OTHER), Due::Pass, "another task");
        assert_eq!(arrivals.hit(0x20, TASK), Due::Pass, "another place");
        assert_eq!(
            arrivals.hit(0x10, TASK),
            Due::Inject {
                spec: 0,
                thread: 0,
                iteration: 1,
                again: false
            }
        );
        assert!(arrivals.complete());
        assert!(arrivals.addresses().is_empty());
    }

    #[test]
    fn a_burst_stays_on_its_instruction() {
        let mut arrivals = one(1, 1, 2, 3);
        arrivals.arm(0, TASK);
        let due = |iteration, again| Due::Inject {
            spec: 0,
            thread: 0,
            iteration,
            again,
        };
        for again in [true, true, false] {
            assert_eq!(arrivals.hit(0x10, TASK), due(1, again));
        }
        assert_eq!(arrivals.hit(0x10, TASK), Due::Pass, "done here");
        arrivals.arm(0, TASK);
        assert_eq!(arrivals.hit(0x10, TASK), due(2, true));
    }

    #[test]
    fn hits_and_iterations_are_counted_from_one() {
        let mut arrivals = one(2, 2, 1, 1);
        arrivals.arm(0, TASK);
        assert_eq!(
            arrivals.hit(0x10, TASK),
            Due::Pass,
            "iteration 1 does not count"
        );
        arrivals.arm(0, TASK);
        assert_eq!(arrivals.hit(0x10, TASK), Due::Pass, "first hit");
        assert_eq!(
            arrivals.hit(0x10, TASK),
            Due::Inject {
                spec: 0,
                thread: 0,
                iteration: 2,
                again: false
            }
        );
    }

    #[test]
    fn an_iteration_that_never_gets_there_is_missed_and_made_up_for() {
        let mut arrivals = one(1, 1, 1, 1);
        arrivals.arm(0, TASK);
        arrivals.disarm(0);
        assert_eq!(arrivals.missed(), 1);
        assert_eq!(arrivals.hit(0x10, TASK), Due::Pass);
        arrivals.arm(0, TASK);
        assert_eq!(
            arrivals.hit(0x10, TASK),
            Due::Inject {
                spec: 0,
                thread: 0,
                iteration: 2,
                again: false
            }
        );
    }

    #[test]
    fn threads_share_the_repeats() {
        let mut arrivals = one(1, 1, 1, 1);
        arrivals.arm(0, TASK);
        arrivals.arm(1, OTHER);
        assert_eq!(
            arrivals.hit(0x10, OTHER),
            Due::Pass,
            "the one repeat is thread 0's"
        );
        assert_eq!(
            arrivals.hit(0x10, TASK),
            Due::Inject {
                spec: 0,
                thread: 0,
                iteration: 1,
                again: false
            }
        );
    }
}
