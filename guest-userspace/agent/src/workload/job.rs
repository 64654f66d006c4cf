//! What one workload thread does, and the memory that it needs.

use std::sync::Arc;

use unwindlab_abi::observation::WildEnd;
use unwindlab_abi::plan::{SframeSection, WorkloadPlan};
use unwindlab_abi::{Observation, WorkloadKind, mailbox::PAGE_SIZE};

use super::{
    WorkloadError, compat, entries, exec, exit, failed, fork, io_uring, missing_pages, odd,
    own_stack, paged_out, perf_calls, process, program, repeat, sframe, shapes, sleep_migrate,
    traced, unreadable_ends, user_unwind, vdso32,
};
use crate::chain::{BARE_FRAME_BYTES, Chain, FRAME_BYTES, is_compat};
use crate::pages::{HUGE_PAGE, Pages};
use crate::shared::SharedPages;
use crate::system;

/// Stack of a thread beyond its chain: the Rust frames above the root and, in tests, a signal frame
/// (several KiB of vector state) below the leaf.
const STACK_SLACK: usize = 128 * 1024;

/// What one thread does.
#[derive(Debug)]
pub(super) struct ThreadJob {
    pub(super) thread: u32,
    pub(super) kind: WorkloadKind,
    pub(super) chain: Chain,
    pub(super) stack_bytes: usize,
    /// The CPU on which it starts.
    pub(super) cpu: u32,
    sleeper: Option<sleep_migrate::Pipe>,
    /// Where pages of its stack are paged out to.
    page_store: Option<paged_out::PageStore>,
    huge_pages: bool,
    /// The stack of a chain whose stack pointers are known.
    pub(super) stack: Option<Pages>,
    wild_end: Option<WildEnd>,
    cpus: Vec<u32>,
}

impl ThreadJob {
    pub(super) fn new(
        plan: &WorkloadPlan,
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
        if let Some(instruction) = vdso32::Instruction::of(plan.kind) {
            chain = chain.calling(vdso32::vsyscall(thread, instruction)?);
        }
        let paged_out = match plan.kind {
            WorkloadKind::PagedOut => Some(stack_bytes(plan.kind, short)),
            WorkloadKind::MajorFault => Some(PAGE_SIZE),
            _ => None,
        };
        let page_store = paged_out
            .map(|bytes| paged_out::PageStore::new(thread, bytes))
            .transpose()?;
        let stack = match plan.kind {
            kind if kind.is_known_everywhere() => {
                let pages = Pages::new(stack_bytes(plan.kind, short) / PAGE_SIZE)
                    .map_err(failed(thread, "cannot map a stack"))?;
                // SAFETY: nothing else uses the pages, they have room for the chain, and they are
                // freed with it.
                chain = unsafe { chain.on_stack(pages.end()) };
                Some(pages)
            }
            _ => None,
        };
        let whole = !matches!(
            plan.sframe,
            SframeSection::V3WithoutRecursion
                | SframeSection::V3WithoutTailCall
                | SframeSection::None
        );
        if whole && plan.kind.takes_section() {
            chain = chain.described();
        }
        let first_cpu = usize::try_from(thread).unwrap_or(0);
        Ok(Self {
            thread,
            kind: plan.kind,
            chain,
            stack_bytes: stack_bytes(plan.kind, short),
            cpu: cpus.iter().cycle().nth(first_cpu).copied().unwrap_or(0),
            sleeper,
            page_store,
            huge_pages: plan.huge_pages,
            stack,
            wild_end: plan.wild_ends.then(|| WildEnd::of(thread)),
            cpus: cpus.to_vec(),
        })
    }

