//! The events of a trial, decoded and in order: what invariants are checked on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unwindlab_abi::message::{EventAnnounce, Program, RingAnnounce, ThreadAnnounce, UserSymbol};
use unwindlab_abi::plan::Tracing;
use unwindlab_abi::{LOG_GAP, Observation};

use super::lab::LabTrace;
use super::recording::{Block, Injection, Point, StoodStill, ThreadProgress};
use super::tracefs::{Asker, TracefsTrace};
use super::user_mode::UserModeTrace;
use super::witness::Witness;

/// `PERF_RECORD_MISC_CPUMODE_MASK`: the bits of a record's `misc` that say in which mode it was made.
pub const MISC_CPUMODE: u16 = 7;
/// `PERF_RECORD_MISC_KERNEL`.
pub const MISC_KERNEL: u16 = 1;
/// `PERF_RECORD_MISC_USER`.
pub const MISC_USER: u16 = 2;
/// `PERF_CONTEXT_KERNEL`: the kernel part of a chain follows.
pub const CONTEXT_KERNEL: u64 = (-128_i64).cast_unsigned();
/// `PERF_CONTEXT_USER`: an inline user chain follows.
pub const CONTEXT_USER: u64 = (-512_i64).cast_unsigned();
/// `PERF_CONTEXT_USER_DEFERRED`: exactly one entry follows, the cookie.
pub const CONTEXT_USER_DEFERRED: u64 = (-640_i64).cast_unsigned();
/// `PERF_CONTEXT_MAX`: chain entries at or above it are markers, not addresses.
pub const CONTEXT_MAX: u64 = (-4095_i64).cast_unsigned();
/// Most instruction pointers that a record 22 can carry (one page of unwind cache).
pub const MAX_DEFERRED_FRAMES: usize = 510;

/// One trial: the session that was set up, and everything that happened in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trace {
    /// `uname -r` of the guest.
    pub release: String,
    /// vCPUs of the machine.
    pub vcpus: u32,
    /// The events that the plan asks for, indexed by [`EventAnnounce::spec`].
    pub tracing: Option<Tracing>,
    /// What was written to which file below `/proc/sys/kernel`.
    #[serde(default)]
    pub sysctls: Vec<(String, String)>,
    /// The rings.
    pub rings: Vec<RingAnnounce>,
    /// The open events, one per spec and CPU.
    pub session: Vec<EventAnnounce>,
    /// Workload threads and their stacks by construction.
    pub threads: Vec<ThreadAnnounce>,
    /// Names of user text.
    pub user_symbols: Vec<UserSymbol>,
    /// The stacks that are known at every instruction of the workload.
    #[serde(default)]
    pub program: Program,
    /// All records of all rings, merged: by time, then CPU, then position in the ring.
    pub events: Vec<Event>,
    /// Whether records were written before the first that is here: a trial of a sweep begins in the middle.
    #[serde(default)]
    pub begins_late: bool,
    /// What the kernel's lab client logged, if it was used.
    #[serde(default)]
    pub lab: Option<LabTrace>,
    /// What unwinding in user mode asked and answered, if it was set up.
    #[serde(default)]
    pub user_mode: Option<UserModeTrace>,
    /// What instances of tracefs wrote, if there were any.
    #[serde(default)]
    pub tracefs: Option<TracefsTrace>,
    /// Returns to user mode, if they were noted.
    #[serde(default)]
    pub witness: Option<Witness>,
    /// The injections made, in order.
    pub injections: Vec<Injection>,
    /// Calls of kernel functions that were made to fail, in order.
    pub failures: Vec<Injection>,
    /// Everything else that was done, in order.
    #[serde(default)]
    pub actions: Vec<Injection>,
    /// How often the places of injections were passed.
    #[serde(default)]
    pub points: Vec<Point>,
    /// Waits for a page of a thread's stack.
    #[serde(default)]
    pub blocks: Vec<Block>,
    /// A vCPU that nothing let go on in time.
    #[serde(default)]
    pub stood_still: Option<StoodStill>,
    /// What else the agent observed.
    #[serde(default)]
    pub observations: Vec<Observation>,
    /// The text that the distribution's perf printed of its own recording, if it recorded.
    #[serde(default)]
    pub perf_script: Option<String>,
    /// How far the workload got.
    pub progress: Vec<ThreadProgress>,
    /// Why bytes of rings could not be decoded; W1 judges this.
    pub corrupt: Vec<String>,
    /// Kernel log and console, for W0.
    pub log: Vec<String>,
    /// Of a recording of perf's own: what is not known of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
}

