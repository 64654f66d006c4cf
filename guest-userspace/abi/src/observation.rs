//! What the agent sees of the kernel by other means than records.

use serde::{Deserialize, Serialize};

/// One thing seen. Sent when the workload has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Observation {
    /// A thread whose chain led the unwinder to memory that cannot be read.
    Unreadable {
        /// The thread.
        thread: u32,
        /// What kind of memory that was.
        memory: UnreadableMemory,
        /// SIGSEGV and SIGBUS that it got.
        signals: u64,
    },
    /// A thread of which another process traced every system call (`PTRACE_SYSCALL`).
    Traced {
        /// The thread.
        thread: u32,
    },
    /// A thread whose system calls wait in io_uring.
    IoUring {
        /// The thread.
        thread: u32,
    },
    /// A task that was a kernel thread when the workload had ended. Only where
    /// [`crate::GuestPlan::kernel_threads`] asks for it.
    KernelThread {
        /// Its id.
        tid: u32,
    },
    /// What the kernel used before the first iteration, and when the last thread was gone.
    Memory {
        /// Before.
        before: KernelMemory,
        /// After, a grace period of RCU later.
        after: KernelMemory,
    },
    /// What the CPUs' interrupts were counted as, before the first iteration and when the events
    /// were off again.
    Interrupts {
        /// Before.
        before: InterruptCounts,
        /// After.
        after: InterruptCounts,
    },
}

/// Why memory cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnreadableMemory {
    /// There is no mapping.
    Unmapped,
    /// It is mapped, and may not be read.
    Protected,
    /// It is mapped from a file that ends before it.
    BeyondFile,
}

/// Rows of `/proc/interrupts`, all CPUs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptCounts {
    /// `NMI`: NMIs of any kind.
    pub nmi: u64,
    /// `PMI`: those in which the driver of performance counters found an overflow.
    pub pmi: u64,
}

/// Memory of the kernel's own, of `/proc/meminfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelMemory {
    /// `SUnreclaim`, in KiB: slabs, page-sized `kmalloc` included.
    pub slab_kib: u64,
    /// `KernelStack`, in KiB.
    pub stack_kib: u64,
}

impl KernelMemory {
    /// All of it, in KiB.
    #[must_use]
    pub const fn kib(&self) -> u64 {
        self.slab_kib.saturating_add(self.stack_kib)
    }
}
