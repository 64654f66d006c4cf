//! What a perf event is besides what scenarios ask for, and what a thread does to one.

use serde::{Deserialize, Serialize};

/// The rest of `struct perf_event_attr`, and how the event is opened. The default is how the events
/// of scenarios are opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AttrDetails {
    /// Bits of the flag word that are set besides those that [`crate::EventSpec`] names.
    pub set: u64,
    /// Bits of the flag word that are clear, although the agent sets them otherwise.
    pub clear: u64,
    /// `read_format`.
    pub read_format: u64,
    /// `branch_sample_type`.
    pub branch_sample_type: u64,
    /// `sample_regs_user`: the registers of `PERF_SAMPLE_REGS_USER`.
    pub regs_user: u64,
    /// `sample_regs_intr`: the registers of `PERF_SAMPLE_REGS_INTR`.
    pub regs_intr: u64,
    /// `sample_stack_user`: the bytes of `PERF_SAMPLE_STACK_USER`.
    pub stack_user: u32,
    /// `clockid`, used if the flag word has `use_clockid`.
    pub clockid: i32,
    /// `wakeup_events`, or `wakeup_watermark` if the flag word has `watermark`; none: a wake-up as
    /// late as possible.
    pub wakeup: Option<u32>,
    /// Whose event it is.
    pub target: EventTarget,
    /// How its ring is mapped.
    pub ring: RingUse,
    /// Data pages of its ring, if not as many as those of the others
    /// ([`crate::Tracing::ring_pages`]).
    pub ring_pages: Option<u32>,
    /// `perf_event_open` may refuse it: the agent reports that ([`crate::Observation::Refused`])
    /// and goes on without the event.
    pub may_be_refused: bool,
}

/// Bits of the flag word of `struct perf_event_attr` (include/uapi/linux/perf_event.h, Linux 7.3).
pub mod flag {
    #![allow(missing_docs, reason = "the kernel's own names")]
    pub const INHERIT: u64 = 1 << 1;
    pub const PINNED: u64 = 1 << 2;
    pub const EXCLUSIVE: u64 = 1 << 3;
    pub const EXCLUDE_USER: u64 = 1 << 4;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HV: u64 = 1 << 6;
    pub const EXCLUDE_IDLE: u64 = 1 << 7;
    pub const MMAP: u64 = 1 << 8;
    pub const COMM: u64 = 1 << 9;
    pub const ENABLE_ON_EXEC: u64 = 1 << 12;
    pub const TASK: u64 = 1 << 13;
    pub const WATERMARK: u64 = 1 << 14;
    /// `precise_ip` is bits 15 and 16.
    pub const PRECISE_IP_SHIFT: u32 = 15;
    pub const MMAP_DATA: u64 = 1 << 17;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
    pub const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
    pub const MMAP2: u64 = 1 << 23;
    pub const COMM_EXEC: u64 = 1 << 24;
    pub const USE_CLOCKID: u64 = 1 << 25;
    pub const CONTEXT_SWITCH: u64 = 1 << 26;
    pub const WRITE_BACKWARD: u64 = 1 << 27;
    pub const NAMESPACES: u64 = 1 << 28;
    pub const KSYMBOL: u64 = 1 << 29;
    pub const BPF_EVENT: u64 = 1 << 30;
    pub const CGROUP: u64 = 1 << 32;
    pub const TEXT_POKE: u64 = 1 << 33;
    pub const BUILD_ID: u64 = 1 << 34;
    pub const INHERIT_THREAD: u64 = 1 << 35;
    pub const REMOVE_ON_EXEC: u64 = 1 << 36;
    pub const SIGTRAP: u64 = 1 << 37;
    pub const DEFER_CALLCHAIN: u64 = 1 << 38;
    pub const DEFER_OUTPUT: u64 = 1 << 39;
}

/// Whose event it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum EventTarget {
    /// Every task; with `inherit`, the agent's main thread and what it starts.
    #[default]
    Usual,
    /// One workload thread. The event is opened when the thread waits at the start line.
    Thread(u32),
    /// The tasks of the root cgroup, which are all (`PERF_FLAG_PID_CGROUP`).
    RootCgroup,
    /// The tasks of a cgroup that has none.
    EmptyCgroup,
}

/// How an event's ring is mapped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RingUse {
    /// Writable: the kernel keeps what is not read yet.
    #[default]
    Kept,
    /// Read-only: the kernel overwrites what is oldest.
    Overwritten,
    /// That of [`crate::EventSpec::output_to`], named when the event is opened
    /// (`PERF_FLAG_FD_OUTPUT`), not afterwards.
    SharedAtOpen,
    /// Writable, and not read: it may be unmapped.
    Unread,
}

/// What a workload thread does to an event, by a system call of its leaf, in one iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PerfOperation {
    /// What it does.
    pub what: PerfOperationKind,
    /// The event, by its index in [`crate::Tracing::events`], on the first CPU.
    pub event: u32,
    /// The iteration of thread 0, from 1.
    pub iteration: u64,
}

/// An operation on an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PerfOperationKind {
    /// `PERF_EVENT_IOC_ENABLE`, of an event that is enabled.
    Enable,
    /// `PERF_EVENT_IOC_DISABLE`.
    Disable,
    /// `PERF_EVENT_IOC_REFRESH` with this count.
    Refresh(u32),
    /// `PERF_EVENT_IOC_RESET`.
    Reset,
    /// `PERF_EVENT_IOC_PAUSE_OUTPUT`.
    Pause,
    /// `close`.
    Close,
    /// `munmap` of its ring, which must be [`RingUse::Unread`].
    Unmap,
}
