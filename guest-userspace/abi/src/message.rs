//! The messages. Every message of the agent gets exactly one reply.

use serde::{Deserialize, Serialize};

use crate::observation::Observation;
use crate::plan::GuestPlan;
use crate::survey::SurveyedPlace;
use crate::tracefs::{TracefsBuffer, TracefsFormat, TracefsPart};
use crate::user_mode::UserModeAnnounce;

/// Most pages in one [`AgentMessage::Locate`]: the largest ring with its control page.
pub const MAX_LOCATE: u32 = 1 + 32_768;

/// From the agent to the host, in the order of the variants; `Failed` at any time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum AgentMessage {
    /// First message. Reply: [`HostReply::Plan`].
    Hello {
        /// [`crate::ABI_VERSION`] of the agent.
        abi_version: u32,
        /// `uname -r`.
        release: String,
        /// CPUs online.
        cpus: u32,
    },
    /// The kernel lacks what the plan needs. Nothing follows. Reply: [`HostReply::Ok`].
    Unsupported {
        /// One line, for the user.
        reason: String,
    },
    /// Asks for the guest-physical addresses of mapped pages of the agent that the kernel does not
    /// report: in Linux 7.2 a perf ring is a mapping of raw page frames (`VM_PFNMAP`), which
    /// `/proc/self/pagemap` shows as holes. Reply: [`HostReply::Located`], read from the page
    /// tables of the vCPU that asks.
    Locate {
        /// Virtual address of the first page.
        start: u64,
        /// Number of pages, at most [`MAX_LOCATE`].
        pages: u32,
    },
    /// Asks for the address of the calling thread's `task_struct`. Reply: [`HostReply::Task`].
    Task,
    /// A ring buffer is mapped and can be read.
    Ring(RingAnnounce),
    /// An event is open, but still disabled.
    Event(EventAnnounce),
    /// The log of the lab client is mapped; nothing has been logged yet.
    Lab {
        /// Guest-physical addresses: the control page, then the slots' pages, in order.
        pages: Vec<u64>,
    },
    /// How an event of tracefs is laid out.
    TracefsFormat(TracefsFormat),
    /// A buffer of an instance of tracefs is mapped; nothing has been written yet.
    TracefsBuffer(TracefsBuffer),
    /// What unwinding in user mode writes; nothing has been written yet.
    UserMode(UserModeAnnounce),
    /// Where the words are that the host and every workload thread share.
    Shared {
        /// Guest-physical addresses of the [`crate::shared`] pages, in order.
        pages: Vec<u64>,
    },
    /// A workload thread exists and waits at the start line.
    Thread(ThreadAnnounce),
    /// The symbols of the workloads' code; sent once, before `Ready`.
    Symbols(Vec<UserSymbol>),
    /// The stacks that are known at every instruction of the workload; sent before `Ready`, by
    /// workloads that know them.
    Program(Program),
    /// Everything is set up and the events are enabled. The host may inject from now on. The reply
    /// `Ok` releases the threads.
    Ready,
    /// The workload has ended and the events are disabled. No more records are written.
    Finished {
        /// Iterations of each thread, by thread index.
        iterations: Vec<u64>,
    },
    /// An observation, after `Finished`; one message each.
    Observed(Observation),
    /// Places that the workload passed, in the order of their first passing, in pieces, after
    /// `Finished`. Only if [`GuestPlan::survey`] is set.
    Surveyed(Vec<SurveyedPlace>),
    /// A part of what instances of tracefs hold that are not mapped, after `Finished`.
    Tracefs(TracefsPart),
    /// The output of the distribution's `perf script`, in pieces, after `Finished`.
    PerfScript(String),
    /// The distribution's perf failed. Nothing follows.
    PerfToolFailed {
        /// What failed, with the end of its error output.
        what: String,
    },
    /// Lines of the kernel log (`/dev/kmsg` as text), the whole log in pieces, after `Finished`.
    KernelLog(String),
    /// Last message of a complete run: the machine can be ended. The reply is ignored.
    Bye,
    /// The agent could not carry out the plan, for another reason than a missing kernel feature.
    Failed {
        /// One line: what failed and why.
        what: String,
    },
    /// The file that the distribution's `perf record` wrote, in pieces, after `Finished`; none if it is too large.
    PerfData(Vec<u8>),
}

