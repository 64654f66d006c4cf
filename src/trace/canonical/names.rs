//! Names for what differs from run to run: tasks and cookies.

use std::collections::HashMap;

use unwindlab_abi::message::ThreadAnnounce;

use crate::trace::model::{Event, Trace};

/// The guest's init, which is the agent.
const INIT_PID: u32 = 1;

/// Who a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task<'a> {
    /// A workload thread.
    Workload(&'a ThreadAnnounce),
    /// A task of a workload process whose thread cannot be told: several announced threads come
    /// and go in it.
    SomeWorkload,
    /// The agent's own.
    Agent,
    /// Any other, or not known.
    Other,
}

impl Task<'_> {
    pub(super) const fn is_workload(self) -> bool {
        matches!(self, Self::Workload(_) | Self::SomeWorkload)
    }
}

impl std::fmt::Display for Task<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workload(thread) => write!(f, "t{}", thread.thread),
            Self::SomeWorkload => f.write_str("t?"),
            Self::Agent => f.write_str("agent"),
            Self::Other => f.write_str("other"),
        }
    }
}

/// Finds out who a record speaks of.
#[derive(Debug)]
pub(super) struct Tasks<'a> {
    threads: &'a [ThreadAnnounce],
}

impl<'a> Tasks<'a> {
    pub(super) fn new(trace: &'a Trace) -> Self {
        let threads = &trace.threads;
        Self { threads }
    }

    pub(super) fn of(&self, event: &Event) -> Task<'a> {
        let (Some(pid), Some(tid)) = (event.pid, event.tid) else {
            return Task::Other;
        };
        self.by_id(pid, tid)
    }

    pub(super) fn by_id(&self, pid: u32, tid: u32) -> Task<'a> {
        let of_process = |thread: &&ThreadAnnounce| thread.pid == pid;
        let mut of_process = self.threads.iter().filter(of_process);
        let same = |thread: &ThreadAnnounce| thread.tid == tid && tid != 0;
        if let Some(thread) = of_process.clone().find(|thread| same(thread)) {
            return Task::Workload(thread);
        }
        if tid == pid {
            // The first thread of a workload's process starts and joins the others.
            let agent = pid == INIT_PID || of_process.next().is_some();
            return if agent { Task::Agent } else { Task::Other };
        }
        let mut unnamed = of_process.clone().filter(|thread| thread.tid == 0);
        match (unnamed.next(), unnamed.next()) {
            (Some(thread), None) => Task::Workload(thread),
            (Some(_), Some(_)) => Task::SomeWorkload,
            (None, _) if pid == INIT_PID || of_process.next().is_some() => Task::Agent,
            (None, _) => Task::Other,
        }
    }
}

/// Numbers cookies in order of appearance.
#[derive(Debug, Default)]
pub(super) struct Cookies(HashMap<u64, usize>);

impl Cookies {
    pub(super) fn name(&mut self, cookie: u64) -> String {
        let next = self.0.len();
        format!("c{}", self.0.entry(cookie).or_insert(next))
    }
}
