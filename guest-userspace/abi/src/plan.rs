//! The host's plan for the agent.

use serde::{Deserialize, Serialize};

use crate::attr::{AttrDetails, PerfOperation};
use crate::bpf::BpfPlan;
use crate::lab::LabPlan;
use crate::message::Program;
use crate::survey::SurveyPlan;
use crate::tracefs::TracefsPlan;
use crate::user_mode::UserModePlan;

/// Everything the agent needs to know for one trial. Nothing is optional: the host resolved it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuestPlan {
    /// The perf events to open.
    pub tracing: Tracing,
    /// What to run while they are enabled.
    pub workload: WorkloadPlan,
    /// What the kernel's lab client does meanwhile, if the trial uses it.
    pub lab: Option<LabPlan>,
    /// The instances of tracefs that trace it, if there are any.
    pub tracefs: Option<TracefsPlan>,
    /// Whether the host sends commands ([`crate::command`]).
    pub commands: bool,
    /// Whether the agent reports which tasks are kernel threads.
    pub kernel_threads: bool,
    /// How the distribution's perf records, if it does.
    pub perf_tool: Option<PerfToolPlan>,
    /// Sysctls of perf to set before any event is opened, in this order: names below
    /// `/proc/sys/kernel`, and values.
    pub sysctls: Vec<(String, String)>,
    /// What a workload thread does to an event, by a system call of its own.
    pub operation: Option<PerfOperation>,
    /// What the workload passes in the kernel, if that is of interest.
    pub survey: Option<SurveyPlan>,
    /// How the workload unwinds itself in user mode, if it does.
    pub user_mode: Option<UserModePlan>,
    /// A BPF client of user stacks beside perf.
    pub bpf: Option<BpfPlan>,
}

/// How the distribution's perf records: system-wide, with deferred call chains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PerfToolPlan {
    /// The event, as perf names it.
    pub event: String,
    /// Its period.
    pub period: u64,
}

/// The perf events: the same on every CPU, system-wide (pid -1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tracing {
    /// Data pages of each ring buffer; a power of two.
    pub ring_pages: u32,
    /// Events, opened on every CPU in this order.
    pub events: Vec<EventSpec>,
}

/// What an event counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// A kprobe, created for this plan: at the entry of a function by ftrace, elsewhere by `int3`.
    Kprobe {
        /// The function's symbol.
        function: String,
        /// Bytes from the function's start; 0 with `at_return`.
        offset: u64,
        /// Count returns of the function instead of executions of the instruction.
        at_return: bool,
        /// Wait until the kernel has replaced the `int3` by a jump (`CONFIG_OPTPROBES`). Otherwise
        /// the agent has the kernel replace none.
        optimized: bool,
    },
    /// An fprobe, created for this plan: the function's ftrace site, or its return.
    Fprobe {
        /// The function's symbol.
        function: String,
        /// Count returns of the function instead of calls.
        at_return: bool,
    },
    /// A uprobe in the workload's code, created for this plan.
    Uprobe {
        /// One of [`USER_SYMBOLS`].
        symbol: String,
        /// Bytes from the symbol's start; 0 with `at_return`.
        offset: u64,
        /// Count returns of the function instead of executions of the instruction.
        at_return: bool,
    },
    /// `PERF_TYPE_BREAKPOINT`: the guest's own debug registers, at an address of the kernel.
    Breakpoint {
        /// The virtual address.
        address: u64,
        /// Which accesses count.
        watch: Watch,
    },
    /// As [`EventSource::Breakpoint`], on a field of each workload thread's own `task_struct`. It
    /// counts only while that thread runs.
    TaskField {
        /// Bytes from the start of the `task_struct`.
        offset: u64,
        /// Which accesses count.
        watch: Watch,
    },
    /// A `PERF_TYPE_SOFTWARE` event by its `PERF_COUNT_SW_*` number.
    Software(u64),
    /// A `PERF_TYPE_HARDWARE` event by its `PERF_COUNT_HW_*` number.
    Hardware(u64),
}

