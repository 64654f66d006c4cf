//! A model of a kernel with deferred unwinding, to test invariants with: it runs at random and
//! writes the trace that perf would. Without a [`Bug`] no trace of it may violate anything; with
//! one, the invariant that is named for it must fall.
//!
//! The steps of `unwind_deferred_request`, the task work, the reset and the exit flush are those
//! of kernel/unwind/deferred.c and include/linux/unwind_deferred.h of 7.2, perf being the only
//! client. An NMI can come between any two of them but one: between the reset's clearing of the
//! mask and of the id. Requests also come from what the task does: probes and tracepoints in its
//! system calls and handlers, a switch, and the exceptions that it raises in user mode.

use unwindlab_abi::plan::{EventSource, Watch};

use crate::invariant::testkit::entry_text::{Far, Via, outer};
use crate::invariant::testkit::{Hit, Kit, kernel, spec, tracepoint, user};

/// What is wrong with the kernel. Named as the mutants are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    ClearBeforeUnwind,
    CookieWithoutCpu,
    CounterNotStored,
    ConstantCount,
    PerTaskCounter,
    NoExitFlush,
    ExitingNotRefused,
    NmiWithoutSelfIpi,
    ResetKeepsId,
    ResetKeepsCache,
    ResetKeepsCompleted,
    ResetIgnoresPending,
    /// The NMI that the right model leaves out: in the reset, between mask and id.
    RequestInReset,
    ErrorWithoutCallback,
    OnlyFirstDeferred,
    OutputToEveryone,
    /// Answers after a user instruction, in the next entry.
    AnswersLate,
}

/// What a trace shows besides requests and answers.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    /// System call markers.
    pub markers: bool,
    /// Returns to user mode.
    pub witness: bool,
    /// The injection log.
    pub injections: bool,
}

/// All of it.
pub const EVERYTHING: Shown = Shown {
    markers: true,
    witness: true,
    injections: true,
};

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An NMI in user mode.
    NmiInUser,
    /// An NMI in a stay of this kind.
    NmiIn(Via),
    /// A kprobe, a return probe or a tracepoint in a stay of this kind.
    ProbeIn(Via),
    /// The tracepoint of a context switch.
    Switch,
    /// The software event of a page fault of user mode.
    PageFault,
    /// A uprobe: an exception of user mode, and the exit work of it asks.
    Uprobe,
    /// A hardware breakpoint in user mode.
    Breakpoint,
}

/// All of them.
pub const SOURCES: &[Source] = &[
    Source::NmiInUser,
    Source::NmiIn(Via::Syscall),
    Source::NmiIn(Via::Tick),
    Source::NmiIn(Via::Fault),
    Source::ProbeIn(Via::Syscall),
    Source::ProbeIn(Via::Tick),
    Source::ProbeIn(Via::Fault),
    Source::Switch,
    Source::PageFault,
    Source::Uprobe,
    Source::Breakpoint,
];

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    User,
    /// In the body of a system call, or of an interrupt.
    Body(Via),
    /// Behind `sys_exit`; the task work has not run.
    ExitWork,
    /// The walk is done, the callback comes.
    Walked {
        cookie: u64,
    },
    /// The task work has run.
    Answered,
    /// Behind the reset.
    Reset,
    /// `PF_EXITING` is set, before the exit record or after it.
    Exiting {
        recorded: bool,
    },
    Dead,
}

#[derive(Debug, Clone)]
struct Task {
    tid: u32,
    thread: u32,
    at: At,
    ip: u64,
    iteration: u64,
    id: u64,
    pending: bool,
    requested: bool,
    completed: bool,
    self_ipi: bool,
    /// The frames that a walk left behind.
    cache: Option<Vec<u64>>,
    /// A sleeper has no CPU.
    asleep: bool,
    /// Cookies it was given.
    births: u32,
    /// How it came into the kernel.
    via: Via,
    /// Of an entry that is about to begin, which request its handler makes.
    raises: Option<Source>,
    /// User instructions since the request that pends.
    went_on: u32,
}

/// A CPU's number as records have it.
fn number(cpu: usize) -> u32 {
    u32::try_from(cpu).unwrap()
}

impl Task {
    fn new(tid: u32, thread: u32) -> Self {
        Self {
            tid,
            thread,
            at: At::User,
            ip: 0x1000,
            iteration: 1,
            id: 0,
            pending: false,
            requested: false,
            completed: false,
            self_ipi: false,
            cache: None,
            asleep: false,
            births: 0,
            via: Via::Syscall,
            raises: None,
            went_on: 0,
        }
    }

    /// How far its entry is, for the kernel chain of a sample.
    fn far(&self) -> Far {
        match self.at {
            At::ExitWork => Far::After,
            At::Walked { .. } => Far::Work,
            At::Answered | At::Reset => Far::Late,
            _ => Far::Body,
        }
    }
}

