//! The log of the kernel's lab client: what several clients of the deferred unwinder asked for and
//! what they got.
//!
//! [`reader`] reads its bytes out of guest memory, [`decode`] decodes them. There is one log
//! for all CPUs, and a slot is reserved by one atomic addition, so that slots are in one order for
//! the whole machine.

pub mod decode;
pub mod reader;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unwindlab_abi::lab::LabContext;

pub use reader::LabLog;

/// The log, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LabTrace {
    /// All records, in the order of their slots.
    pub events: Vec<LabEvent>,
    /// The different stacks that callbacks got, frames innermost first.
    pub stacks: Vec<Vec<u64>>,
    /// Records for which there was no slot left.
    pub lost: u64,
    /// Slots that were reserved and never finished.
    pub unfinished: u64,
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LabEvent {
    /// Its slot: its place in the order of all records; violations name it by this.
    pub slot: u64,
    /// Nanoseconds of the guest's sched clock on its CPU.
    pub time: u64,
    /// The CPU that wrote it.
    pub cpu: u16,
    /// The task that the record is about; 0 if it is about none.
    pub tid: u32,
    /// Number of that task among the watched tasks, unique; 0 if it is not watched.
    pub task: u32,
    /// How many times the task had returned to user mode. Records with the same number are of one
    /// stay in the kernel, or of NMIs in user mode just before it.
    pub entry: u32,
    /// The context in which the task was.
    pub context: LabContext,
    /// What else the client knew.
    pub flags: LabFlags,
    /// The client, for records about one.
    pub client: Option<LabClient>,
    /// What it says.
    pub kind: LabKind,
}

/// One registration of a client. The same number registered again is another registration.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct LabClient {
    /// Its number.
    pub number: u16,
    /// Which registration of it, from 1.
    pub generation: u32,
}

impl std::fmt::Display for LabClient {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}.{}", self.number, self.generation)
    }
}

/// The flags of a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(clippy::struct_excessive_bools, reason = "the client's own bits")]
pub struct LabFlags {
    /// `PF_EXITING` was set.
    pub exiting: bool,
    /// The task was past its exit work, and not in user mode yet.
    pub leaving: bool,
    /// The NMI or interrupt hit user mode.
    pub user: bool,
    /// Asked from inside a callback.
    pub nested: bool,
    /// Asked by a client that had been cancelled before.
    pub cancelled: bool,
    /// The NMI hit the kernel where interrupts were disabled.
    pub irqs_off: bool,
    /// The task is a worker (`PF_USER_WORKER`), which is never in user mode.
    #[serde(default)]
    pub worker: bool,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LabKind {
    /// A task is watched from now on.
    Target {
        /// Its thread group.
        tgid: u32,
        /// Number of the watched task that forked it; 0: named by the agent.
        parent: u32,
    },
    /// R: `unwind_deferred_request()` was called and returned.
    Request {
        /// What it returned.
        ret: i32,
        /// The cookie it gave.
        cookie: u64,
        /// Slots below this one were reserved before the call.
        begin: u64,
        /// The instruction that the NMI or hard interrupt interrupted; 0: not known.
        ip: u64,
    },
    /// CB: a callback begins.
    Callback {
        /// The cookie it got.
        cookie: u64,
        /// Frames it got.
        nr: u64,
        /// Index of the frames in [`LabTrace::stacks`]; `None` if the log does not have them.
        stack: Option<usize>,
    },
    /// The callback that began in this slot ends.
    Called {
        /// Slot of the [`LabKind::Callback`].
        callback: u64,
    },
    /// The task returns to user mode: the last record of a stay, if there is any other in it.
    Return {
        /// Time of its entry.
        entered: u64,
        /// The user instruction it returns to.
        ip: u64,
        /// Whether an interrupt or exception made the entry; a system call otherwise.
        interrupt: bool,
    },
    /// The task is moved.
    Migrate {
        /// From this CPU.
        from: u64,
        /// To this one.
        to: u64,
    },
    /// The task exits, just before its pending requests are answered.
    Exit,
    /// The task is freed.
    Free,
    /// `unwind_deferred_init()` returned.
    Registered {
        /// What it returned.
        ret: i32,
    },
    /// `unwind_deferred_cancel()` is called.
    Cancel,
    /// `unwind_deferred_cancel()` has returned.
    Cancelled,
    /// The client was switched on.
    Start,
    /// The client was switched off; all clients are cancelled.
    Stop,
}

impl LabEvent {
    /// Cookie of a request that was not refused, or of a callback.
    #[must_use]
    pub const fn cookie(&self) -> Option<u64> {
        match self.kind {
            LabKind::Request { ret, cookie, .. } if ret >= 0 => Some(cookie),
            LabKind::Callback { cookie, .. } => Some(cookie),
            _ => None,
        }
    }

    /// The instruction that the interrupt of a request hit.
    #[must_use]
    pub const fn interrupted(&self) -> Option<u64> {
        match self.kind {
            LabKind::Request { ip, .. } if ip != 0 => Some(ip),
            _ => None,
        }
    }
}

impl LabTrace {
    /// The frames that a callback got.
    #[must_use]
    pub fn frames(&self, callback: &LabEvent) -> Option<&[u64]> {
        match callback.kind {
            LabKind::Callback { stack, .. } => self.stacks.get(stack?).map(Vec::as_slice),
            _ => None,
        }
    }

    /// The record in this slot.
    #[must_use]
    pub fn at(&self, slot: u64) -> Option<&LabEvent> {
        let at = self.events.binary_search_by_key(&slot, |event| event.slot);
        self.events.get(at.ok()?)
    }
}