/// The accesses at which a breakpoint of the guest's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Watch {
    /// The execution of the instruction.
    Execute,
    /// Writes to so many bytes: 1, 2, 4 or 8.
    Write(u8),
    /// Reads and writes of so many bytes. An x86 CPU has none for reads alone.
    ReadWrite(u8),
}

/// One perf event, with the field names of `struct perf_event_attr`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(clippy::struct_excessive_bools, reason = "the attr's own bits")]
pub struct EventSpec {
    /// The event's name in reports, unique in the plan.
    pub name: String,
    /// What makes it count.
    pub source: EventSource,
    /// `PERF_EVENT_IOC_SET_FILTER`: only occurrences whose fields meet this condition.
    pub filter: Option<String>,
    /// `sample_period`; 0 for an event that does not sample.
    pub sample_period: u64,
    /// `PERF_SAMPLE_*` bits.
    pub sample_type: u64,
    /// `sample_max_stack`; 0 for the kernel's default.
    pub max_stack: u16,
    /// attr bit 38: request the user chain later.
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
    /// Count only the agent's tasks, which inherit the event (`inherit`), instead of all tasks.
    pub inherit: bool,
    /// `exclude_callchain_user`.
    pub exclude_callchain_user: bool,
    /// Write to the ring of the event with this index on the same CPU (`PERF_EVENT_IOC_SET_OUTPUT`)
    /// instead of an own ring.
    pub output_to: Option<u32>,
    /// The rest of its attr, and how it is opened.
    pub details: AttrDetails,
}

impl GuestPlan {
    /// Whether the trial leaves records besides those of the distribution's perf, which are not read from outside of the guest.
    #[must_use]
    pub const fn leaves_records(&self) -> bool {
        !self.tracing.events.is_empty()
            || self.lab.is_some()
            || self.tracefs.is_some()
            || self.user_mode.is_some()
            || self.bpf.is_some()
    }

    /// Nothing but these events, and threads that spin.
    #[must_use]
    pub fn spinning(tracing: Tracing, threads: u32) -> Self {
        Self {
            tracing,
            workload: WorkloadPlan {
                kind: WorkloadKind::Spin,
                frames: 3,
                frames_step: 0,
                threads,
                iterations: 0,
                wild_ends: false,
                huge_pages: false,
                sframe: SframeSection::None,
                program: None,
                reproducer: None,
            },
            tracefs: None,
            lab: None,
            commands: false,
            kernel_threads: false,
            perf_tool: None,
            sysctls: Vec::new(),
            operation: None,
            survey: None,
            user_mode: None,
            bpf: None,
        }
    }
}

impl EventSpec {
    /// An event that samples nothing, with its own ring and no attr bit set.
    #[must_use]
    pub fn blank(name: &str, source: EventSource) -> Self {
        Self {
            name: name.to_owned(),
            source,
            filter: None,
            sample_period: 0,
            sample_type: 0,
            max_stack: 0,
            defer_callchain: false,
            defer_output: false,
            task: false,
            comm: false,
            mmap: false,
            context_switch: false,
            inherit: false,
            exclude_callchain_user: false,
            output_to: None,
            details: AttrDetails::default(),
        }
    }
}

/// What the guest runs while the events are enabled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkloadPlan {
    /// What each iteration of a thread does.
    pub kind: WorkloadKind,
    /// User frames that an unwind from the thread's leaf must show, the leaf's own instruction
    /// pointer included; at least 3 (leaf, one caller, the thread's root).
    pub frames: u32,
    /// Thread i has `frames + i * frames_step` frames, so that their stacks differ.
    pub frames_step: u32,
    /// Number of threads; thread i starts pinned to CPU `i % cpus`.
    pub threads: u32,
    /// Stop after this many iterations of each thread; 0: run until the host says stop.
    pub iterations: u64,
    /// End the chain of thread i with invalid frame pointer number `i % WILD_ENDS` instead of 0.
    pub wild_ends: bool,
    /// Back the stacks with huge pages of 2 MiB. For [`WorkloadKind::MissingPages`].
    pub huge_pages: bool,
    /// What describes the code of [`WorkloadKind::Frameless`].
    pub sframe: SframeSection,
    /// What [`WorkloadKind::CProgram`] and [`WorkloadKind::Program`] execute. The host makes it where it runs the
    /// trial.
    pub program: Option<CompiledProgram>,
    /// Which of the C programs that show findings is made for [`WorkloadKind::Program`]: `f001`.
    pub reproducer: Option<String>,
}