/// A kernel, its CPUs and what runs on them.
#[derive(Debug)]
pub struct Model {
    /// The trace so far.
    pub kit: Kit,
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
    /// Requests that share a cookie with one of an earlier entry.
    pub stale: usize,
    /// The specs of the events that ask besides NMIs: probe, switch, page fault, uprobe, breakpoint.
    specs: [u32; 5],
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
        let mut kit = Kit::new(2);
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
        Self {
            kit,
            bug,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            counters: vec![1, 1],
            arrivals: 0,
            tasks,
            on: vec![0, 1],
            shown,
            sources: sources.to_vec(),
            late: 0,
            stale: 0,
            specs,
        }
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
                        self.kit.sys_enter(to, tid);
                    }
                    let task = self.current(cpu);
                    task.ip = SYSCALL_RETURN;
                    task.went_on += 1;
                    self.enter(cpu, Via::Syscall);
                }
                _ => self.user_code(cpu, choice == 4),
            },
            At::Body(Via::Syscall) if choice == 0 => {
                self.current(cpu).at = At::Exiting { recorded: false };
            }
            At::Body(via) => {
                if let Some(source) = self.current(cpu).raises.take() {
                    self.ask(cpu, source);
                }
                if via == Via::Syscall && self.shown.markers {
                    self.kit.sys_exit(to, tid);
                }
                self.current(cpu).at = At::ExitWork;
            }
            At::ExitWork if self.has(Bug::AnswersLate) && task.went_on == 0 => {
                self.current(cpu).at = At::Answered;
            }
            At::ExitWork if task.pending => self.walk(cpu),
            At::ExitWork => self.current(cpu).at = At::Answered,
            At::Walked { cookie } => {
                self.callback(cpu, cookie);
                let pending = self.current(cpu).pending;
                self.current(cpu).at = if pending { At::ExitWork } else { At::Answered };
            }
            At::Answered => {
                self.reset(cpu);
                self.current(cpu).at = At::Reset;
            }
            At::Reset => {
                self.current(cpu).at = At::User;
                self.kit.returns(to, tid);
            }
            At::Exiting { recorded: false } => {
                self.kit.exit(to, tid);
                self.current(cpu).at = At::Exiting { recorded: true };
            }
            At::Exiting { recorded: true } => self.exit(cpu),
            At::Dead => self.revive(cpu),
        }
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

    /// A probe that the task comes to.
    fn probe(&mut self, cpu: usize) {
        let task = self.current(cpu);
        if let At::Body(via) = task.at {
            self.ask(cpu, Source::ProbeIn(via));
        }
    }

    /// A request that the task makes itself, in task context or in the handler of an exception.
    fn ask(&mut self, cpu: usize, source: Source) {
        if !self.sources.contains(&source) {
            return;
        }
        let (on, task) = (number(cpu), self.current(cpu).clone());
        let [probe, switch, fault, uprobe, breakpoint] = self.specs;
        let (spec, frames) = match source {
            Source::Switch => (switch, outer(task.via, Far::Body)),
            Source::PageFault => (fault, Vec::new()),
            Source::Uprobe => (uprobe, outer(task.via, Far::Work)),
            Source::Breakpoint => (breakpoint, Vec::new()),
            _ => (probe, outer(task.via, Far::Body)),
        };
        if self.is_refused(cpu) {
            return;
        }
        let cookie = self.request(cpu);
        self.kit.asks_in(spec, on, task.tid, cookie, &frames);
    }

    /// An injection that a thread armed, made once or twice at its arrival, or one at a rate.
    fn nmi(&mut self, cpu: usize) {
        let armed = self.below(2) == 0;
        let task = self.current(cpu).clone();
        self.arrivals += 1;
        let mut hit = match task.at {
            At::User => user(task.ip),
            _ => kernel(TEXT + 4 * self.arrivals),
        };
        if armed {
            hit = hit.iteration(task.thread, task.iteration);
        }
        let in_user = task.at == At::User;
        let source = match task.at {
            At::User => Source::NmiInUser,
            _ => Source::NmiIn(task.via),
        };
        if !self.sources.contains(&source) {
            return;
        }
        for _ in 0..if armed && !in_user { 2 } else { 1 } {
            self.sample(cpu, hit);
        }
    }

    /// An NMI: one injection, one sample.
    fn sample(&mut self, cpu: usize, hit: Hit) {
        let on = number(cpu);
        let &mut Task {
            tid,
            at,
            ip,
            requested,
            ..
        } = self.current(cpu);
        if at == At::Dead {
            if self.shown.injections {
                self.kit.inject_kernel_only(on, tid, hit);
            }
            return;
        }
        if self.is_refused(cpu) || (requested && self.has(Bug::OnlyFirstDeferred)) {
            if self.shown.injections {
                self.kit.inject_inline(on, tid, hit, &[ip]);
            }
        } else {
            let cookie = self.request(cpu);
            let task = self.current(cpu);
            let frames = match task.at {
                At::User => Vec::new(),
                _ => outer(task.via, task.far()),
            };
            // What is late was interrupted in the outer function itself, the exit work in its own.
            let frames = match task.far() {
                Far::Late => frames.get(1..).unwrap_or_default(),
                _ => &frames,
            };
            match self.shown.injections {
                true => self.kit.inject_in(on, tid, cookie, hit, frames),
                false => self.kit.nmi_in(on, tid, cookie, hit, frames),
            };
        }
        if at == At::User {
            self.kit.returns(on, tid);
        }
    }

    fn is_refused(&mut self, cpu: usize) -> bool {
        let exiting = matches!(self.current(cpu).at, At::Exiting { .. } | At::Dead);
        exiting && !self.has(Bug::ExitingNotRefused)
    }

    /// `unwind_deferred_request`, from an NMI.
    fn request(&mut self, cpu: usize) -> u64 {
        if self.current(cpu).id == 0 {
            let id = self.cookie(cpu);
            self.current(cpu).id = id;
        }
        let silent = self.has(Bug::NmiWithoutSelfIpi);
        let late = self.has(Bug::AnswersLate);
        let task = self.current(cpu);
        let stale = late && task.requested && task.went_on > 0;
        self.stale += usize::from(stale);
        let task = self.current(cpu);
        if !task.requested {
            task.requested = true;
            task.pending = true;
            task.went_on = 0;
            task.self_ipi = !silent && matches!(task.at, At::User | At::Answered | At::Reset);
        }
        task.id
    }

    /// `get_cookie`.
    fn cookie(&mut self, cpu: usize) -> u64 {
        let births = self.current(cpu).births;
        self.current(cpu).births += 1;
        let mut count = self.counters[cpu] + 2;
        if self.has(Bug::ConstantCount) {
            count = 3;
        } else if self.has(Bug::PerTaskCounter) {
            count = 2 * births + 3;
        } else if !self.has(Bug::CounterNotStored) {
            self.counters[cpu] = count;
        }
        let cpu = if self.has(Bug::CookieWithoutCpu) {
            0
        } else {
            u64::from(number(cpu))
        };
        (u64::from(count) << 32) | (cpu + 1)
    }

    /// `process_unwind_deferred` up to the end of the walk.
    fn walk(&mut self, cpu: usize) {
        let (clear, fail) = (
            self.has(Bug::ClearBeforeUnwind),
            self.has(Bug::ErrorWithoutCallback) && self.below(4) == 0,
        );
        let late = self.has(Bug::AnswersLate) && self.current(cpu).went_on > 0;
        self.late += usize::from(late);
        let task = self.current(cpu);
        task.pending = false;
        let cookie = task.id;
        if clear {
            (task.id, task.requested) = (0, false);
        }
        if task.cache.is_none() {
            let mut frames = vec![task.ip];
            frames.extend(vec![0x2000; task.thread as usize + 2]);
            frames.push(0x3000);
            task.cache = Some(frames);
        }
        task.at = if fail {
            At::Answered
        } else {
            At::Walked { cookie }
        };
    }

    /// perf's callback.
    fn callback(&mut self, cpu: usize, cookie: u64) {
        let everyone = self.has(Bug::OutputToEveryone);
        let task = self.current(cpu);
        if task.completed {
            return;
        }
        task.completed = true;
        let (tid, frames) = (task.tid, task.cache.clone().unwrap_or_default());
        self.kit.deferred(number(cpu), tid, cookie, &frames);
        if everyone {
            self.kit.deferred_to(1, number(cpu), tid, cookie, &frames);
        }
    }

    /// `unwind_reset_info`.
    fn reset(&mut self, cpu: usize) {
        let keeps_id = self.has(Bug::ResetKeepsId);
        let keeps_cache = self.has(Bug::ResetKeepsCache);
        let keeps_completed = self.has(Bug::ResetKeepsCompleted);
        let ignores_pending = self.has(Bug::ResetIgnoresPending);
        let task = self.current(cpu);
        if !task.requested && task.cache.is_none() || task.pending && !ignores_pending {
            return;
        }
        task.requested = false;
        task.pending = false;
        task.completed &= keeps_completed;
        if self.has(Bug::RequestInReset) && self.below(4) == 0 {
            self.arrivals += 1;
            let hit = kernel(TEXT + 4 * self.arrivals);
            self.sample(cpu, hit);
        }
        let task = self.current(cpu);
        if !keeps_id {
            task.id = 0;
        }
        if !keeps_cache {
            task.cache = None;
        }
    }

    /// From the exit record to the end: `unwind_deferred_task_exit`, `exit_mm`.
    fn exit(&mut self, cpu: usize) {
        let flush = !self.has(Bug::NoExitFlush);
        if self.current(cpu).pending {
            self.walk(cpu);
            if !flush {
                self.current(cpu).cache = Some(Vec::new());
            }
            if let At::Walked { cookie } = self.current(cpu).at {
                self.callback(cpu, cookie);
            }
        }
        self.current(cpu).at = At::Dead;
    }

    /// The dead task's tid goes to a new task, forked by somebody.
    fn revive(&mut self, cpu: usize) {
        let (tid, thread) = (self.current(cpu).tid, self.current(cpu).thread);
        self.kit.fork(number(cpu), 1000, tid);
        self.kit.switch_in(number(cpu), tid);
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
        self.kit.switch_out(number(cpu), out);
        self.on[cpu] = next;
        self.current(cpu).asleep = false;
        let tid = self.current(cpu).tid;
        self.kit.switch_in(number(cpu), tid);
    }
}

#[cfg(test)]
mod tests;