    /// Runs all iterations. Returns what the thread observed, if anything.
    pub(super) fn run(self) -> Result<Vec<Observation>, WorkloadError> {
        match (self.kind, self.sleeper) {
            (WorkloadKind::UnreadableEnds, _) => {
                return unreadable_ends::run(self.chain, self.thread, self.stack_bytes)
                    .map(|seen| vec![seen]);
            }
            (WorkloadKind::Traced, _) => {
                return traced::run(&self.chain, self.thread).map(|seen| vec![seen]);
            }
            (
                WorkloadKind::IoUring
                | WorkloadKind::IoUringWorker
                | WorkloadKind::IoUringTimer
                | WorkloadKind::IoUringCooperative,
                _,
            ) => {
                return io_uring::run(self.chain, self.thread, self.kind).map(|seen| vec![seen]);
            }
            (WorkloadKind::MissingPages, _) => {
                let pages = self.stack_bytes.div_ceil(PAGE_SIZE);
                missing_pages::run(self.chain, self.thread, pages, self.huge_pages)?;
            }
            (WorkloadKind::PagedOut, _) => {
                if let Some(store) = &self.page_store {
                    paged_out::run(self.chain, self.thread, store, self.stack_bytes)?;
                }
            }
            (kind, _) if is_compat(kind) => {
                compat::run(self.chain, self.thread, kind, self.stack_bytes)?;
            }
            (
                kind @ (WorkloadKind::Int80
                | WorkloadKind::PageFault
                | WorkloadKind::MajorFault
                | WorkloadKind::ProtectionFault
                | WorkloadKind::Int3
                | WorkloadKind::Int1
                | WorkloadKind::GpFault
                | WorkloadKind::SingleStep
                | WorkloadKind::Signals
                | WorkloadKind::Seccomp),
                _,
            ) => entries::run(self.chain, self.thread, kind, self.page_store.as_ref())?,
            (
                kind @ (WorkloadKind::Exec | WorkloadKind::ExecByThread | WorkloadKind::CProgram),
                _,
            ) => {
                exec::run(self.chain, self.thread, kind, self.stack_bytes)?;
            }
            (
                kind @ (WorkloadKind::Process | WorkloadKind::ExitGroup | WorkloadKind::Killed),
                _,
            ) => process::run(self.chain, self.thread, kind, self.stack_bytes)?,
            (WorkloadKind::Fork | WorkloadKind::Vfork | WorkloadKind::Clone3, _) => {
                fork::run(&self.chain, self.thread, self.kind)?;
            }
            (kind, _) if kind.has_many_sections() => {
                return sframe::run(self.chain, self.thread, kind, self.stack_bytes);
            }
            (WorkloadKind::Exit, _) => exit::run(&self.chain, self.thread, self.stack_bytes)?,
            (kind, _) if kind.unwinds_itself() => {
                let pages = self.stack.as_ref().map(|it| (it.address(), it.end()));
                return user_unwind::run(&self.chain, self.thread, pages);
            }
            (WorkloadKind::Shapes, _) => shapes::run(&self.chain, self.thread)?,
            (WorkloadKind::FramelessShapes, _) => odd::run(&self.chain, self.thread)?,
            (kind @ (WorkloadKind::OwnStack | WorkloadKind::OwnStackFrameless), _) => {
                return own_stack::run(self.chain, self.thread, kind, self.stack_bytes);
            }
            (WorkloadKind::Program, _) => {
                return program::run(&self.chain, self.thread).map(|seen| vec![seen]);
            }
            (WorkloadKind::PerfCalls, _) => perf_calls::run(&self.chain, self.thread)?,
            (WorkloadKind::Stuck, Some(_never_written)) => self.chain.run(),
            (_, Some(pipe)) => {
                sleep_migrate::run(&self.chain, self.thread, pipe, self.cpu, &self.cpus)?;
            }
            _ => repeat(&self.chain),
        }
        let thread = self.thread;
        Ok(self
            .wild_end
            .map(|end| Observation::WildEnd { thread, end })
            .into_iter()
            .collect())
    }
}

/// Bytes of stack for a chain, in whole pages.
fn stack_bytes(kind: WorkloadKind, frames: u32) -> usize {
    let frame = match kind {
        kind if kind.is_frameless() => BARE_FRAME_BYTES,
        _ => FRAME_BYTES,
    };
    let chain = (frames as usize).saturating_mul(frame);
    chain
        .saturating_add(STACK_SLACK)
        .next_multiple_of(PAGE_SIZE)
}

/// All memory is locked: if the stacks were too large, the kernel would kill its init.
pub(super) fn check_memory(jobs: &[ThreadJob]) -> Result<(), WorkloadError> {
    let need = jobs
        .iter()
        .map(|job| {
            let own = [
                WorkloadKind::ExitGroup,
                WorkloadKind::Killed,
                WorkloadKind::Exec,
                WorkloadKind::ExecByThread,
                WorkloadKind::CProgram,
                WorkloadKind::Exit,
                WorkloadKind::MissingPages,
                WorkloadKind::OwnStack,
                WorkloadKind::OwnStackFrameless,
                WorkloadKind::PagedOut,
                WorkloadKind::Process,
                WorkloadKind::UnreadableEnds,
            ];
            let is_own = own.contains(&job.kind) || is_compat(job.kind);
            let stacks = if is_own { 2 } else { 1 };
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

/// Has the kernel reserve huge pages for all stacks.
pub(super) fn reserve(jobs: &[ThreadJob]) -> Result<(), WorkloadError> {
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