/// A program that was compiled on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompiledProgram {
    /// The ELF file, for fixed addresses.
    pub elf: Vec<u8>,
    /// The instruction at which it begins to call down, `c_begin`: its start and end.
    pub begin: (u64, u64),
    /// Its stacks, and what its section describes.
    pub known: Program,
}

/// The SFrame section of code without frame pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SframeSection {
    /// Version 2, starts of functions relative to the section.
    V2,
    /// Version 2, starts of functions relative to their fields.
    V2Relative,
    /// Version 3.
    #[default]
    V3,
    /// Version 3, which describes everything but the recursion between root and leaf.
    V3WithoutRecursion,
    /// Version 3, which describes everything but the function of the tail call, between two that it
    /// describes.
    V3WithoutTailCall,
    /// None: nothing describes the code.
    None,
}

/// Rounds of the counting loop in one iteration of [`WorkloadKind::Spin`]: enough to outweigh the
/// two marks of an iteration, few enough to show progress.
pub const SPIN_ROUNDS: u32 = 16_384;
/// `getppid` calls in one iteration of [`WorkloadKind::Syscalls`]. An injection meets one of them; a few more follow, to
/// which nothing is done. More would cost time: the witness leaves the guest at the end of each.
pub const SYSCALLS_BATCH: u32 = 8;

/// The system calls at the symbols `*_call`, one in each leaf (numbers of 64-bit x86): `read`,
/// `fork`, `vfork`, `execve`, `exit`, `getppid`, `io_uring_enter`, `clone3`. What a leaf calls besides,
/// before and after it, has other numbers.
pub const LEAF_CALLS: [u64; 8] = [0, 57, 58, 59, 60, 110, 426, 435];

/// The symbols that the agent announces ([`crate::message::UserSymbol`]): a scenario that names
/// another one is refused before anything starts.
pub const USER_SYMBOLS: [&str; 63] = [
    "root",
    "exit_root",
    "descend",
    "spin_leaf",
    "spin_loop",
    "syscalls_leaf",
    "syscalls_call",
    "syscalls_return",
    "deep_stub",
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
    "calls_leaf",
    "calls_call",
    "calls_return",
    "uring_leaf",
    "uring_call",
    "uring_return",
    "exec_leaf",
    "exec_call",
    "exec_return",
    "entry_leaf",
    "compat_descend",
    "compat_leaf",
    "compat_nop",
    "process_leaf",
    "process_call",
    "process_return",
    "fork_leaf",
    "fork_call",
    "fork_return",
    "shapes_leaf",
    "shapes_begin",
    "shapes_call",
    "shapes_return",
    "shapes_handler",
    "bare_begin",
    "bare_descend",
    "bare_leaf",
    "bare_body",
    "bare_call",
    "bare_return",
    "c_begin",
    "odd_begin",
    "odd_late",
    "odd_gone",
    "odd_handler",
    "interpret",
    "native_leaf",
    "native_call",
    "native_return",
];

/// Number of invalid frame pointers with which `wild_ends` ends chains: 0, the address of its own
/// frame, a backward one, a misaligned one, one into the kernel, a non-canonical one, one into its own frame, and one at the end
/// of the address space.
pub const WILD_ENDS: u32 = 8;

