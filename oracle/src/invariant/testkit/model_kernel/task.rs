//! A task of a model kernel.

use super::kinds::Source;
use crate::invariant::testkit::entry_text::{Far, Via};

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    User,
    /// In the body of a system call, or of an interrupt.
    Body(Via),
    /// Behind `sys_exit`; the task work has not run.
    ExitWork,
    /// The walk is done, the callback comes.
    Walked {
        cookie: u64,
        asked: [bool; 2],
    },
    /// The task work has run.
    Answered,
    /// Behind the reset.
    Reset,
    /// `PF_EXITING` is set, before the exit record or after it.
    Exiting {
        recorded: bool,
    },
    Dead,
}

#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) tid: u32,
    pub(super) thread: u32,
    pub(super) at: At,
    pub(super) ip: u64,
    pub(super) iteration: u64,
    pub(super) id: u64,
    pub(super) pending: bool,
    /// By client.
    pub(super) requested: [bool; 2],
    pub(super) completed: [bool; 2],
    pub(super) self_ipi: bool,
    /// The frames that a walk left behind.
    pub(super) cache: Option<Vec<u64>>,
    /// A sleeper has no CPU.
    pub(super) asleep: bool,
    /// Cookies it was given.
    pub(super) births: u32,
    /// How it came into the kernel.
    pub(super) via: Via,
    /// Of an entry that is about to begin, which request its handler makes.
    pub(super) raises: Option<Source>,
    /// User instructions since the request that pends.
    pub(super) went_on: u32,
}

impl Task {
    pub(super) fn new(tid: u32, thread: u32) -> Self {
        Self {
            tid,
            thread,
            at: At::User,
            ip: 0x1000,
            iteration: 1,
            id: 0,
            pending: false,
            requested: [false; 2],
            completed: [false; 2],
            self_ipi: false,
            cache: None,
            asleep: false,
            births: 0,
            via: Via::Syscall,
            raises: None,
            went_on: 0,
        }
    }

    /// How far its entry is, for the kernel chain of a sample.
    pub(super) fn far(&self) -> Far {
        match self.at {
            At::ExitWork => Far::After,
            At::Walked { .. } => Far::Work,
            At::Answered | At::Reset => Far::Late,
            _ => Far::Body,
        }
    }
}
