//! Injections at an instruction: which breakpoint hits count, and what is due at each.
//!
//! A breakpoint is passed by every task. Only a workload thread between its arm mark and its
//! next mark counts, told by the kernel's own `current_task`; everything else goes on.
//!
//! Several NMIs of one arrival (`times`) go to consecutive instruction boundaries, beginning at
//! the place: each is taken, its handler returns to the boundary it came from, that instruction
//! is executed, and the vCPU stops at the next. (A breakpoint cannot stop a vCPU twice at one
//! instruction on every host: TCG pushes RF with an NMI, as hardware does not, and `iretq` then
//! passes the breakpoint.)

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
    /// One instruction boundary later in each iteration than in the one before.
    pub sweep: bool,
    done: u64,
    /// A sweep that has come to the end of what is executed.
    swept: bool,
    armed: HashMap<u32, Armed>,
}

#[derive(Debug)]
struct Armed {
    task: u64,
    iteration: u64,
    hits: u64,
    injected: u32,
    /// Instruction boundaries to pass without an injection, the place's own included.
    pass: u64,
    /// Where the next NMI of this arrival is due; empty until the place was reached.
    next: Vec<u64>,
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
        /// More are due at the boundaries that follow: [`Arrivals::go_on_at`] wants to know
        /// where they are.
        again: bool,
    },
    /// Ours, but nothing is due yet, or the instruction can lead anywhere and more than one NMI is
    /// due: execute it without one, and go on where it led.
    StepFirst {
        /// Index of the injection in the scenario.
        spec: u32,
        /// The workload thread that is current.
        thread: u32,
        /// How many instructions to execute so.
        steps: u64,
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
            sweep: false,
            done: 0,
            swept: false,
            armed: HashMap::new(),
        }
    }

    /// The same, one instruction boundary later in each iteration than in the one before.
    #[must_use]
    pub fn sweeping(mut self, sweep: bool) -> Self {
        self.sweep = sweep;
        self
    }

    /// All its injections are made.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.swept || self.done >= self.repeat
    }

    /// A thread is out of the iteration that it was armed for. One that never got to the place
    /// counts for nothing, and the next one makes up for it; one that got there, and had not
    /// passed enough boundaries when it was over, is the end of the sweep.
    fn leave(&mut self, thread: u32) {
        if let Some(armed) = self.armed.remove(&thread) {
            self.swept |= self.sweep && armed.hits >= self.hit;
        }
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

    /// The distinct addresses to stop at: only those of iterations that are under way, so that
    /// a place that is passed a million times costs nothing before and after.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        let mut places: Vec<u64> = self
            .list
            .iter()
            .flat_map(|arrival| arrival.armed.values().map(move |armed| (arrival, armed)))
            .flat_map(|(arrival, armed)| match armed.next.as_slice() {
                [] => vec![arrival.address],
                next => next.to_vec(),
            })
            .collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// All injections are made.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.list.iter().all(Arrival::complete)
    }

    /// A thread is about to begin its next iteration; `task` is the kernel's current task.
    pub fn arm(&mut self, thread: u32, task: u64) {
        let iteration = self.iterations.entry(thread).or_insert(0);
        *iteration += 1;
        let iteration = *iteration;
        for arrival in &mut self.list {
            arrival.leave(thread);
            let begun = arrival.done + arrival.armed.len() as u64;
            if iteration >= arrival.first && begun < arrival.repeat && !arrival.swept {
                let pass = if arrival.sweep { begun } else { 0 };
                arrival
                    .armed
                    .insert(thread, Armed::new(task, iteration, pass));
            }
        }
    }

    /// A thread is back in user mode.
    pub fn disarm(&mut self, thread: u32) {
        for arrival in &mut self.list {
            arrival.leave(thread);
        }
    }

    /// A vCPU whose current task is `task` is about to execute the instruction at `pc`, of which
    /// it is known where it leads (`leads_on`) or not.
    pub fn hit(&mut self, pc: u64, task: u64, leads_on: bool) -> Due {
        for arrival in &mut self.list {
            let address = arrival.address;
            let here = |armed: &Armed| {
                armed.task == task
                    && if armed.next.is_empty() {
                        address == pc
                    } else {
                        armed.next.contains(&pc)
                    }
            };
            let Some((&thread, armed)) = arrival.armed.iter_mut().find(|(_, a)| here(a)) else {
                continue;
            };
            if armed.next.is_empty() {
                armed.hits += 1;
                if armed.hits < arrival.hit {
                    continue;
                }
            }
            let again = armed.injected + 1 < arrival.times;
            let pass = std::mem::take(&mut armed.pass);
            if pass > 0 || (again && !leads_on) {
                return Due::StepFirst {
                    spec: arrival.spec,
                    thread,
                    steps: pass.max(1),
                };
            }
            armed.injected += 1;
            let iteration = armed.iteration;
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

    /// The arrival of `thread` for which [`Due::Inject`] said `again` goes on at one of `next`.
    pub fn go_on_at(&mut self, spec: u32, thread: u32, next: Vec<u64>) {
        let armed = self
            .list
            .iter_mut()
            .filter(|arrival| arrival.spec == spec)
            .find_map(|arrival| arrival.armed.get_mut(&thread));
        if let Some(armed) = armed {
            armed.next = next;
        }
    }
}

impl Armed {
    fn new(task: u64, iteration: u64, pass: u64) -> Self {
        Self {
            task,
            iteration,
            pass,
            hits: 0,
            injected: 0,
            next: Vec::new(),
        }
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
        assert_eq!(arrivals.hit(0x10, TASK, true), Due::Pass, "not armed");
        arrivals.arm(0, TASK);
        assert_eq!(arrivals.hit(0x10, OTHER, true), Due::Pass, "another task");
        assert_eq!(arrivals.hit(0x20, TASK, true), Due::Pass, "another place");
        assert_eq!(
            arrivals.hit(0x10, TASK, true),
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
    fn a_burst_goes_from_boundary_to_boundary() {
        let mut arrivals = one(1, 1, 2, 3);
        arrivals.arm(0, TASK);
        let due = |iteration, again| Due::Inject {
            spec: 0,
            thread: 0,
            iteration,
            again,
        };
        assert_eq!(arrivals.hit(0x10, TASK, true), due(1, true));
        arrivals.go_on_at(0, 0, vec![0x14]);
        assert_eq!(arrivals.addresses(), [0x14]);
        assert_eq!(
            arrivals.hit(0x10, TASK, true),
            Due::Pass,
            "the next boundary is elsewhere"
        );
        assert_eq!(arrivals.hit(0x14, OTHER, true), Due::Pass, "another task");
        assert_eq!(arrivals.hit(0x14, TASK, true), due(1, true));
        arrivals.go_on_at(0, 0, vec![0x16, 0x30]);
        assert_eq!(arrivals.addresses(), [0x16, 0x30]);
        assert_eq!(arrivals.hit(0x30, TASK, true), due(1, false));
        assert!(arrivals.addresses().is_empty(), "nothing is armed");
        arrivals.arm(0, TASK);
        assert_eq!(arrivals.addresses(), [0x10]);
        assert_eq!(arrivals.hit(0x10, TASK, true), due(2, true));
    }

    #[test]
    fn a_burst_steps_over_what_leads_anywhere() {
        let mut arrivals = one(1, 1, 1, 2);
        arrivals.arm(0, TASK);
        let step = Due::StepFirst {
            spec: 0,
            thread: 0,
            steps: 1,
        };
        assert_eq!(arrivals.hit(0x10, TASK, false), step);
        arrivals.go_on_at(0, 0, vec![0x50]);
        let due = |again| Due::Inject {
            spec: 0,
            thread: 0,
            iteration: 1,
            again,
        };
        assert_eq!(arrivals.hit(0x50, TASK, true), due(true));
        arrivals.go_on_at(0, 0, vec![0x52]);
        assert_eq!(
            arrivals.hit(0x52, TASK, false),
            due(false),
            "the last may stand anywhere"
        );
    }

    #[test]
    fn hits_and_iterations_are_counted_from_one() {
        let mut arrivals = one(2, 2, 1, 1);
        arrivals.arm(0, TASK);
        assert_eq!(
            arrivals.hit(0x10, TASK, true),
            Due::Pass,
            "iteration 1 does not count"
        );
        arrivals.arm(0, TASK);
        assert_eq!(arrivals.hit(0x10, TASK, true), Due::Pass, "first hit");
        assert_eq!(
            arrivals.hit(0x10, TASK, true),
            Due::Inject {
                spec: 0,
                thread: 0,
                iteration: 2,
                again: false
            }
        );
    }

    #[test]
    fn a_sweep_goes_one_boundary_further_each_time() {
        let mut arrivals = Arrivals::new(vec![Arrival::new(0, 0x10, 1, 1, 3, 1).sweeping(true)]);
        for iteration in 1..=3 {
            arrivals.arm(0, TASK);
            let mut pc = 0x10;
            if let steps @ 1.. = iteration - 1 {
                let step = Due::StepFirst {
                    spec: 0,
                    thread: 0,
                    steps,
                };
                assert_eq!(arrivals.hit(pc, TASK, true), step);
                pc += 4 * steps;
                arrivals.go_on_at(0, 0, vec![pc]);
            }
            let due = Due::Inject {
                spec: 0,
                thread: 0,
                iteration,
                again: false,
            };
            assert_eq!(arrivals.hit(pc, TASK, true), due);
        }
        assert!(arrivals.complete());
    }

    #[test]
    fn a_sweep_ends_where_the_iteration_does() {
        let mut arrivals = Arrivals::new(vec![Arrival::new(0, 0x10, 1, 1, 9, 1).sweeping(true)]);
        arrivals.arm(0, TASK);
        assert!(matches!(arrivals.hit(0x10, TASK, true), Due::Inject { .. }));
        arrivals.arm(0, TASK);
        arrivals.disarm(0);
        assert!(!arrivals.complete(), "the place was not reached");
        arrivals.arm(0, TASK);
        assert!(matches!(
            arrivals.hit(0x10, TASK, true),
            Due::StepFirst { .. }
        ));
        arrivals.disarm(0);
        assert!(arrivals.complete());
        arrivals.arm(0, TASK);
        assert!(arrivals.addresses().is_empty());
    }

    #[test]
    fn an_iteration_that_never_gets_there_is_made_up_for() {
        let mut arrivals = one(1, 1, 1, 1);
        arrivals.arm(0, TASK);
        arrivals.disarm(0);
        assert_eq!(arrivals.hit(0x10, TASK, true), Due::Pass);
        arrivals.arm(0, TASK);
        assert_eq!(
            arrivals.hit(0x10, TASK, true),
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
            arrivals.hit(0x10, OTHER, true),
            Due::Pass,
            "the one repeat is thread 0's"
        );
        assert_eq!(
            arrivals.hit(0x10, TASK, true),
            Due::Inject {
                spec: 0,
                thread: 0,
                iteration: 1,
                again: false
            }
        );
    }
}