/// One iteration of a workload thread. Each starts with [`crate::mark::ARM`] in the leaf. All but
/// [`WorkloadKind::Exit`] and the kinds with a process for each iteration end with [`crate::mark::DONE`] there, and
/// then count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadKind {
    /// [`SPIN_ROUNDS`] of a counting loop at the bottom of the call chain, in user mode only.
    Spin,
    /// [`SYSCALLS_BATCH`] `getppid` calls in a tight loop at the bottom of the call chain.
    Syscalls,
    /// Calls down through all frames, does one `getppid`, and returns.
    Deep,
    /// A `read` of a pipe that sleeps; a helper thread moves the sleeper to the next CPU by
    /// `sched_setaffinity`, then wakes it.
    SleepMigrate,
    /// Starts a thread that calls down through all frames and exits there.
    Exit,
    /// As [`WorkloadKind::Deep`], but the leaf drops all pages of the stack from the page tables
    /// just before its `getppid`. The pages stay in (shared) memory, and the next access faults
    /// them in.
    MissingPages,
    /// As [`WorkloadKind::Deep`], on a separate stack. The root ends the chain with a frame pointer
    /// to memory that cannot be read, or to a frame of which one word cannot be read (number i modulo 5
    /// for thread i).
    UnreadableEnds,
    /// As [`WorkloadKind::Deep`], under a tracer that stops the thread at the entry to and the
    /// return from every system call.
    Traced,
    /// Calls down through all frames, submits a request to io_uring and waits for it in one
    /// `io_uring_enter`, and returns.
    IoUring,
    /// As [`WorkloadKind::IoUring`]; a worker of io_uring executes the request.
    IoUringWorker,
    /// As [`WorkloadKind::IoUring`]; the request is a timer of 10 ms, whose interrupt queues task work for the sleeping thread.
    IoUringTimer,
    /// As [`WorkloadKind::IoUringTimer`], with `IORING_SETUP_COOP_TASKRUN`: the interrupt wakes the thread and sends no IPI.
    IoUringCooperative,
    /// Starts a process that calls down through all frames and executes the agent again there,
    /// which exits at once.
    Exec,
    /// As [`WorkloadKind::Exec`], on the second thread of the process, while the first waits in the
    /// system call that made it. The second thread takes over the id of the first.
    ExecByThread,
    /// As [`WorkloadKind::Deep`] in 32-bit code, with frames of 4-byte words and an instruction
    /// without effect instead of the system call.
    Compat,
    /// Starts a process that calls down through all frames, does one `getppid` there (or executes
    /// the agent again, if told to) and ends.
    Process,
    /// As [`WorkloadKind::Deep`], with a `fork` instead of `getppid`; the child exits at once.
    Fork,
    /// As [`WorkloadKind::Fork`], with a `vfork`.
    Vfork,
    /// As [`WorkloadKind::Fork`], with a `clone3`.
    Clone3,
    /// As [`WorkloadKind::Deep`], on a stack whose pages [`crate::Command::PageOut`] can page out:
    /// to a swap disk (`/dev/ram0`) if the kernel has one, otherwise to a file in the agent's own
    /// file system (FUSE). The next access reads the page again.
    PagedOut,
    /// As [`WorkloadKind::Deep`]; in one iteration the leaf does [`GuestPlan::operation`] to an
    /// event just before its `getppid`.
    PerfCalls,
    /// As [`WorkloadKind::Deep`], with an `int 0x80` instead of `syscall`.
    Int80,
    /// As [`WorkloadKind::Compat`], with an `int 0x80` behind the instruction without effect.
    CompatInt80,
    /// As [`WorkloadKind::Compat`], with a system call by `syscall` in the kernel's 32-bit vDSO, which
    /// is mapped instead of the 64-bit one: that takes `vdso=0` on the kernel command line.
    CompatSyscall,
    /// As [`WorkloadKind::CompatSyscall`], by a `sysenter` of the workload's own, from which the kernel
    /// returns to the vDSO.
    CompatSysenter,
    /// As [`WorkloadKind::Deep`]; the leaf drops a page and reads it again, which is a minor fault.
    PageFault,
    /// As [`WorkloadKind::PageFault`]; the page is paged out, as by [`WorkloadKind::PagedOut`].
    MajorFault,
    /// As [`WorkloadKind::Deep`], with a write to memory that may only be read, and the handler of
    /// its signal.
    ProtectionFault,
    /// As [`WorkloadKind::Deep`], with an `int3` and the handler of its signal.
    Int3,
    /// As [`WorkloadKind::Deep`], with an `int1` and the handler of its signal.
    Int1,
    /// As [`WorkloadKind::Deep`], with a `hlt`, which raises #GP, and the handler of its signal.
    GpFault,
    /// As [`WorkloadKind::Deep`]; the leaf sets the trap flag and handles the signal of the step.
    SingleStep,
    /// As [`WorkloadKind::Deep`], with a system call that unblocks two pending signals: both are
    /// delivered in one exit from the kernel.
    Signals,
    /// As [`WorkloadKind::Deep`]; a seccomp filter turns the system call into a signal.
    Seccomp,
    /// As [`WorkloadKind::Process`], with `exit_group` as the system call.
    ExitGroup,
    /// As [`WorkloadKind::Process`], with a `kill` of the process itself.
    Killed,
    /// As [`WorkloadKind::Deep`]; the leaf calls functions of every shape (with and without a frame,
    /// through a pointer, through a stub as of a PLT, one of the vdso), and then sends itself a
    /// signal with a handler instead of the `getppid`.
    Shapes,
    /// As [`WorkloadKind::Deep`], in code that keeps no frame pointer: `rbp` holds what is no
    /// address. An SFrame section describes it.
    Frameless,
    /// As [`WorkloadKind::Frameless`], with sections that are hostile or taken away, one case after
    /// the other ([`crate::sframe::SframeCase`]).
    SframeHostile,
    /// As [`WorkloadKind::Frameless`]; in each iteration one field of the section is wrong. Field and
    /// value follow from the iteration's number.
    SframeFields,
    /// As [`WorkloadKind::SframeFields`], with the section and the pages around it not present, so
    /// that each page that a walk touches is known.
    SframeReads,
    /// As [`WorkloadKind::Frameless`], through forks, exec and unmapping.
    SframeLives,
    /// As [`WorkloadKind::Compat`], with an SFrame section registered for its code that is wrong for
    /// 32-bit code.
    CompatSframe,
    /// Code without frame pointers in the forms that programs have besides calls: a PLT, two adjacent
    /// sections, a section that comes late and goes, code in no section, and a signal.
    FramelessShapes,
    /// An interpreter executes functions that call each other, down to a native leaf, which makes one `getppid`.
    Interpreter,
    /// As [`WorkloadKind::Interpreter`]; the thread has opted in to unwind itself, asked by a signal.
    UserUnwind,
    /// As [`WorkloadKind::UserUnwind`], with the chain of [`WorkloadKind::Frameless`].
    UserUnwindFrameless,
    /// Each iteration is a process that executes [`WorkloadPlan::program`].
    CProgram,
    /// Executes [`WorkloadPlan::program`] once, which looks at the kernel by itself and says what it found
    /// ([`crate::Observation::Program`]).
    Program,
    /// As [`WorkloadKind::Deep`], with a system call that asks for the thread's own stack, in another way in each
    /// iteration ([`crate::own_stack::OwnStackCase`]).
    OwnStack,
    /// As [`WorkloadKind::OwnStack`], with the chain of [`WorkloadKind::Frameless`]. It handles no signal.
    OwnStackFrameless,
    /// As [`WorkloadKind::Deep`]; the leaf waits in another system call in each iteration, which time ends
    /// ([`crate::behaviour::WAITS`]).
    Waits,
    /// As [`WorkloadKind::Deep`]; the leaf sends itself a signal, which the process handles.
    Raises,
    /// Blocks in `read` of a pipe that nobody writes to and ignores the stop word. It shows that a
    /// hang is reported as one.
    Stuck,
}

