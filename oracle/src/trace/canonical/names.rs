//! Names for what differs from run to run: tasks and cookies.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use unwindlab_abi::message::ThreadAnnounce;

use crate::trace::model::{Event, EventKind, Trace};

/// The guest's init, which is the agent.
const INIT_PID: u32 = 1;

/// What a task is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskName<'a> {
    /// A workload thread.
    Workload(&'a ThreadAnnounce),
    /// A task of a workload; which announced thread it is, is not known.
    SomeWorkload,
    /// The agent's own.
    Agent,
    /// Any other, or unknown.
    Other,
}

impl TaskName<'_> {
    pub(super) const fn is_workload(self) -> bool {
        matches!(self, Self::Workload(_) | Self::SomeWorkload)
    }
}

impl std::fmt::Display for TaskName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workload(thread) => write!(f, "t{}", thread.thread),
            Self::SomeWorkload => f.write_str("t?"),
            Self::Agent => f.write_str("agent"),
            Self::Other => f.write_str("other"),
        }
    }
}

/// Names the task that a record is about.
///
/// Threads of the `exit` workload are not announced by tid: each announced one is a starter that
/// starts, in its own process, one short-lived thread after the other. Their FORK records name
/// their starter, and starters were made in the order of their index.
#[derive(Debug)]
pub(super) struct TaskNames<'a> {
    threads: &'a [ThreadAnnounce],
    /// Starters, by (pid, tid).
    starters: BTreeSet<(u32, u32)>,
    /// The thread that a task started within the trace belongs to, by (pid, tid). `None`: to more
    /// than one, because the kernel reused the tid.
    started: HashMap<(u32, u32), Option<&'a ThreadAnnounce>>,
}

impl<'a> TaskNames<'a> {
    pub(super) fn new(trace: &'a Trace) -> Self {
        let threads = trace.threads.as_slice();
        let is_workload = |id: u32| threads.iter().any(|t| t.pid == id && t.tid == 0);
        let forks = trace.events.iter().filter_map(|event| match event.kind {
            EventKind::Fork { pid, tid, ptid, .. } if is_workload(pid) => Some((pid, tid, ptid)),
            _ => None,
        });
        let starters: BTreeSet<_> = forks.clone().map(|(pid, _, ptid)| (pid, ptid)).collect();
        let mut tasks = Self {
            threads,
            starters,
            started: HashMap::new(),
        };
        let of_starters = tasks.of_starters();
        for (pid, tid, ptid) in forks {
            let thread = of_starters.get(&(pid, ptid)).copied();
            let known = tasks.started.entry((pid, tid)).or_insert(thread);
            if *known != thread {
                *known = None;
            }
        }
        tasks
    }

    pub(super) fn of(&self, event: &Event) -> TaskName<'a> {
        let (Some(pid), Some(tid)) = (event.pid, event.tid) else {
            return TaskName::Other;
        };
        self.by_id(pid, tid)
    }

    pub(super) fn by_id(&self, pid: u32, tid: u32) -> TaskName<'a> {
        let announced = |thread: &&ThreadAnnounce| (thread.pid, thread.tid) == (pid, tid);
        if let Some(thread) = self.threads.iter().find(announced).filter(|_| tid != 0) {
            return TaskName::Workload(thread);
        }
        match self.started.get(&(pid, tid)) {
            Some(Some(thread)) => return TaskName::Workload(thread),
            Some(None) => return TaskName::SomeWorkload,
            None => {}
        }
        let is_starter = tid == pid || self.starters.contains(&(pid, tid));
        let mut unnamed = self.unnamed(pid).filter(|_| !is_starter);
        match (unnamed.next(), unnamed.next()) {
            // Its FORK record is lost.
            (Some(thread), None) => TaskName::Workload(thread),
            (Some(_), Some(_)) => TaskName::SomeWorkload,
            (None, _) if pid == INIT_PID || self.threads.iter().any(|t| t.pid == pid) => {
                TaskName::Agent
            }
            (None, _) => TaskName::Other,
        }
    }

    /// The announced thread of each starter, in processes of which all starters have been seen at work.
    fn of_starters(&self) -> HashMap<(u32, u32), &'a ThreadAnnounce> {
        let mut processes: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for &(pid, tid) in &self.starters {
            processes.entry(pid).or_default().push((pid, tid));
        }
        processes.retain(|&pid, starters| starters.len() == self.unnamed(pid).count());
        let named = processes
            .into_iter()
            .flat_map(|(pid, starters)| starters.into_iter().zip(self.unnamed(pid)));
        named.collect()
    }

    /// Announced threads of a process that have no tid of their own.
    fn unnamed(&self, pid: u32) -> impl Iterator<Item = &'a ThreadAnnounce> {
        let of_process = move |thread: &&ThreadAnnounce| thread.pid == pid && thread.tid == 0;
        self.threads.iter().filter(of_process)
    }
}

/// Numbers cookies in order of appearance.
#[derive(Debug, Default)]
pub(super) struct CookieNames(HashMap<u64, usize>);

impl CookieNames {
    pub(super) fn name(&mut self, cookie: u64) -> String {
        let next = self.0.len();
        format!("c{}", self.0.entry(cookie).or_insert(next))
    }
}
