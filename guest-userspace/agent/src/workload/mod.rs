//! The workload's threads: made, pinned and held at a start line until tracing is on.

mod compat;
mod exec;
mod exit;
mod fork;
mod gate;
mod io_uring;
mod missing_pages;
mod paged_out;
mod process;
mod sleep_migrate;
mod traced;
mod unreadable_ends;

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use rustix::thread::{Pid, gettid, sched_setaffinity};
use unwindlab_abi::message::ThreadAnnounce;
use unwindlab_abi::plan::Workload as Plan;
use unwindlab_abi::shared::MAX_THREADS;
use unwindlab_abi::{Observation, WorkloadKind, mailbox::PAGE_SIZE};

use crate::chain::{Chain, FRAME_BYTES, MIN_FRAMES};
use crate::pages::HUGE_PAGE;
use crate::shared::SharedPages;
use crate::system;
use gate::Gate;

/// Stack of a thread beyond its chain: the Rust frames above the root, and in tests a signal
/// frame (several KiB of vector state) below the leaf.
const STACK_SLACK: usize = 128 * 1024;

/// Why the workload cannot start or did not run as planned.
#[derive(Debug, thiserror::Error)]
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
    Memory {
        /// All stacks together.
        need_mib: u64,
        /// Free memory now.
        free_mib: u64,
    },
    /// A thread cannot be made.
    #[error("cannot start workload thread {thread}: {source}")]
    Spawn {
        /// Its index.
        thread: u32,
        /// Why.
        source: std::io::Error,
    },
    /// A system call of a thread failed.
    #[error("workload thread {thread}: {what}: {source}")]
    System {
        /// Its index.
        thread: u32,
        /// What it was doing.
        what: &'static str,
        /// Why it could not.
        source: std::io::Error,
    },
    /// `read` of the pipe did not give the one byte that the helper writes.
    #[error("workload thread {thread}: read returned {answer} instead of 1")]
    Read {
        /// Its index.
        thread: u32,
        /// What `read` returned.
        answer: i64,
    },
    /// A thread ended by a panic.
    #[error("workload thread {0} panicked")]
    Panicked(u32),
    /// The kernel has not what the workload needs.
    #[error("the workload needs {0}, which the kernel has not")]
    Unsupported(&'static str),
}

impl WorkloadError {
    /// Whether the kernel lacks something, as opposed to something going wrong.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported(_))
    }
}

/// Names what a thread was doing when a system call failed.
fn failed(thread: u32, what: &'static str) -> impl Fn(rustix::io::Errno) -> WorkloadError {
    move |errno| WorkloadError::System {
        thread,
        what,
        source: errno.into(),
    }
}

/// What a workload leaves.
#[derive(Debug)]
pub struct Ended {
    /// Iterations of each thread, by index.
    pub iterations: Vec<u64>,
    /// What threads saw.
    pub observations: Vec<Observation>,
}

/// Threads that wait at the start line or run. Dropped without [`Workload::release`], they end
/// without running.
#[derive(Debug)]
pub struct Workload {
    gate: Arc<Gate>,
    shared: Arc<SharedPages>,
    announces: Vec<ThreadAnnounce>,
    tids: Vec<u32>,
    threads: Vec<JoinHandle<Result<Option<Observation>, WorkloadError>>>,
}

impl Workload {
    /// Makes the threads. Returns when all of them are pinned and wait.
    ///
    /// # Errors
    /// [`WorkloadError`]; threads already made are ended.
    pub fn start(
        plan: &Plan,
        cpus: &[u32],
        shared: Arc<SharedPages>,
    ) -> Result<Self, WorkloadError> {
        let mut workload = Self {
            gate: Arc::new(Gate::default()),
            shared,
            announces: Vec::new(),
            tids: Vec::new(),
            threads: Vec::new(),
        };
        if plan.threads == 0 || plan.threads > MAX_THREADS {
            return Err(WorkloadError::Threads(plan.threads));
        }
        if plan.kind == WorkloadKind::SleepMigrate && cpus.len() < 2 {
            return Err(WorkloadError::OneCpu);
        }
        let jobs = (0..plan.threads)
            .map(|thread| Job::new(plan, thread, cpus, &workload.shared))
            .collect::<Result<Vec<_>, _>>()?;
        check_memory(&jobs)?;
        if plan.huge_pages {
            reserve(&jobs)?;
        }
        for job in jobs {
            workload.spawn(job)?;
        }
        Ok(workload)
    }