impl WorkloadKind {
    /// Whether each iteration is a process of its own, so that its ids are not those that were announced
    /// for the thread.
    #[must_use]
    pub const fn is_process(self) -> bool {
        matches!(
            self,
            Self::Exec
                | Self::ExecByThread
                | Self::Process
                | Self::ExitGroup
                | Self::Killed
                | Self::CProgram
        )
    }

    /// Whether a process can unwind itself in it ([`crate::UserModePlan`]).
    #[must_use]
    pub const fn takes_user_mode(self) -> bool {
        self.needs_user_mode()
            || matches!(
                self,
                Self::Spin
                    | Self::Syscalls
                    | Self::Deep
                    | Self::Frameless
                    | Self::Interpreter
                    | Self::Fork
                    | Self::Vfork
                    | Self::Clone3
                    | Self::Exec
                    | Self::ExitGroup
            )
    }

    /// Whether it is a kind for such processes only.
    #[must_use]
    pub const fn needs_user_mode(self) -> bool {
        matches!(self, Self::Waits | Self::Raises)
    }

    /// Whether its chain is the one without frame pointers.
    #[must_use]
    pub const fn is_frameless(self) -> bool {
        self.is_known_everywhere() || self.has_many_sections() || self.takes_section()
    }

    /// Whether [`WorkloadPlan::sframe`] says which section describes its code.
    #[must_use]
    pub const fn takes_section(self) -> bool {
        matches!(self, Self::Frameless | Self::OwnStackFrameless)
    }