impl Trace {
    /// Whether lines of the kernel log are missing, so that nothing follows from what it does not say.
    #[must_use]
    pub fn log_has_gap(&self) -> bool {
        self.log.iter().any(|line| line == LOG_GAP.trim_end())
    }
}

/// What is known of a machine that only perf watched. Others may have asked for user stacks there, before the
/// recording began and while it was made, and perf tells everybody of every answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Recorded {
    /// Every CPU that was on was recorded.
    pub every_cpu: bool,
    /// Somebody says that nothing else asked for user stacks.
    pub alone: bool,
    /// The time in which the events of all CPUs were on for certain.
    pub steady: Option<(u64, u64)>,
}

impl Recorded {
    /// Whether all that was to be recorded at this time is there, if nothing is said to be lost.
    #[must_use]
    pub fn is_whole(&self, time: u64) -> bool {
        let steady = self.steady.filter(|_| self.every_cpu);
        steady.is_some_and(|(from, to)| from <= time && time <= to)
    }
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Position in [`Trace::events`]; how violations name events.
    pub index: usize,
    /// The ring it was read from.
    pub ring: u32,
    /// The CPU that ring is bound to.
    pub cpu: u32,
    /// Index of that ring in [`Trace::rings`].
    #[serde(default)]
    pub ring_index: usize,
    /// Position among the records of its ring.
    pub position: usize,
    /// Where in its ring it begins, counted as `data_head` is.
    #[serde(default)]
    pub start: u64,
    /// `PERF_SAMPLE_TIME` in nanoseconds of the guest's perf clock.
    pub time: Option<u64>,
    /// The perf event that wrote it, by `PERF_SAMPLE_ID`/`IDENTIFIER`: index into
    /// [`Trace::session`].
    pub event: Option<usize>,
    /// pid of the task that the record is about (of sample_id or of the sample).
    pub pid: Option<u32>,
    /// tid of the task that the record is about.
    pub tid: Option<u32>,
    /// `header.misc`.
    pub misc: u16,
    /// `header.size` in bytes.
    pub size: u16,
    /// What it says.
    pub kind: EventKind,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EventKind {
    /// `PERF_RECORD_SAMPLE` (9).
    Sample(Sample),
    /// `PERF_RECORD_CALLCHAIN_DEFERRED` (22).
    CallchainDeferred(CallchainDeferred),
    /// `PERF_RECORD_LOST` (2).
    Lost {
        /// The event that lost records.
        id: u64,
        /// How many.
        lost: u64,
    },
    /// `PERF_RECORD_LOST_SAMPLES` (13).
    LostSamples {
        /// How many.
        lost: u64,
    },
    /// `PERF_RECORD_SWITCH` (14) or `SWITCH_CPU_WIDE` (15).
    Switch {
        /// The task of the record leaves the CPU (misc bit 13); otherwise it enters it.
        out: bool,
        /// It was preempted (misc bit 14).
        preempt: bool,
        /// CPU-wide only: pid and tid of the other task.
        other: Option<(u32, u32)>,
    },
    /// `PERF_RECORD_MMAP` (1) or `MMAP2` (10).
    Mmap {
        /// Start address.
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// File offset in bytes.
        pgoff: u64,
        /// File name, lossily decoded.
        filename: String,
    },
    /// `PERF_RECORD_COMM` (3).
    Comm {
        /// New name, lossily decoded.
        comm: String,
        /// Set by exec (misc bit 13).
        exec: bool,
    },
    /// `PERF_RECORD_FORK` (7).
    Fork {
        /// Child.
        pid: u32,
        /// Parent.
        ppid: u32,
        /// Child's tid.
        tid: u32,
        /// Parent's tid.
        ptid: u32,
    },
    /// `PERF_RECORD_EXIT` (4).
    Exit {
        /// The task's pid.
        pid: u32,
        /// Its parent's pid.
        ppid: u32,
        /// Its tid.
        tid: u32,
        /// Its parent's tid.
        ptid: u32,
    },
    /// `PERF_RECORD_THROTTLE` (5) and `UNTHROTTLE` (6).
    Throttle {
        /// Throttled; otherwise unthrottled.
        on: bool,
        /// The event.
        id: u64,
    },
    /// A type not listed here; its body is skipped.
    Other {
        /// `header.type`.
        record_type: u32,
    },
}

/// `PERF_RECORD_SAMPLE`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// `PERF_SAMPLE_IP`.
    pub ip: Option<u64>,
    /// `PERF_SAMPLE_PERIOD`.
    pub period: Option<u64>,
    /// `PERF_SAMPLE_RAW`, for tracepoints.
    pub raw: Option<Vec<u8>>,
    /// `PERF_SAMPLE_CALLCHAIN` as written, markers included.
    pub chain: Option<Vec<u64>>,
    /// The registers of `PERF_SAMPLE_REGS_USER`, in the order of the bits of the event's mask;
    /// empty where the task had none.
    #[serde(default)]
    pub regs_user: Option<Vec<u64>>,
    /// `PERF_SAMPLE_REGS_ABI_*` of these registers: 1 for 32-bit code, 2 for 64-bit code, 0 for
    /// none.
    #[serde(default)]
    pub user_abi: u64,
    /// What `PERF_SAMPLE_STACK_USER` copied of the user stack, from the stack pointer on.
    #[serde(default)]
    pub stack_user: Option<Vec<u8>>,
    /// perf's own samples have none: by which event a client of tracefs has made the request that this stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<Asker>,
}

