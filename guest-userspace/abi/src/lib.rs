//! The interface between the guest's agent and the host.
//!
//! The agent uses I/O ports, which need no driver and work in every context:
//!
//! * [`MAILBOX_PORT`]: a request and its answer. The agent writes a [`mailbox::Header`] page,
//!   then `out`s that page's frame number. The vCPU does not run again before the host has
//!   written the answer into the same pages.
//! * [`MARK_PORT`]: a workload thread sends a [`mark`]. It uses no memory and costs one exit.
//!
//! Messages are postcard-encoded. Both sides are built from the same tree and check
//! [`ABI_VERSION`] first; nothing here is stable across versions.

pub mod attr;
pub mod behaviour;
pub mod bpf;
pub mod command;
pub mod lab;
pub mod mailbox;
pub mod message;
pub mod observation;
pub mod own_stack;
pub mod plan;
pub mod sframe;
pub mod shared;
pub mod survey;
pub mod tracefs;
pub mod user_mode;
pub mod user_stack;

pub use attr::{AttrDetails, EventTarget, PerfOperation, PerfOperationKind, RingUse};
pub use bpf::BpfPlan;
pub use command::Command;
pub use lab::LabPlan;
pub use message::{AgentMessage, HostReply};
pub use observation::{InterruptCounts, KernelMemory, Observation};
pub use plan::{EventSource, EventSpec, GuestPlan, Tracing, Watch, WorkloadKind, WorkloadPlan};
pub use survey::{SurveyPlan, SurveyedPlace};
pub use tracefs::{TracefsBuffer, TracefsFormat, TracefsPart, TracefsPlan};
pub use user_mode::{UserModeAnnounce, UserModePlan};

/// Folder of the distribution's perf in the guest's initial file system: the program `perf`, and
/// its libraries and their loader in `lib`.
pub const PERF_TOOL_DIR: &str = "/perf";

/// First argument that makes the agent exit at once: a process of workload `exec` executes it.
pub const EXIT_AT_ONCE: &std::ffi::CStr = c"--exit-at-once";

/// First argument with which the agent executes itself after it registered a section: it calls down
/// the chain without frame pointers once, with the bytes of a section where that was, and exits.
pub const EXIT_AFTER_CHAIN: &std::ffi::CStr = c"--exit-after-chain";

/// The line in front of a kernel log of which lines are missing, so that nothing follows from what it does not say.
pub const LOG_GAP: &str = "(lines lost: the kernel's log was full, or not read to its end)\n";

/// Version in [`AgentMessage::Hello`]; raised with every change to the messages.
pub const ABI_VERSION: u32 = 23;

/// `out` of a 32-bit page frame number of a [`mailbox`] header page: one request, answered in
/// place before the `out` retires.
pub const MAILBOX_PORT: u16 = 0xd10;

/// `out` of a 32-bit mark (see [`mark`]) by a workload thread.
pub const MARK_PORT: u16 = 0xd14;

/// Values written to [`MARK_PORT`]. The low byte is the kind of mark, the upper 24 bits are the
/// index of the workload thread.
pub mod mark {
    /// The thread begins its iteration: the system call or the loop follows. It arms injections
    /// into the workload, because the host learns the current task.
    pub const ARM: u8 = 1;
    /// The iteration is over, and the thread is back in user mode.
    pub const DONE: u8 = 2;
    /// A command has been carried out, or has failed.
    pub const COMMANDED: u8 = 3;
    /// Something waits for the blocked page of the thread's stack.
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