    /// Whether its stack is known at each instruction of the chain without frame pointers.
    #[must_use]
    pub const fn is_known_everywhere(self) -> bool {
        matches!(self, Self::Frameless | Self::UserUnwindFrameless)
    }

    /// Whether its leaf is an interpreter, which calls a native leaf.
    #[must_use]
    pub const fn is_interpreted(self) -> bool {
        matches!(self, Self::Interpreter | Self::UserUnwind)
    }

    /// Whether the thread unwinds itself.
    #[must_use]
    pub const fn unwinds_itself(self) -> bool {
        matches!(self, Self::UserUnwind | Self::UserUnwindFrameless)
    }

    /// Whether it registers SFrame sections of its own, one after the other.
    #[must_use]
    pub const fn has_many_sections(self) -> bool {
        matches!(
            self,
            Self::SframeHostile | Self::SframeFields | Self::SframeReads | Self::SframeLives
        )
    }

    /// Whether it ends by itself even where no number of iterations is given.
    #[must_use]
    pub const fn ends_by_itself(self) -> bool {
        matches!(
            self,
            Self::SframeHostile | Self::SframeLives | Self::Program
        )
    }

    /// The name in YAML and reports.
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
            Self::IoUringTimer => "io-uring-timer",
            Self::IoUringCooperative => "io-uring-cooperative",
            Self::Exec => "exec",
            Self::ExecByThread => "exec-by-thread",
            Self::Compat => "compat",
            Self::Process => "process",
            Self::Fork => "fork",
            Self::Vfork => "vfork",
            Self::Clone3 => "clone3",
            Self::PagedOut => "paged-out",
            Self::PerfCalls => "perf-calls",
            Self::Int80 => "int80",
            Self::CompatInt80 => "compat-int80",
            Self::CompatSyscall => "compat-syscall",
            Self::CompatSysenter => "compat-sysenter",
            Self::PageFault => "page-fault",
            Self::MajorFault => "major-fault",
            Self::ProtectionFault => "protection-fault",
            Self::Int3 => "int3",
            Self::Int1 => "int1",
            Self::GpFault => "gp-fault",
            Self::SingleStep => "single-step",
            Self::Signals => "signals",
            Self::Seccomp => "seccomp",
            Self::ExitGroup => "exit-group",
            Self::Killed => "killed",
            Self::Shapes => "shapes",
            Self::Frameless => "frameless",
            Self::SframeHostile => "sframe-hostile",
            Self::SframeFields => "sframe-fields",
            Self::SframeReads => "sframe-reads",
            Self::SframeLives => "sframe-lives",
            Self::CompatSframe => "compat-sframe",
            Self::FramelessShapes => "frameless-shapes",
            Self::Interpreter => "interpreter",
            Self::UserUnwind => "user-unwind",
            Self::UserUnwindFrameless => "user-unwind-frameless",
            Self::CProgram => "c-program",
            Self::Program => "program",
            Self::OwnStack => "own-stack",
            Self::OwnStackFrameless => "own-stack-frameless",
            Self::Waits => "waits",
            Self::Raises => "raises",
            Self::Stuck => "stuck",
            Self::Exit => "exit",
        }
    }
}