    /// What to announce, by thread index.
    #[must_use]
    pub fn announces(&self) -> &[ThreadAnnounce] {
        &self.announces
    }

    /// The threads themselves, by index; where a thread makes a new one every iteration, their
    /// parent.
    #[must_use]
    pub fn tids(&self) -> &[u32] {
        &self.tids
    }

    /// The words shared with the host.
    #[must_use]
    pub fn shared(&self) -> &Arc<SharedPages> {
        &self.shared
    }

    /// Starts the race.
    pub fn release(&self) {
        self.gate.open();
    }

    /// Waits, asleep, for all threads to end.
    ///
    /// # Errors
    /// The first error of a thread; that thread has told the others to stop.
    pub fn join(mut self) -> Result<Ended, WorkloadError> {
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
        Ok(Ended {
            iterations,
            observations,
        })
    }

    fn spawn(&mut self, job: Job) -> Result<(), WorkloadError> {
        let thread = job.thread;
        let (tell, told) = mpsc::channel();
        let gate = Arc::clone(&self.gate);
        let shared = Arc::clone(&self.shared);
        let stack = job.chain.expected_stack();
        let tid_known = !matches!(job.kind, WorkloadKind::Exit | WorkloadKind::Process);
        let handle = Builder::new()
            .name(format!("{}-{thread}", job.kind.name()))
            .stack_size(job.stack_bytes)
            .spawn(move || {
                let ended = pin(thread, None, job.cpu).and_then(|()| {
                    // The receiver is there: `spawn` waits for this.
                    let _ = tell.send(gettid());
                    drop(tell);
                    if gate.wait() { job.run() } else { Ok(None) }
                });
                if ended.is_err() {
                    shared.stop();
                }
                ended
            })
            .map_err(|source| WorkloadError::Spawn { thread, source })?;
        let Ok(tid) = told.recv() else {
            return Err(match handle.join() {
                Ok(Err(error)) => error,
                _ => WorkloadError::Panicked(thread),
            });
        };
        self.threads.push(handle);
        let tid = tid.as_raw_nonzero().get().unsigned_abs();
        self.tids.push(tid);
        self.announces.push(ThreadAnnounce {
            thread,
            pid: std::process::id(),
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

/// What one thread does.
#[derive(Debug)]
struct Job {
    thread: u32,
    kind: WorkloadKind,
    chain: Chain,
    stack_bytes: usize,
    /// Where it starts.
    cpu: u32,
    sleeper: Option<sleep_migrate::Pipe>,
    /// Where pages of its stack go.
    elsewhere: Option<paged_out::Elsewhere>,
    huge_pages: bool,
    cpus: Vec<u32>,
}

impl Job {
    fn new(
        plan: &Plan,
        thread: u32,
        cpus: &[u32],
        shared: &Arc<SharedPages>,
    ) -> Result<Self, WorkloadError> {
        let frames = u64::from(plan.frames) + u64::from(thread) * u64::from(plan.frames_step);
        let no_chain = || WorkloadError::Frames(frames);
        let short = u32::try_from(frames).map_err(|_| no_chain())?;
        let sleeper = match plan.kind {
            WorkloadKind::SleepMigrate | WorkloadKind::Stuck => {
                Some(sleep_migrate::Pipe::new(thread)?)
            }
            _ => None,
        };
        let fd = sleeper.as_ref().map_or(-1, sleep_migrate::Pipe::read_fd);
        let shared = Arc::clone(shared);
        let mut chain = Chain::new(plan.kind, thread, short, plan.iterations, fd, shared)
            .ok_or_else(no_chain)?;
        if plan.wild_ends {
            chain = chain.with_wild_end(thread);
        }
        let elsewhere = (plan.kind == WorkloadKind::PagedOut)
            .then(|| paged_out::Elsewhere::new(thread, stack_bytes(short)))
            .transpose()?;
        let first_cpu = usize::try_from(thread).unwrap_or(0);
        Ok(Self {
            thread,
            kind: plan.kind,
            chain,
            stack_bytes: stack_bytes(short),
            cpu: cpus.iter().cycle().nth(first_cpu).copied().unwrap_or(0),
            sleeper,
            elsewhere,
            huge_pages: plan.huge_pages,
            cpus: cpus.to_vec(),
        })
    }

    /// Returns what was seen besides.
    fn run(self) -> Result<Option<Observation>, WorkloadError> {
        match (self.kind, self.sleeper) {
            (WorkloadKind::UnreadableEnds, _) => {
                return unreadable_ends::run(self.chain, self.thread, self.stack_bytes).map(Some);
            }
            (WorkloadKind::Traced, _) => return traced::run(&self.chain, self.thread).map(Some),
            (WorkloadKind::IoUring | WorkloadKind::IoUringWorker, _) => {
                return io_uring::run(self.chain, self.thread, self.kind).map(Some);
            }
            (WorkloadKind::MissingPages, _) => {
                let pages = self.stack_bytes.div_ceil(PAGE_SIZE);
                missing_pages::run(self.chain, self.thread, pages, self.huge_pages)?;
            }
            (WorkloadKind::PagedOut, _) => {
                if let Some(elsewhere) = &self.elsewhere {
                    paged_out::run(self.chain, self.thread, elsewhere, self.stack_bytes)?;
                }
            }
            (WorkloadKind::Compat, _) => compat::run(self.chain, self.thread, self.stack_bytes)?,
            (kind @ (WorkloadKind::Exec | WorkloadKind::ExecByThread), _) => {
                exec::run(self.chain, self.thread, kind, self.stack_bytes)?;
            }
            (WorkloadKind::Process, _) => process::run(self.chain, self.thread, self.stack_bytes)?,
            (WorkloadKind::Fork | WorkloadKind::Vfork | WorkloadKind::Clone3, _) => {
                fork::run(&self.chain, self.thread, self.kind)?;
            }
            (WorkloadKind::Exit, _) => exit::run(&self.chain, self.thread, self.stack_bytes)?,
            (WorkloadKind::Stuck, Some(_never_written)) => self.chain.run(),
            (_, Some(pipe)) => {
                sleep_migrate::run(&self.chain, self.thread, pipe, self.cpu, &self.cpus)?;
            }
            _ => repeat(&self.chain),
        }
        Ok(None)
    }
}

/// Iterations of a kind that needs nothing between them.
fn repeat(chain: &Chain) {
    while chain.goes_on() {
        chain.run();
    }
}

/// Bytes of stack for a chain, in whole pages.
fn stack_bytes(frames: u32) -> usize {
    let chain = (frames as usize).saturating_mul(FRAME_BYTES);
    chain
        .saturating_add(STACK_SLACK)
        .next_multiple_of(PAGE_SIZE)
}

/// All memory is locked, so stacks too large would have the kernel kill its init.
fn check_memory(jobs: &[Job]) -> Result<(), WorkloadError> {
    let need = jobs
        .iter()
        .map(|job| {
            let own = [
                WorkloadKind::Compat,
                WorkloadKind::Exec,
                WorkloadKind::ExecByThread,
                WorkloadKind::Exit,
                WorkloadKind::MissingPages,
                WorkloadKind::PagedOut,
                WorkloadKind::Process,
                WorkloadKind::UnreadableEnds,
            ];
            let stacks = if own.contains(&job.kind) { 2 } else { 1 };
            stacks * job.stack_bytes as u64
        })
        .sum::<u64>();
    let info = rustix::system::sysinfo();
    let free = info.freeram.saturating_mul(info.mem_unit.into());
    // A quarter stays for the kernel: page tables, perf's buffers, the unwinder's caches.
    if need > free / 4 * 3 {
        return Err(WorkloadError::Memory {
            need_mib: need >> 20,
            free_mib: free >> 20,
        });
    }
    Ok(())
}

/// Has the kernel set aside huge pages for all stacks.
fn reserve(jobs: &[Job]) -> Result<(), WorkloadError> {
    const MISSING: WorkloadError = WorkloadError::Unsupported("huge pages (hugetlb) of 2 MiB");
    let pages = jobs.iter().map(|job| job.stack_bytes.div_ceil(HUGE_PAGE));
    let pages: usize = pages.sum();
    system::sysctl_if_there("vm/nr_hugepages", &pages.to_string()).map_err(|_| MISSING)?;
    let free = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = free.lines().find_map(|line| {
        let count = line.strip_prefix("HugePages_Free:")?;
        count.trim().parse::<usize>().ok()
    });
    match free {
        Some(free) if free >= pages => Ok(()),
        _ => Err(MISSING),
    }
}

/// Binds a thread (`None`: the calling one) to one CPU.
fn pin(thread: u32, tid: Option<Pid>, cpu: u32) -> Result<(), WorkloadError> {
    sched_setaffinity(tid, &system::only(cpu)).map_err(failed(thread, "cannot set its CPU"))
}
