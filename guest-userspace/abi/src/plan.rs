//! What the host tells the agent to do.

use serde::{Deserialize, Serialize};

use crate::lab::LabPlan;

/// Everything the agent needs to know for one trial. Nothing is optional: the host resolved it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestPlan {
    /// Which perf events to open and how.
    pub tracing: Tracing,
    /// What to run while they are on.
    pub workload: WorkloadPlan,
    /// What the kernel's lab client does meanwhile, if the trial needs one.
    pub lab: Option<LabPlan>,
    /// Whether the host will give commands ([`crate::command`]).
    pub commands: bool,
    /// Whether the host wants to know which tasks are kernel threads.
    pub kernel_threads: bool,
    /// The distribution's perf, if the trial is recorded by it.
    pub perf_tool: Option<PerfToolPlan>,
}

/// How the distribution's perf records: system-wide, with deferred call chains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerfToolPlan {
    /// The event, as perf names it.
    pub event: String,
    /// Its period.
    pub period: u64,
}

/// The tracing session: the same events on every CPU, system-wide (pid -1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracing {
    /// Data pages of each ring buffer; a power of two.
    pub ring_pages: u32,
    /// Events, opened on every CPU in this order.
    pub events: Vec<EventSpec>,
}

/// What makes an event count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventSource {
    /// `PERF_COUNT_SW_DUMMY`: never samples; carries side-band records and record 22.
    Dummy,
    /// A tracepoint, `system:name` under tracefs' `events`.
    Tracepoint {
        /// For example `nmi`.
        system: String,
        /// For example `nmi_handler`.
        name: String,
    },
    /// A kprobe on a kernel function, made for the session.
    Probe {
        /// The function's symbol.
        function: String,
        /// When it returns rather than when it is called.
        at_return: bool,
    },
    /// `PERF_TYPE_BREAKPOINT`: the guest's own debug registers, at an instruction.
    Breakpoint {
        /// Its virtual address.
        address: u64,
    },
    /// A `PERF_TYPE_SOFTWARE` event by its `PERF_COUNT_SW_*` number.
    Software(u64),
    /// A `PERF_TYPE_HARDWARE` event by its `PERF_COUNT_HW_*` number.
    Hardware(u64),
}

/// One perf event, in the words of `struct perf_event_attr`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "the attr's own bits")]
pub struct EventSpec {
    /// Name in reports, unique in the session.
    pub name: String,
    /// What makes it count.
    pub source: EventSource,
    /// `sample_period`; 0 for an event that does not sample.
    pub sample_period: u64,
    /// `PERF_SAMPLE_*` bits.
    pub sample_type: u64,
    /// `sample_max_stack`; 0 for the kernel's default.
    pub max_stack: u16,
    /// attr bit 38: ask for the user chain later.
    pub defer_callchain: bool,
    /// attr bit 39: receive record 22.
    pub defer_output: bool,
    /// Fork and exit records.
    pub task: bool,
    /// Comm records.
    pub comm: bool,
    /// Mmap records (mmap2).
    pub mmap: bool,
    /// Switch records.
    pub context_switch: bool,
    /// Only for the agent's own tasks, which inherit it (`inherit`), instead of for all tasks.
    pub inherit: bool,
    /// `exclude_callchain_user`.
    pub exclude_callchain_user: bool,
    /// Write into the ring of the event with this index on the same CPU
    /// (`PERF_EVENT_IOC_SET_OUTPUT`) rather than into a ring of its own.
    pub output_to: Option<u32>,
}

/// What the guest runs while the events are on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadPlan {
    /// What every thread does, over and over until told to stop.
    pub kind: WorkloadKind,
    /// User frames that an unwind from the thread's leaf must show, the leaf's own instruction
    /// pointer included; at least 3 (leaf, one caller, the thread's root).
    pub frames: u32,
    /// Thread i has `frames + i * frames_step` frames, so that stacks tell threads apart.
    pub frames_step: u32,
    /// Threads; thread i is pinned to CPU `i % cpus` at its start.
    pub threads: u32,
    /// Stop after this many iterations of each thread; 0: run until the host says stop.
    pub iterations: u64,
    /// The root of thread i ends its chain with frame pointer `i % WILD_ENDS` of those that lead
    /// nowhere, instead of 0.
    pub wild_ends: bool,
    /// Stacks are made of huge pages of 2 MiB. For [`WorkloadKind::MissingPages`].
    pub huge_pages: bool,
}

/// Rounds of the counting loop in one iteration of [`WorkloadKind::Spin`]: long enough that the
/// two marks of an iteration do not matter, short enough that progress is seen.
pub const SPIN_ROUNDS: u32 = 16_384;
/// `getppid` calls in one iteration of [`WorkloadKind::Syscalls`], so that the loop is tight in
/// spite of the two marks.
pub const SYSCALLS_BATCH: u32 = 64;

