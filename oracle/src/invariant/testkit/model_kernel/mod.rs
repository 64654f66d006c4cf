//! A model of a kernel with deferred unwinding, to test invariants with: it runs at random and
//! writes the trace that perf would. Without a [`Bug`] no trace of it may violate anything; with
//! one, the invariant that is named for it must fall.
//!
//! The steps of `unwind_deferred_request`, the task work, the reset and the exit flush are those
//! of kernel/unwind/deferred.c and include/linux/unwind_deferred.h of 7.2. Its clients are perf and,
//! where its log is shown, one of the lab client. An NMI can come between any two of them but one: between the reset's clearing of the
//! mask and of the id. Requests also come from what the task does: probes and tracepoints in its
//! system calls and handlers, a switch, and the exceptions that it raises in user mode.

mod asks;
mod kinds;
mod records;
mod task;
mod unwind;

use unwindlab_abi::plan::{EventSource, Watch};

use crate::invariant::testkit::entry_text::{Far, Via, outer};
use crate::invariant::testkit::lab::{self, LabKit};
use crate::invariant::testkit::{Hit, kernel, spec, tracepoint, user};
use crate::trace::Trace;
pub use kinds::*;
use task::{At, Task};

/// The kernel's clients.
const PERF: usize = 0;
const LAB: usize = 1;

/// A CPU's number as records have it.
fn number(cpu: usize) -> u32 {
    u32::try_from(cpu).unwrap()
}

/// A kernel, its CPUs and what runs on them.
#[derive(Debug)]
pub struct Model {
    /// The log of the lab client so far, and perf's records.
    log: LabKit,
    bug: Option<Bug>,
    random: u64,
    counters: Vec<u32>,
    /// Arrivals so far: no two are at one place.
    arrivals: u64,
    tasks: Vec<Task>,
    /// The task on each CPU.
    on: Vec<usize>,
    shown: Shown,
    sources: Vec<Source>,
    /// Answers after a user instruction.
    pub late: usize,
    /// Those of them that a system call made.
    pub late_in_call: usize,
    /// Requests that share a cookie with one of an earlier entry.
    pub stale: usize,
    /// The specs of the events that ask besides NMIs: probe, switch, page fault, uprobe, breakpoint.
    specs: [u32; 5],
    /// Of so many NMIs in user mode one finds an interrupt pending.
    pub one_finds_an_interrupt: usize,
}

const THREADS: u32 = 5;
/// Kernel text from which no address is used elsewhere.
const TEXT: u64 = 0xffff_ffff_8110_0000;
const SYSCALL_RETURN: u64 = 0x1080;

impl Model {
    pub fn new(seed: u64, bug: Option<Bug>) -> Self {
        Self::with(seed, bug, EVERYTHING, SOURCES)
    }

    /// One of which the trace shows so much, and in which only these sources ask.
    pub fn with(seed: u64, bug: Option<Bug>, shown: Shown, sources: &[Source]) -> Self {
        let mut log = LabKit::new();
        let kit = &mut log.perf;
        if shown.witness {
            kit.witness();
        }
        let hit = EventSource::Breakpoint {
            address: 0x1004,
            watch: Watch::Execute,
        };
        let specs = [
            ("probe", tracepoint("unwindlab", "probe")),
            ("switch", tracepoint("sched", "sched_switch")),
            ("fault", EventSource::Software(2)),
            ("uprobe", tracepoint("unwindlab", "user")),
            ("break", hit),
        ];
        let specs = specs.map(|(name, source)| {
            let mut spec = spec(name, source);
            spec.defer_callchain = true;
            kit.open(spec)
        });
        let mut tasks = Vec::new();
        for thread in 0..THREADS {
            let tid = 1001 + thread;
            kit.deep_thread(thread, tid, thread + 2);
            tasks.push(Task::new(tid, thread));
        }
        // Who sleeps went to sleep in a system call before the session.
        for task in &mut tasks[2..] {
            task.asleep = true;
            task.at = At::Body(Via::Syscall);
            task.ip = SYSCALL_RETURN;
        }
        kit.switch_in(0, 1001);
        kit.switch_in(1, 1002);
        for task in 1..=THREADS {
            log.target(task);
        }
        Self {
            log,
            bug,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            counters: vec![1, 1],
            arrivals: 0,
            tasks,
            on: vec![0, 1],
            shown,
            sources: sources.to_vec(),
            late: 0,
            late_in_call: 0,
            stale: 0,
            specs,
            one_finds_an_interrupt: 4,
        }
    }

    /// The trace so far.
    pub fn trace(&self) -> Trace {
        let trace = match self.shown.lab {
            true => self.log.trace(),
            false => self.log.perf.trace(),
        };
        records::written(trace, self.bug)
    }

