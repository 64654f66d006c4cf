//! What the agent observes of the kernel besides the records.

use serde::{Deserialize, Serialize};

use crate::behaviour::Behaviour;
use crate::own_stack::OwnStackCalls;
use crate::sframe::{SframeAsks, SframeReads};
use crate::user_stack::UserStack;

/// One observation, sent when the workload has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Observation {
    /// A thread whose chain leads the unwinder to unreadable memory.
    Unreadable {
        /// The thread.
        thread: u32,
        /// The kind of memory.
        memory: UnreadableMemory,
        /// Number of SIGSEGV and SIGBUS that it got.
        signals: u64,
    },
    /// A thread whose system calls another process traced (`PTRACE_SYSCALL`).
    Traced {
        /// The thread.
        thread: u32,
    },
    /// A thread whose system calls wait in io_uring.
    IoUring {
        /// The thread.
        thread: u32,
    },
    /// A task that was a kernel thread when the workload had ended. Only if
    /// [`crate::GuestPlan::kernel_threads`] is set.
    KernelThread {
        /// Its thread id.
        tid: u32,
    },
    /// `perf_event_open` refused an event that may be refused.
    Refused {
        /// Index in [`crate::Tracing::events`].
        spec: u32,
        /// The CPU.
        cpu: u32,
        /// The error.
        errno: i32,
    },
    /// The kernel's memory use before the first iteration and after the last thread.
    Memory {
        /// Before.
        before: KernelMemory,
        /// After, a grace period of RCU later.
        after: KernelMemory,
    },
    /// The kernel's counts of interrupts before the first iteration and after the events were
    /// disabled.
    Interrupts {
        /// Before.
        before: InterruptCounts,
        /// After.
        after: InterruptCounts,
    },
    /// A thread whose chain ends with an invalid frame pointer
    /// ([`crate::plan::WorkloadPlan::wild_ends`]).
    WildEnd {
        /// The thread.
        thread: u32,
        /// The frame pointer at its root.
        end: WildEnd,
    },
    /// What was done with SFrame sections, in order, in pieces of [`SFRAME_PIECE`].
    SframeAsks(Vec<SframeAsks>),
    /// What walks read of them, in pieces of [`SFRAME_PIECE`].
    SframeReads(Vec<SframeReads>),
    /// What came of a thread's requests for its own stack.
    OwnStack(Vec<OwnStackCalls>),
    /// Stacks that threads found themselves, in pieces of [`crate::user_stack::USER_STACK_PIECE`].
    UserStacks(Vec<UserStack>),
    /// What a process that unwinds itself, or its twin, saw of the kernel.
    Behaviour(Behaviour),
    /// Signals that asked for a stack and got none, up to when this thread had ended.
    UserSignals {
        /// The thread.
        thread: u32,
        /// Those that came to a thread that had not opted in.
        stray: u64,
        /// Those for which there was no room.
        full: u64,
    },
    /// How a program ended that looks at the kernel by itself.
    Program {
        /// Its exit code; `None` if a signal ended it.
        code: Option<i32>,
        /// The last line that it printed, cut to [`SAID_LIMIT`] bytes.
        said: String,
    },
}

/// Most bytes of a program's last line that are kept.
pub const SAID_LIMIT: usize = 400;

/// Most entries of one observation of SFrame sections.
pub const SFRAME_PIECE: usize = 256;

/// An invalid frame pointer at the end of a chain, in the order of the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WildEnd {
    /// 0.
    Zero,
    /// The address of its own frame.
    OwnFrame,
    /// That of the frame below.
    Backward,
    /// One above that is not aligned.
    Misaligned,
    /// One of the kernel.
    Kernel,
    /// One that is not canonical.
    NonCanonical,
    /// That of its own frame's second word.
    WithinFrame,
    /// One at the end of the address space: the frame's own end is at 0.
    WrapsAround,
}

impl WildEnd {
    /// That of thread number `thread`.
    #[must_use]
    pub const fn of(thread: u32) -> Self {
        match thread % crate::plan::WILD_ENDS {
            1 => Self::OwnFrame,
            2 => Self::Backward,
            3 => Self::Misaligned,
            4 => Self::Kernel,
            5 => Self::NonCanonical,
            6 => Self::WithinFrame,
            7 => Self::WrapsAround,
            _ => Self::Zero,
        }
    }
}

/// Why memory is unreadable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum UnreadableMemory {
    /// There is no mapping.
    Unmapped,
    /// The mapping is not readable.
    Protected,
    /// The mapped file ends before it.
    BeyondFile,
    /// There is no mapping of the return address; the frame pointer beside it can be read.
    UnmappedReturnAddress,
    /// There is no mapping of the frame pointer; the return address beside it can be read.
    UnmappedFramePointer,
}

/// Rows of `/proc/interrupts`, summed over all CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InterruptCounts {
    /// `NMI`: NMIs of any kind.
    pub nmi: u64,
    /// `PMI`: those in which the driver of performance counters found an overflow.
    pub pmi: u64,
}

/// The kernel's own memory use, from `/proc/meminfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KernelMemory {
    /// `SUnreclaim`, in KiB: slabs, page-sized `kmalloc` included.
    pub slab_kib: u64,
    /// `KernelStack`, in KiB.
    pub stack_kib: u64,
}

impl KernelMemory {
    /// The sum, in KiB.
    #[must_use]
    pub const fn kib(&self) -> u64 {
        self.slab_kib.saturating_add(self.stack_kib)
    }
}