/// From the host to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum HostReply {
    /// Understood, go on.
    Ok,
    /// The answer to `Hello`.
    Plan(Box<GuestPlan>),
    /// The answer to `Locate`: guest-physical addresses, in order, one a page.
    Located(Vec<u64>),
    /// The answer to `Task`: the address, from the kernel's `current_task`.
    Task(u64),
    /// The host cannot go on; the agent stops.
    Stop {
        /// Why, for the guest's console.
        reason: String,
    },
}

/// One ring buffer, in guest-physical addresses: `struct perf_event_mmap_page`, then data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RingAnnounce {
    /// Number of the ring in this session, from 0.
    pub ring: u32,
    /// The CPU its events are bound to.
    pub cpu: u32,
    /// The control page (`data_head` at byte 1024, `data_tail` at 1032).
    pub control_page: u64,
    /// Data pages in ring order; a power of two of them.
    pub data_pages: Vec<u64>,
    /// Its events write from the end of the ring to its beginning (`write_backward`).
    pub backward: bool,
}

/// One open event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventAnnounce {
    /// Index in [`crate::Tracing::events`].
    pub spec: u32,
    /// The CPU it is bound to.
    pub cpu: u32,
    /// `PERF_EVENT_IOC_ID`: the value of `PERF_SAMPLE_ID` and `IDENTIFIER`.
    pub id: u64,
    /// The ring its records go to.
    pub ring: u32,
}

/// One workload thread and its user stack, known by construction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadAnnounce {
    /// Index from 0.
    pub thread: u32,
    /// Thread group id.
    pub pid: u32,
    /// Thread id; 0 for kinds that make a new thread in every iteration, which the pid identifies.
    pub tid: u32,
    /// The stack while the thread is at its leaf.
    pub stack: ExpectedStack,
}

/// A user stack known by construction, innermost frame first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExpectedStack {
    /// First address that frame 0 may have, where the leaf has set up its frame.
    pub leaf_start: u64,
    /// First address after the range of frame 0.
    pub leaf_end: u64,
    /// The address of frame 0 in the leaf's system call: that after `syscall`. 0 for a leaf without
    /// a system call.
    pub syscall_return: u64,
    /// The callers: each return address, and how often it occurs in a row.
    pub callers: Vec<(u64, u32)>,
}

impl ExpectedStack {
    /// Frames of the whole stack, including frame 0.
    #[must_use]
    pub fn depth(&self) -> u64 {
        1 + self.callers.iter().map(|&(_, n)| u64::from(n)).sum::<u64>()
    }

    /// The return addresses above frame 0, innermost first.
    pub fn caller_addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.callers
            .iter()
            .flat_map(|&(address, n)| (0..n).map(move |_| address))
    }
}

/// The stack at one place of a program without frame pointers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KnownStack {
    /// First address of the code.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The stack pointer; `None` where the callers are the same whatever it is.
    pub stack_pointer: Option<u64>,
    /// The callers, innermost first: each return address, and how often it occurs in a row.
    pub callers: Vec<(u64, u32)>,
}

impl KnownStack {
    /// Frames of the whole stack, including the innermost one.
    #[must_use]
    pub fn depth(&self) -> u64 {
        1 + self.callers.iter().map(|&(_, n)| u64::from(n)).sum::<u64>()
    }

    /// The return addresses, innermost first.
    pub fn caller_addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.callers
            .iter()
            .flat_map(|&(address, n)| (0..n).map(move |_| address))
    }
}

/// A workload whose stack is known by construction at each of its instructions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Program {
    /// Everywhere in its code.
    pub stacks: Vec<KnownStack>,
    /// The code that SFrame sections describe: start and end.
    pub covered: Vec<(u64, u64)>,
}

impl Program {
    /// Whether the stack is known at an instruction.
    #[must_use]
    pub fn knows(&self, ip: u64) -> bool {
        let mut stacks = self.stacks.iter();
        stacks.any(|it| (it.start..it.end).contains(&ip))
    }

    /// The stack at an instruction with this stack pointer.
    #[must_use]
    pub fn stack_at(&self, ip: u64, stack_pointer: u64) -> Option<&KnownStack> {
        let mut stacks = self.stacks.iter();
        stacks.find(|it| {
            let there = |at| at == stack_pointer;
            (it.start..it.end).contains(&ip) && it.stack_pointer.is_none_or(there)
        })
    }

    /// Whether a section describes the code at an address.
    #[must_use]
    pub fn covers(&self, address: u64) -> bool {
        let mut covered = self.covered.iter();
        covered.any(|&(start, end)| (start..end).contains(&address))
    }
}

/// A named range of user text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UserSymbol {
    /// Name as used in scenarios (`user: spin_loop`) and reports.
    pub name: String,
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
}