    /// Runs so many steps, then lets everybody get back to user mode or sleep.
    pub fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            let cpu = self.below(2);
            self.step(cpu);
        }
        for cpu in 0..2 {
            while !matches!(self.current(cpu).at, At::User | At::Dead) || self.current(cpu).self_ipi
            {
                self.advance(cpu);
            }
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// xorshift: the trace of a seed is always the same.
    fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random >> 33).unwrap() % n
    }

    fn current(&mut self, cpu: usize) -> &mut Task {
        let at = self.on[cpu];
        &mut self.tasks[at]
    }

    fn step(&mut self, cpu: usize) {
        match self.below(10) {
            0..=2 => self.nmi(cpu),
            3 => self.probe(cpu),
            4 if matches!(self.current(cpu).at, At::Body(_)) => self.switch(cpu),
            _ => self.advance(cpu),
        }
    }

    /// The task on the CPU goes one step further.
    fn advance(&mut self, cpu: usize) {
        let (to, choice) = (number(cpu), self.below(8));
        let task = self.current(cpu).clone();
        let tid = task.tid;
        match task.at {
            // The self-IPI comes before anything else in user mode.
            At::User if task.self_ipi => {
                self.current(cpu).self_ipi = false;
                self.enter(cpu, Via::Tick);
            }
            At::User => match choice {
                0 => self.raise(cpu),
                1..=3 => {
                    if self.shown.markers {
                        self.log.perf.sys_enter(to, tid);
                    }
                    let task = self.current(cpu);
                    task.ip = SYSCALL_RETURN;
                    task.went_on += 1;
                    self.enter(cpu, Via::Syscall);
                }
                _ => self.user_code(cpu, choice == 4),
            },
            At::Body(Via::Syscall) if choice == 0 && !self.shown.lab => {
                self.current(cpu).at = At::Exiting { recorded: false };
            }
            At::Body(via) => {
                if let Some(source) = self.current(cpu).raises.take() {
                    self.ask(cpu, source);
                }
                if self.has(Bug::AnswersInCall) && task.pending && choice < 4 {
                    return self.answer_in(cpu, via);
                }
                if via == Via::Syscall && self.shown.markers {
                    self.log.perf.sys_exit(to, tid);
                }
                self.current(cpu).at = At::ExitWork;
            }
            At::ExitWork if self.has(Bug::AnswersLate) && task.went_on == 0 => {
                self.current(cpu).at = At::Answered;
            }
            At::ExitWork if task.pending => self.walk(cpu),
            At::ExitWork => self.current(cpu).at = At::Answered,
            At::Walked { cookie, asked } => {
                self.callback(cpu, cookie, asked);
                let pending = self.current(cpu).pending;
                self.current(cpu).at = if pending { At::ExitWork } else { At::Answered };
            }
            At::Answered => {
                self.reset(cpu);
                self.current(cpu).at = At::Reset;
            }
            At::Reset => {
                self.current(cpu).at = At::User;
                let interrupt = task.via != Via::Syscall;
                self.log.leave_from(tid - 1000, task.ip, interrupt);
                self.returns(to, tid);
            }
            At::Exiting { recorded: false } => {
                self.log.perf.exit(to, tid);
                self.current(cpu).at = At::Exiting { recorded: true };
            }
            At::Exiting { recorded: true } => self.exit(cpu),
            At::Dead => self.revive(cpu),
        }
    }

    /// The witness notes a return.
    fn returns(&mut self, cpu: u32, tid: u32) {
        let slots = self.log.slots();
        self.log.perf.returns_at(cpu, tid, slots);
    }

    /// The task comes into the kernel.
    fn enter(&mut self, cpu: usize, via: Via) {
        let task = self.current(cpu);
        task.via = via;
        task.at = At::Body(via);
    }

    /// The leaf of a workload thread: it comes back to no instruction without a system call.
    fn user_code(&mut self, cpu: usize, iteration: bool) {
        let task = self.current(cpu);
        task.went_on += 1;
        task.ip = match task.ip {
            0x10fc.. => 0x10fc,
            ip => ip + 4,
        };
        task.iteration += u64::from(iteration);
    }

    /// A tick, or an exception that the next user instruction raises.
    fn raise(&mut self, cpu: usize) {
        let raised = match self.below(4) {
            0 => None,
            1 => Some(Source::PageFault),
            2 => Some(Source::Uprobe),
            _ => Some(Source::Breakpoint),
        };
        self.enter(
            cpu,
            if raised.is_some() {
                Via::Fault
            } else {
                Via::Tick
            },
        );
        self.current(cpu).raises = raised;
    }

    /// The dead task's tid goes to a new task, forked by somebody.
    fn revive(&mut self, cpu: usize) {
        let (tid, thread) = (self.current(cpu).tid, self.current(cpu).thread);
        self.log.perf.fork(number(cpu), 1000, tid);
        self.log.perf.switch_in(number(cpu), tid);
        *self.current(cpu) = Task::new(tid, thread);
    }

    /// The task on the CPU goes to sleep, a sleeper comes in its place.
    fn switch(&mut self, cpu: usize) {
        self.ask(cpu, Source::Switch);
        let sleepers: Vec<usize> = (0..self.tasks.len())
            .filter(|&at| self.tasks[at].asleep)
            .collect();
        let next = sleepers[self.below(sleepers.len())];
        let out = self.current(cpu).tid;
        self.current(cpu).asleep = true;
        self.log.perf.switch_out(number(cpu), out);
        self.on[cpu] = next;
        self.current(cpu).asleep = false;
        let tid = self.current(cpu).tid;
        self.log.perf.switch_in(number(cpu), tid);
    }
}

#[cfg(test)]
mod tests;