/// The names of user text that the agent announces ([`crate::message::UserSymbol`]), so that a
/// scenario with another one is told before anything is started.
pub const USER_SYMBOLS: [&str; 38] = [
    "root",
    "exit_root",
    "descend",
    "spin_leaf",
    "spin_loop",
    "syscalls_leaf",
    "syscalls_call",
    "syscalls_return",
    "deep_leaf",
    "deep_call",
    "deep_return",
    "sleep_leaf",
    "sleep_call",
    "sleep_return",
    "exit_leaf",
    "exit_call",
    "exit_return",
    "missing_leaf",
    "missing_call",
    "missing_return",
    "paged_leaf",
    "paged_call",
    "paged_return",
    "uring_leaf",
    "uring_call",
    "uring_return",
    "exec_leaf",
    "exec_call",
    "exec_return",
    "compat_descend",
    "compat_leaf",
    "compat_nop",
    "process_leaf",
    "process_call",
    "process_return",
    "fork_leaf",
    "fork_call",
    "fork_return",
];

/// Frame pointers that lead nowhere, with which a workload of wild ends ends its chains: 0, one of
/// a frame to itself, one backward, one misaligned, one into the kernel, one not canonical.
pub const WILD_ENDS: u32 = 6;

/// What one iteration of a workload thread is. Each starts with [`crate::mark::ARM`] in the leaf;
/// all but [`WorkloadKind::Exit`] and [`WorkloadKind::Process`] end with [`crate::mark::DONE`] there,
/// then count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadKind {
    /// User mode only: [`SPIN_ROUNDS`] of a counting loop at the bottom of the call chain, never
    /// entering the kernel by itself.
    Spin,
    /// [`SYSCALLS_BATCH`] `getppid` calls in a tight loop at the bottom of the call chain.
    Syscalls,
    /// Calls down through all frames, does one `getppid`, and returns.
    Deep,
    /// Each iteration blocks in `read` of a pipe; a helper thread moves the sleeper to the next
    /// CPU by `sched_setaffinity`, then wakes it.
    SleepMigrate,
    /// Each iteration starts a thread that calls down through all frames and leaves by the
    /// `exit` system call there.
    Exit,
    /// As [`WorkloadKind::Deep`], but just before its `getppid` the leaf drops the pages of the
    /// whole stack from the page tables. They stay in memory (it is shared memory): the next look
    /// at them faults them in.
    MissingPages,
    /// As [`WorkloadKind::Deep`], on a stack of its own, and the root of thread i ends its chain
    /// with a frame pointer to memory that cannot be read: not mapped, protected, or mapped from
    /// a file that ends before it, counted round.
    UnreadableEnds,
    /// As [`WorkloadKind::Deep`], under a tracer that stops it at entry to and return from every
    /// system call.
    Traced,
    /// Calls down through all frames, submits a request to io_uring and waits for it in one
    /// `io_uring_enter`, and returns.
    IoUring,
    /// As [`WorkloadKind::IoUring`]; the request is done by a worker of io_uring's.
    IoUringWorker,
    /// Each iteration starts a process that calls down through all frames and executes the agent
    /// anew there, which exits at once.
    Exec,
    /// As [`WorkloadKind::Exec`], with the chain on a second thread of the process, while the first waits
    /// for it in the system call that made it: the second one takes its id over.
    ExecByThread,
    /// As [`WorkloadKind::Deep`] in 32-bit code, with frames of 4-byte words, and an instruction
    /// that does nothing in place of the system call.
    Compat,
    /// Each iteration starts a process that calls down through all frames, does one `getppid`
    /// there (or executes the agent anew, where it is told to) and ends.
    Process,
    /// As [`WorkloadKind::Deep`], with a `fork` in place of `getppid`; the child exits at once.
    Fork,
    /// As [`WorkloadKind::Fork`], with a `vfork`.
    Vfork,
    /// As [`WorkloadKind::Fork`], with a `clone3`.
    Clone3,
    /// As [`WorkloadKind::Deep`], on a stack of which [`crate::Command::PageOut`] takes a page out of
    /// memory: to a swap disk (`/dev/ram0`) where the kernel has one, else to a file, in a file system
    /// that is the agent's own (FUSE). The next look has it read again.
    PagedOut,
    /// Blocks in `read` of a pipe that nobody writes to, deaf to the stop word: a hang on purpose,
    /// to see that one is reported as such.
    Stuck,
}

impl WorkloadKind {
    /// The word used in YAML and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Syscalls => "syscalls",
            Self::Deep => "deep",
            Self::SleepMigrate => "sleep-migrate",
            Self::MissingPages => "missing-pages",
            Self::UnreadableEnds => "unreadable-ends",
            Self::Traced => "traced",
            Self::IoUring => "io-uring",
            Self::IoUringWorker => "io-uring-worker",
            Self::Exec => "exec",
            Self::ExecByThread => "exec-by-thread",
            Self::Compat => "compat",
            Self::Process => "process",
            Self::Fork => "fork",
            Self::Vfork => "vfork",
            Self::Clone3 => "clone3",
            Self::PagedOut => "paged-out",
            Self::Stuck => "stuck",
            Self::Exit => "exit",
        }
    }
}
