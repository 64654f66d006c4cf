//! Injections at an instruction: which breakpoint hits count, and what is due at each.
//!
//! Every task passes a breakpoint. Unless every task is meant, only a workload thread between its
//! arm mark and its next mark counts, which is recognised by the kernel's own `current_task`.
//! Everything else goes on.
//!
//! Several NMIs of one arrival (`times`) go to consecutive instruction boundaries, beginning at
//! the place: each is taken, its handler returns to the boundary it came from, that instruction
//! is executed, and the vCPU stops at the next. (A breakpoint cannot stop a vCPU twice at one
//! instruction on every host: TCG pushes RF with an NMI, as hardware does not, and `iretq` then
//! passes the breakpoint.)
//!
//! An injection that follows another one (`after`) is released once each time that one is made, and
//! counts arrivals from then on.

mod one;
mod path;
mod place;

use std::collections::BTreeMap;

pub use one::Arrival;
pub use path::Anchor;
pub use place::{Place, TaskField};

use unwindlab_oracle::trace::recording::Point;
use unwindlab_vmm::DataBreakpoint;

/// A vCPU that stands at a place, or at the boundary after one.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// The instruction that it is about to execute.
    pub pc: u64,
    /// The breakpoint on data that the instruction before has met; `None` if the vCPU stands at a
    /// place in the code.
    pub data: Option<DataBreakpoint>,
    /// Which vCPU.
    pub vcpu: u8,
    /// Its current task.
    pub task: u64,
    /// Its stack pointer.
    pub stack_pointer: u64,
    /// In the handler of an NMI.
    pub in_nmi: bool,
    /// Whether it is known where the instruction leads.
    pub leads_on: bool,
}

/// Which workload thread met a trigger, and in which of its iterations, as far as that is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadIteration {
    /// The workload thread.
    pub thread: Option<u32>,
    /// Its iteration.
    pub iteration: Option<u64>,
}

/// What a breakpoint hit calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Inject.
    Inject {
        /// Index of the injection in the scenario.
        spec: u32,
        /// Whose arrival it is.
        by: ThreadIteration,
        /// More are due at the boundaries that follow: [`Arrivals::go_on_at`] wants to know
        /// where they are.
        again: bool,
    },
    /// The arrival counts, but nothing is due yet, or the instruction can lead anywhere and more
    /// than one NMI is due: execute it without one, and go on where it leads.
    StepFirst {
        /// Index of the injection in the scenario.
        spec: u32,
        /// Whose arrival it is.
        by: ThreadIteration,
        /// Where to run before that.
        anchor: Option<Anchor>,
        /// How many instructions to execute so, from there.
        steps: u64,
    },
}

/// All arrival injections of a trial.
#[derive(Debug, Default)]
pub struct Arrivals {
    list: Vec<Arrival>,
    iterations: BTreeMap<u32, u64>,
    /// The threads that are in an iteration: their tasks.
    current: BTreeMap<u32, u64>,
}

impl Arrivals {
    /// Those of a plan; from now on arrivals of any task count.
    pub fn new(list: Vec<Arrival>) -> Self {
        let mut arrivals = Self {
            list,
            ..Self::default()
        };
        for arrival in &mut arrivals.list {
            arrival.open_to_all();
        }
        arrivals
    }

    /// The distinct addresses to stop at. Only those of iterations that are under way: a place that
    /// is passed a million times costs nothing before and after.
    pub fn addresses(&self) -> Vec<u64> {
        let mut places: Vec<u64> = self.list.iter().flat_map(Arrival::addresses).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// The distinct breakpoints on data, likewise.
    pub fn data(&self) -> Vec<DataBreakpoint> {
        let mut data: Vec<DataBreakpoint> = self.list.iter().flat_map(Arrival::data).collect();
        data.sort_unstable();
        data.dedup();
        data
    }

    /// All injections are made.
    pub fn complete(&self) -> bool {
        self.list.iter().all(Arrival::complete)
    }

    /// A thread is about to begin its next iteration; `task` is the kernel's current task.
    pub fn arm(&mut self, thread: u32, task: u64) {
        let iteration = self.iterations.entry(thread).or_insert(0);
        *iteration += 1;
        let iteration = *iteration;
        self.current.insert(thread, task);
        for arrival in &mut self.list {
            arrival.leave(thread);
            arrival.arm(thread, task, iteration);
        }
    }

    /// A thread is back in user mode.
    pub fn disarm(&mut self, thread: u32) {
        self.current.remove(&thread);
        for arrival in &mut self.list {
            arrival.leave(thread);
        }
    }

    /// Whether a thread is in an iteration.
    pub fn in_iteration(&self, thread: u32) -> bool {
        self.current.contains_key(&thread)
    }

    /// Injection `spec` may be made once more: what it is to follow was made.
    pub fn release(&mut self, spec: u32) {
        for arrival in self.list.iter_mut().filter(|it| it.spec == spec) {
            arrival.release();
            for (&thread, &task) in &self.current {
                let iteration = self.iterations.get(&thread).copied().unwrap_or(0);
                arrival.arm(thread, task, iteration);
            }
            arrival.open_to_all();
        }
    }

    /// Everything that is due where a vCPU stands, in the order of the scenario. What goes on at
    /// further boundaries comes last, and is one at most: two cannot lead one vCPU.
    pub fn hit(&mut self, at: &Standing) -> Vec<Due> {
        let mut due: Vec<Due> = Vec::new();
        let mut leads = None;
        // What leads to an anchor passes breakpoints by.
        let waits = |it: &&Arrival| !it.addresses().is_empty() || !it.data().is_empty();
        let alone = self.list.iter().filter(waits).count() <= 1;
        for arrival in &mut self.list {
            match arrival.hit(at, leads.is_some(), alone) {
                Some(one @ Due::Inject { again: false, .. }) => due.push(one),
                Some(one) => leads = Some(one),
                None => {}
            }
        }
        due.extend(leads);
        due
    }

    /// The arrival for which [`Due::Inject`] said `again`, or [`Due::StepFirst`] was said, goes on
    /// at one of `next`.
    pub fn go_on_at(&mut self, spec: u32, by: ThreadIteration, next: Vec<u64>) {
        if let Some(armed) = self.armed_mut(spec, by) {
            armed.go_on_at(next);
        }
    }

    /// The vCPU that was led to the anchor of an arrival is there: it steps on.
    pub fn came_to_anchor(&mut self, spec: u32, by: ThreadIteration) {
        if let Some(armed) = self.armed_mut(spec, by) {
            armed.come_to_anchor();
        }
    }

    /// The arrival that was led on was let go before it came to its boundary.
    pub fn lose_way(&mut self, spec: u32, by: ThreadIteration) {
        for arrival in self.list.iter_mut().filter(|it| it.spec == spec) {
            arrival.lose_way(by.thread);
        }
    }

    fn armed_mut(&mut self, spec: u32, by: ThreadIteration) -> Option<&mut one::Armed> {
        let mut of_spec = self.list.iter_mut().filter(|it| it.spec == spec);
        of_spec.find_map(|arrival| arrival.armed_mut(by.thread))
    }

    /// What became of each.
    pub fn points(&self) -> Vec<Point> {
        self.list.iter().map(Arrival::point).collect()
    }
}

#[cfg(test)]
mod tests;
