//! Instances of tracefs as tracers: what the agent opens, and what it sends of them.

use serde::{Deserialize, Serialize};

/// The option of an instance by which its events ask for a deferred user stack
/// (guest-kernel/patches/proposals/tracefs-stack.patch).
pub const OPTION: &str = "userstack_deferred";
/// The event that says that an instance has asked, as tracefs names it below `events/ftrace`.
pub const REQUEST_EVENT: &str = "user_stack_request";
/// The event that has the stack.
pub const STACK_EVENT: &str = "user_stack_deferred";
/// The event of what is written to `trace_marker`.
pub const MARKER_EVENT: &str = "print";
/// What the agent writes there before it clears the option, and before it ends the tracing: what is answered later need
/// not come.
pub const MAY_END: &str = "userstack_deferred may end";
/// What the agent writes there each time that it has cleared the option, before it sets it again. The kernel has
/// cancelled the instance's client by then, so all that it was called for is in front of this.
pub const CLEARED: &str = "userstack_deferred was cleared";
/// The system of the events that are written once in each system call, by its task.
pub const SYSCALLS: &str = "raw_syscalls";
/// The one that is written before the system call.
pub const SYSCALL_ENTER: &str = "sys_enter";
/// The one that is written between the system call and the exit work.
pub const SYSCALL_EXIT: &str = "sys_exit";
/// Most instances in a plan.
pub const MAX_INSTANCES: usize = 16;
/// Most bytes of one [`TracefsPart`].
pub const PART_BYTES: usize = 64 * 1024;
/// Bytes of a sub-buffer, unless the instance changes it.
pub const SUB_BUFFER: usize = 4096;
/// Bytes at the start of a sub-buffer that hold no events: its time, and how much is committed (`struct
/// buffer_data_page`, kernel/trace/ring_buffer.c, 7.3).
pub const SUB_BUFFER_HEADER: usize = 16;

/// The sub-buffers of a CPU: at least two, and the reader's (`rb_allocate_cpu_buffer`,
/// kernel/trace/ring_buffer.c, 7.3).
#[must_use]
pub fn sub_buffers(kib: u32) -> usize {
    let bytes = usize::try_from(kib).unwrap_or(usize::MAX);
    let bytes = bytes.saturating_mul(1024);
    bytes.div_ceil(SUB_BUFFER - SUB_BUFFER_HEADER).max(2) + 1
}

/// The instances of a trial.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TracefsPlan {
    /// In the order in which they are made.
    pub instances: Vec<TracefsInstance>,
    /// What happens to them while the workload runs.
    pub churn: Option<TracefsChurn>,
}

/// One instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TracefsInstance {
    /// Its folder's name.
    pub name: String,
    /// The events that it traces: system and name.
    pub events: Vec<(String, String)>,
    /// KiB of buffer for each CPU.
    pub buffer_kib: u32,
}

/// A thread that changes the instances, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TracefsChurn {
    /// The CPU on which it runs.
    pub cpu: u32,
    /// The period.
    pub period_us: u64,
    /// What it does.
    pub what: ChurnKind,
}

/// What is done to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ChurnKind {
    /// Its option is cleared and set again.
    Option,
    /// The option is cleared where it is set, and set for the next instance: one has it at a time.
    Swap,
    /// It is removed with its option set, and made again.
    Remove,
}

/// The `format` file of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TracefsFormat {
    /// The event; with its system in front (`raw_syscalls:sys_enter`) where that is not `ftrace`.
    pub event: String,
    /// The file.
    pub text: String,
}

/// The buffer of an instance and a CPU, mapped (`trace_pipe_raw`, Documentation/trace/ring-buffer-map.rst).
/// Nobody reads it in the guest, and it does not overwrite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TracefsBuffer {
    /// Index of the instance.
    pub instance: u32,
    /// The CPU that writes it.
    pub cpu: u32,
    /// Guest-physical addresses of its sub-buffers, in the order in which they are filled. The reader's
    /// is not among them.
    pub pages: Vec<u64>,
}

/// What the agent sends of instances that are not mapped, after the workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TracefsPart {
    /// Sub-buffers of `trace_pipe_raw`, in order.
    Pages {
        /// Index of the instance.
        instance: u32,
        /// How often it had been removed.
        life: u32,
        /// The CPU that wrote them.
        cpu: u32,
        /// Whole sub-buffers.
        bytes: Vec<u8>,
    },
    /// What is not in the pages, by the `stats` file.
    Lost {
        /// Index of the instance.
        instance: u32,
        /// How often it had been removed.
        life: u32,
        /// Events that had no room, were overwritten, or not read.
        events: u64,
    },
}
