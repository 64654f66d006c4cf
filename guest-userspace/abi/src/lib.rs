//! The one contract between the guest's agent and the host.
//!
//! The agent talks through I/O ports, which need no driver and work in every context:
//!
//! * [`MAILBOX_PORT`]: a request and its answer. The agent writes a [`mailbox::Header`] page,
//!   then `out`s that page's frame number. The vCPU does not run again before the host has
//!   written the answer into the same pages.
//! * [`MARK_PORT`]: a workload thread says "now" ([`mark`]); no memory is involved, so it costs
//!   one exit and disturbs nothing else.
//!
//! Messages are postcard-encoded. Both sides are built from the same tree and check
//! [`ABI_VERSION`] first; nothing here is stable across versions.

pub mod command;
pub mod lab;
pub mod mailbox;
pub mod message;
pub mod observation;
pub mod plan;
pub mod shared;

pub use command::Command;
pub use lab::LabPlan;
pub use message::{AgentMessage, HostReply};
pub use observation::{InterruptCounts, KernelMemory, Observation};
pub use plan::{EventSource, EventSpec, GuestPlan, Tracing, WorkloadKind, WorkloadPlan};

/// Folder of the distribution's perf in the guest's initial file system: the program `perf`, and its
/// libraries and their loader in `lib`.
pub const PERF_TOOL_DIR: &str = "/perf";

/// First argument of an agent that is to exit at once: what a process of workload `exec` becomes.
pub const EXIT_AT_ONCE: &std::ffi::CStr = c"--exit-at-once";

/// Checked in [`AgentMessage::Hello`]; raised with every change to this crate.
pub const ABI_VERSION: u32 = 9;

/// `out` of a 32-bit page frame number of a [`mailbox`] header page: one request, answered in
/// place before the `out` retires.
pub const MAILBOX_PORT: u16 = 0xd10;

/// `out` of a 32-bit mark (see [`mark`]) by a workload thread.
pub const MARK_PORT: u16 = 0xd14;

/// Values written to [`MARK_PORT`]. The low byte says what, the upper 24 bits the index of the
/// workload thread.
pub mod mark {
    /// The thread is about to do the thing its workload exists for (the system call, the loop).
    /// Injections "in the workload" are armed by it: the host learns the task that is current.
    pub const ARM: u8 = 1;
    /// The thread is back in user mode after it.
    pub const DONE: u8 = 2;
    /// The helper has carried a command out, or could not.
    pub const COMMANDED: u8 = 3;
    /// Somebody waits for a page of the thread's stack that is to block.
    pub const BLOCKED: u8 = 4;

    /// Packs a mark for the port.
    #[must_use]
    pub const fn pack(what: u8, thread: u32) -> u32 {
        (thread << 8) | what as u32
    }

    /// The inverse of [`pack`]: (what, thread index).
    #[must_use]
    pub const fn unpack(value: u32) -> (u8, u32) {
        ((value & 0xff) as u8, value >> 8)
    }
}
