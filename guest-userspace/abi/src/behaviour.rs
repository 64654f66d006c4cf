//! What a process of unwinding in user mode saw of the kernel: what its system calls returned, the signals that it
//! handled, and how it ended. A process that has not opted in, its twin, does the same.

use serde::{Deserialize, Serialize};

/// What one process saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Behaviour {
    /// The workload thread.
    pub thread: u32,
    /// It was to opt in. Otherwise it is the twin of the thread before it.
    pub opts_in: bool,
    /// Its system calls, in order.
    pub calls: Vec<SeenCall>,
    /// Its status, as `wait` reports it.
    pub end: i32,
}

/// A system call, as the process saw it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SeenCall {
    /// Its number.
    pub number: u32,
    /// What it returned; 1 in place of the id of a child.
    pub answer: i64,
    /// What it returns where nothing disturbs it, if that is known by construction.
    pub due: Option<i64>,
    /// Signals of its own that the process handled meanwhile.
    pub signals: u32,
    /// Signals with a nonce that were handled meanwhile.
    pub nonces: u32,
}

/// Most system calls that a process notes.
pub const SEEN_CALLS: usize = 256;

/// A system call that waits for a time of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// `nanosleep`.
    Sleep,
    /// `futex` with a timeout.
    Futex,
    /// `epoll_wait` with a timeout.
    Epoll,
    /// `poll` with a timeout.
    Poll,
    /// `read` of a timer, which `timerfd_settime` has set before.
    Timer,
}

/// Those of [`crate::WorkloadKind::Waits`], in the order of the iterations.
pub const WAITS: [Wait; 5] = [
    Wait::Sleep,
    Wait::Futex,
    Wait::Epoll,
    Wait::Poll,
    Wait::Timer,
];
