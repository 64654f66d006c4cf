//! The workload's threads: started, pinned, and held at a gate until the events are enabled.

mod asleep;
mod compat;
mod entries;
mod exec;
mod exit;
mod fork;
pub(crate) mod gate;
mod io_uring;
mod job;
mod missing_pages;
mod odd;
mod own_stack;
mod paged_out;
mod pagemap;
mod perf_calls;
mod process;
mod program;
mod seen_calls;
mod sframe;
mod shapes;
mod sleep_migrate;
mod traced;
mod unreadable_ends;
mod unwinds_itself;
mod user_unwind;
mod vdso32;

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use rustix::thread::{Pid, gettid, sched_setaffinity};
use unwindlab_abi::message::{Program, ThreadAnnounce, UserSymbol};
use unwindlab_abi::plan::{CompiledProgram, WorkloadPlan};
use unwindlab_abi::shared::MAX_THREADS;
use unwindlab_abi::{AgentMessage, HostReply, Observation, UserModePlan, WorkloadKind};

pub use self::sframe::after_exec;
use crate::chain::frameless::{self, Registered, SframeError};
use crate::chain::odd::Shapes;
use crate::chain::{self, Chain, MIN_FRAMES};
use crate::mailbox::{Link, LinkError};
use crate::shared::SharedPages;
use crate::system;
use crate::unwinders::UnwindersError;
use gate::Gate;
use job::{ThreadJob, check_memory, reserve};