impl Sample {
    /// The cookie of a deferred sample, S(c): the entry after the *last* deferred marker.
    /// A chain whose marker has no cookie after it gives `None` (A1 reports it).
    #[must_use]
    pub fn cookie(&self) -> Option<u64> {
        let chain = self.chain.as_deref()?;
        let at = chain.iter().rposition(|&ip| ip == CONTEXT_USER_DEFERRED)?;
        chain.get(at + 1).copied()
    }

    /// The kernel addresses of the chain, innermost first: from the kernel marker to the next.
    #[must_use]
    pub fn kernel_chain(&self) -> &[u64] {
        self.part(CONTEXT_KERNEL)
    }

    /// The inline user addresses of the chain, innermost first.
    #[must_use]
    pub fn user_chain(&self) -> &[u64] {
        self.part(CONTEXT_USER)
    }

    /// Whether the chain has a user part of its own, instead of or besides a cookie.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        let chain = self.chain.as_deref().unwrap_or_default();
        chain.contains(&CONTEXT_USER)
    }

    fn part(&self, marker: u64) -> &[u64] {
        let Some(chain) = self.chain.as_deref() else {
            return &[];
        };
        let Some(at) = chain.iter().position(|&ip| ip == marker) else {
            return &[];
        };
        let rest = chain.get(at + 1..).unwrap_or_default();
        let end = rest
            .iter()
            .position(|&ip| ip >= CONTEXT_MAX)
            .unwrap_or(rest.len());
        rest.get(..end).unwrap_or_default()
    }
}

/// `PERF_RECORD_CALLCHAIN_DEFERRED`: `u64 cookie, u64 nr, u64 ips[nr]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CallchainDeferred {
    /// The cookie of the request it answers.
    pub cookie: u64,
    /// `nr` as written; `ips` may hold fewer where the record was too short for it (A2).
    pub nr: u64,
    /// The chain as written: a `PERF_CONTEXT_USER` marker first where the kernel writes one,
    /// then the frames.
    pub ips: Vec<u64>,
}

impl CallchainDeferred {
    /// The user frames without markers, innermost first.
    #[must_use]
    pub fn frames(&self) -> Vec<u64> {
        self.ips
            .iter()
            .copied()
            .filter(|&ip| ip < CONTEXT_MAX)
            .collect()
    }
}

impl Event {
    /// Where in its ring it ends, counted as `data_head` is.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.size))
    }

    /// The sample with its cookie, if this is an S(c).
    #[must_use]
    pub fn deferred_sample(&self) -> Option<(&Sample, u64)> {
        match &self.kind {
            EventKind::Sample(sample) => Some((sample, sample.cookie()?)),
            _ => None,
        }
    }

    /// The record 22, if this is a D(c).
    #[must_use]
    pub fn deferred_chain(&self) -> Option<&CallchainDeferred> {
        match &self.kind {
            EventKind::CallchainDeferred(d) => Some(d),
            _ => None,
        }
    }

    /// The cookie of an S(c) or D(c).
    #[must_use]
    pub fn cookie(&self) -> Option<u64> {
        match &self.kind {
            EventKind::Sample(sample) => sample.cookie(),
            EventKind::CallchainDeferred(d) => Some(d.cookie),
            _ => None,
        }
    }

    /// The kernel addresses of a sample, innermost first.
    #[must_use]
    pub fn kernel_chain(&self) -> &[u64] {
        match &self.kind {
            EventKind::Sample(sample) => sample.kernel_chain(),
            _ => &[],
        }
    }
}