/// Why the workload cannot start or did not run as planned.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum WorkloadError {
    /// More or fewer threads than the shared area has counters for.
    #[error("{0} threads asked for: a workload has 1 to {MAX_THREADS}")]
    Threads(u32),
    /// A chain shorter than leaf, caller and root, or longer than a `u32` counts.
    #[error("{0} frames asked for: a chain has at least {MIN_FRAMES}")]
    Frames(u64),
    /// Migration needs somewhere to go.
    #[error("sleep-migrate needs at least 2 CPUs: give the machine more")]
    OneCpu,
    /// The stacks do not fit the guest.
    #[error("the stacks need {need_mib} MiB and the guest has {free_mib} MiB free")]
    Memory { need_mib: u64, free_mib: u64 },
    /// A thread cannot be made.
    #[error("cannot start workload thread {thread}: {source}")]
    Spawn { thread: u32, source: std::io::Error },
    /// A system call of a thread failed.
    #[error("workload thread {thread}: {what}: {source}")]
    System {
        thread: u32,
        what: &'static str,
        source: std::io::Error,
    },
    /// `read` of the pipe did not return the one byte that the helper writes.
    #[error("workload thread {thread}: read returned {answer} instead of 1")]
    Read { thread: u32, answer: i64 },
    /// The host does not know the thread's `task_struct`.
    #[error("workload thread {0}: the host does not know the address of its task_struct")]
    NoTask(u32),
    /// The host cannot be asked.
    #[error("workload thread {thread}: {source}")]
    Link { thread: u32, source: LinkError },
    /// A thread ended by a panic.
    #[error("workload thread {0} panicked")]
    Panicked(u32),
    /// The section of code without frame pointers is not registered.
    #[error("cannot register the workload's SFrame section: {0}")]
    Sframe(#[source] SframeError),
    /// The plan has no program to execute.
    #[error("this command makes no program for the workload to execute")]
    NoProgram,
    /// The program to execute cannot be written.
    #[error("cannot write the program to execute: {0}")]
    Store(#[source] std::io::Error),
    /// The agent cannot unwind its own stacks.
    #[error(transparent)]
    Unwinders(#[from] UnwindersError),
    /// The kernel lacks what the workload needs.
    #[error("the workload needs {0}, which this kernel lacks")]
    Unsupported(&'static str),
}

impl WorkloadError {
    /// Whether the kernel lacks something, as opposed to something going wrong.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported(_))
    }
}

impl From<SframeError> for WorkloadError {
    fn from(error: SframeError) -> Self {
        match error {
            SframeError::Unsupported => Self::Unsupported("SFrame sections (PR_ADD_SFRAME)"),
            other => Self::Sframe(other),
        }
    }
}

/// The error of a system call, with what the thread was doing.
fn failed(thread: u32, what: &'static str) -> impl Fn(rustix::io::Errno) -> WorkloadError {
    move |errno| WorkloadError::System {
        thread,
        what,
        source: errno.into(),
    }
}

/// The results of a finished workload.
#[derive(Debug)]
pub struct FinishedWorkload {
    /// Iterations of each thread, by index.
    pub iterations: Vec<u64>,
    /// What threads observed.
    pub observations: Vec<Observation>,
}

/// Threads that wait at the gate or run. If dropped without [`Workload::release`], they end without
/// running.
#[derive(Debug)]
pub struct Workload {
    gate: Arc<Gate>,
    shared: Arc<SharedPages>,
    announces: Vec<ThreadAnnounce>,
    tids: Vec<u32>,
    /// Addresses of their `task_struct`s, if they are wanted.
    tasks: Vec<u64>,
    threads: Vec<JoinHandle<Result<Vec<Observation>, WorkloadError>>>,
    /// Stays as long as the threads run.
    section: Option<Registered>,
    program: Option<Program>,
    compiled: Option<CompiledProgram>,
    /// Stay as long as the threads run.
    shapes: Option<Shapes>,
}

impl Workload {
    /// Starts the threads. Returns when all of them are pinned and sleep: what comes before the events are
    /// enabled, such as a tick, meets none of them. With `ask_tasks` each asks
    /// the host for the address of its `task_struct`.
    ///
    /// # Errors
    /// [`WorkloadError`]; threads already started end.
    pub fn start(
        plan: &WorkloadPlan,
        cpus: &[u32],
        shared: Arc<SharedPages>,
        ask_tasks: bool,
        user_mode: Option<&UserModePlan>,
    ) -> Result<Self, WorkloadError> {
        let mut workload = Self {
            gate: Arc::new(Gate::default()),
            shared,
            announces: Vec::new(),
            tids: Vec::new(),
            tasks: Vec::new(),
            threads: Vec::new(),
            section: match plan.kind {
                kind if kind.takes_section() => Registered::new(kind, plan.sframe)?,
                WorkloadKind::CompatSframe => Some(Registered::of_compat()?),
                _ => None,
            },
            program: None,
            compiled: None,
            shapes: match plan.kind {
                WorkloadKind::FramelessShapes => Some(Shapes::new()?),
                _ => None,
            },
        };
        if plan.kind.unwinds_itself() {
            user_unwind::check()?;
        }
        if plan.threads == 0 || plan.threads > MAX_THREADS {
            return Err(WorkloadError::Threads(plan.threads));
        }
        if plan.kind == WorkloadKind::SleepMigrate && cpus.len() < 2 {
            return Err(WorkloadError::OneCpu);
        }
        let mut jobs = (0..plan.threads)
            .map(|thread| ThreadJob::new(plan, thread, cpus, &workload.shared))
            .collect::<Result<Vec<_>, _>>()?;
        check_memory(&jobs)?;
        if plan.kind.is_known_everywhere() {
            let covered = workload.section.as_ref().map(Registered::covered);
            workload.program = Some(Program {
                stacks: jobs
                    .iter()
                    .flat_map(|job| job.chain.known_stacks())
                    .collect(),
                covered: covered.unwrap_or_default(),
            });
        }
        for job in &mut jobs {
            if let Some(shapes) = &workload.shapes {
                // SAFETY: the workload keeps them until its threads have ended.
                unsafe { job.chain.call_through(shapes) };
            }
        }
        if plan.kind == WorkloadKind::Program {
            let program = plan.program.as_ref().ok_or(WorkloadError::NoProgram)?;
            exec::store(&program.elf).map_err(WorkloadError::Store)?;
        }
        if plan.kind == WorkloadKind::CProgram {
            workload.compiled = Some(compiled(plan)?);
        }
        if plan.huge_pages {
            reserve(&jobs)?;
        }
        for job in jobs {
            workload.spawn(job, ask_tasks, user_mode)?;
        }
        asleep::wait_until_asleep(&workload.tids)?;
        Ok(workload)
    }

    /// The announcements, by thread index.
    #[must_use]
    pub fn announces(&self) -> &[ThreadAnnounce] {
        &self.announces
    }

    /// Ids of the threads, by index; for kinds that make a new thread in every iteration, of their
    /// parents.
    #[must_use]
    pub fn tids(&self) -> &[u32] {
        &self.tids
    }

    /// Addresses of the threads' `task_struct`s, by index, if they were asked for.
    #[must_use]
    pub fn tasks(&self) -> &[u64] {
        &self.tasks
    }

    /// The stacks that are known at every instruction.
    #[must_use]
    pub fn program(&self) -> Option<&Program> {
        match (&self.compiled, &self.shapes) {
            (Some(compiled), _) => Some(&compiled.known),
            (_, Some(shapes)) => Some(shapes.program()),
            _ => self.program.as_ref(),
        }
    }

    /// The symbols of the workloads' code.
    #[must_use]
    pub fn symbols(&self) -> Vec<UserSymbol> {
        let mut symbols = chain::symbols();
        let begin = symbols.iter_mut().find(|it| it.name == chain::C_BEGIN);
        if let (Some(symbol), Some(compiled)) = (begin, &self.compiled) {
            (symbol.start, symbol.end) = compiled.begin;
        }
        symbols
    }

    /// The words shared with the host.
    #[must_use]
    pub fn shared(&self) -> &Arc<SharedPages> {
        &self.shared
    }

    /// Where its threads wait, for those that are to begin with it.
    pub(crate) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// Opens the gate.
    pub fn release(&self) {
        self.gate.open();
    }

    /// Waits, asleep, for all threads to end.
    ///
    /// # Errors
    /// The first error of a thread; that thread told the others to stop.
    pub fn join(mut self) -> Result<FinishedWorkload, WorkloadError> {
        let mut outcome = Ok(());
        let mut observations = Vec::new();
        for (thread, handle) in (0..).zip(self.threads.drain(..)) {
            let ended = handle
                .join()
                .unwrap_or(Err(WorkloadError::Panicked(thread)));
            outcome = outcome.and(ended.map(|seen| observations.extend(seen)));
        }
        outcome?;
        let iterations = (0..)
            .zip(&self.announces)
            .map(|(thread, _)| self.shared.progress(thread))
            .collect();
        Ok(FinishedWorkload {
            iterations,
            observations,
        })
    }

    fn spawn(
        &mut self,
        job: ThreadJob,
        ask_task: bool,
        user_mode: Option<&UserModePlan>,
    ) -> Result<(), WorkloadError> {
        let thread = job.thread;
        let (tell, told) = mpsc::channel();
        let gate = Arc::clone(&self.gate);
        let shared = Arc::clone(&self.shared);
        let stack = job.chain.expected_stack();
        let unwinds = user_mode.cloned();
        let own_process = unwinds.is_some();
        let tid_known = !matches!(
            job.kind,
            WorkloadKind::Exit
                | WorkloadKind::Process
                | WorkloadKind::ExitGroup
                | WorkloadKind::Killed
                | WorkloadKind::CProgram
        ) || own_process;
        let handle = Builder::new()
            .name(format!("{}-{thread}", job.kind.name()))
            .stack_size(job.stack_bytes)
            .spawn(move || {
                if let Some(plan) = unwinds {
                    let told = |pid| {
                        // The receiver is there: `spawn` waits for this.
                        let _ = tell.send((pid, None));
                    };
                    let ended = unwinds_itself::run(&plan, job, &gate, told);
                    if ended.is_err() {
                        shared.stop();
                    }
                    return ended;
                }
                let prepared = pin(thread, None, job.cpu).and_then(|()| {
                    let task = ask_task.then(|| own_task(thread)).transpose()?;
                    // The receiver is there: `spawn` waits for this.
                    let _ = tell.send((gettid(), task));
                    Ok(())
                });
                // `spawn` learns of an error by this, too.
                drop(tell);
                let ended = prepared.and_then(|()| {
                    if gate.wait() {
                        job.run()
                    } else {
                        Ok(Vec::new())
                    }
                });
                if ended.is_err() {
                    shared.stop();
                }
                ended
            })
            .map_err(|source| WorkloadError::Spawn { thread, source })?;
        let Ok((tid, task)) = told.recv() else {
            return Err(match handle.join() {
                Ok(Err(error)) => error,
                _ => WorkloadError::Panicked(thread),
            });
        };
        self.threads.push(handle);
        let tid = tid.as_raw_nonzero().get().unsigned_abs();
        self.tids.push(tid);
        self.tasks.extend(task);
        self.announces.push(ThreadAnnounce {
            thread,
            pid: if own_process { tid } else { std::process::id() },
            tid: if tid_known { tid } else { 0 },
            stack,
        });
        Ok(())
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.gate.cancel();
    }
}

/// The program of a plan, stored where it is executed from.
fn compiled(plan: &WorkloadPlan) -> Result<CompiledProgram, WorkloadError> {
    if !frameless::knows_sections() {
        return Err(SframeError::Unsupported.into());
    }
    let program = plan.program.clone().ok_or(WorkloadError::NoProgram)?;
    exec::store(&program.elf).map_err(WorkloadError::Store)?;
    Ok(program)
}

/// Iterations of a kind that needs nothing between them.
fn repeat(chain: &Chain) {
    while chain.goes_on() {
        chain.run();
    }
}

/// The address of the calling thread's `task_struct`.
fn own_task(thread: u32) -> Result<u64, WorkloadError> {
    match Link::new().and_then(|mut link| link.ask(&AgentMessage::Task)) {
        Ok(HostReply::Task(task)) if task != 0 => Ok(task),
        Ok(_) => Err(WorkloadError::NoTask(thread)),
        Err(source) => Err(WorkloadError::Link { thread, source }),
    }
}

/// Binds a thread (`None`: the calling one) to one CPU.
fn pin(thread: u32, tid: Option<Pid>, cpu: u32) -> Result<(), WorkloadError> {
    sched_setaffinity(tid, &system::only(cpu)).map_err(failed(thread, "cannot set its CPU"))
}
