//! The stays of the workload's thread in the kernel, as the reference shows them.

use std::collections::BTreeMap;

use super::factors::{Factor, Setup};
use super::session::name;
use unwindlab_oracle::trace::{Event, EventKind, Trace};

// x86-64 numbers (arch/x86/entry/syscalls/syscall_64.tbl).
const CLOSE: u64 = 3;
const MUNMAP: u64 = 11;
const IOCTL: u64 = 16;
const READ: u64 = 0;
const FORK: u64 = 57;
const EXECVE: u64 = 59;
const EXIT: u64 = 60;
const GETPPID: u64 = 110;
const EXIT_GROUP: u64 = 231;

/// Where in a stay something happens, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// At `raw_syscalls:sys_enter`.
    Enter,
    /// In the system call.
    Body,
    /// At `raw_syscalls:sys_exit`.
    Exit,
    /// In the task work.
    Return,
}

/// One stay in the kernel.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// The task.
    pub tid: u32,
    /// It is the call that each iteration makes.
    pub is_workload: bool,
    /// Its task has called `execve`, in an earlier stay.
    pub after_exec: bool,
    /// The system call.
    pub number: u64,
    /// It has a marker of its beginning.
    pub has_enter: bool,
    /// It has a marker of its end.
    pub has_exit: bool,
    /// Cookies of the records 22 that the reference got in it.
    pub cookies: Vec<u64>,
    /// The frames of the first of these.
    pub frames: Vec<u64>,
}

impl Entry {
    /// It makes its task another program.
    pub fn executes(&self) -> bool {
        self.number == EXECVE
    }

    /// The task's own end.
    pub fn is_exit(&self) -> bool {
        [EXIT, EXIT_GROUP].contains(&self.number)
    }
}

/// A marker of another task, and where in the stays of the thread it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Foreign {
    /// [`Place::Enter`] or [`Place::Exit`].
    pub marks: Place,
    /// The thread's last stay before it.
    pub after: usize,
    /// The last thing that was seen of that stay: [`Place::Enter`], [`Place::Exit`], or
    /// [`Place::Return`] for a record 22.
    pub place: Place,
}

/// All stays of the thread, and of the processes that it starts: those of a task one after the other.
#[derive(Debug)]
pub(super) struct Entries {
    /// The thread.
    pub thread: u32,
    pub list: Vec<Entry>,
    /// The thread was in the kernel while the agent still enabled events, one after the other: which
    /// of them were on then is not known.
    pub too_early: bool,
    /// What other tasks do meanwhile, in order.
    pub foreign: Vec<Foreign>,
    /// That of the operation.
    pub operation: Option<usize>,
}

impl Entries {
    /// Reads the rings of the reference; none if records of them were lost.
    pub fn of(trace: &Trace, setup: &Setup) -> Option<Self> {
        let thread = trace.threads.first()?.tid;
        let rings: Vec<u32> = { trace.session.iter() }
            .filter(|open| open.spec == 0)
            .map(|open| open.ring)
            .collect();
        let is_workload = match setup.level(Factor::Workload) {
            "fork" => FORK,
            "exec" => EXECVE,
            "moved" => READ,
            _ => GETPPID,
        };
        let starts = [FORK, EXECVE].contains(&is_workload);
        let mut tasks: BTreeMap<u32, Vec<Entry>> = BTreeMap::from([(thread, Vec::new())]);
        let mut foreign = Vec::new();
        let mut too_early = false;
        for event in { trace.events.iter() }.filter(|event| rings.contains(&event.ring)) {
            match event.kind {
                EventKind::Lost { lost: 1.., .. } | EventKind::LostSamples { lost: 1.. } => {
                    return None;
                }
                EventKind::Fork { tid, ptid, .. } if ptid == thread && starts => {
                    tasks.entry(tid).or_default();
                    continue;
                }
                _ => {}
            }
            match event.tid.and_then(|tid| tasks.get_mut(&tid)) {
                Some(list) => add(list, trace, event, is_workload),
                None => {
                    let list = tasks.get(&thread).map_or(&[][..], Vec::as_slice);
                    too_early |= !list.is_empty() && !begun(&tasks) && enables(trace, event);
                    foreign.extend(of_another(list, trace, event));
                }
            }
        }
        let operation = operation(setup, tasks.get(&thread)?);
        let needed = !setup.is(Factor::Operation, "none");
        (operation.is_some() || !needed).then_some(Self {
            thread,
            // The thread comes first: it is the oldest.
            list: tasks.into_values().flatten().collect(),
            too_early,
            foreign,
            operation,
        })
    }

    /// Whether a task is the thread or one that it started.
    pub fn knows(&self, tid: u32) -> bool {
        tid == self.thread || self.list.iter().any(|entry| entry.tid == tid)
    }

    /// Iterations of the workload.
    pub fn of_workload(&self) -> u64 {
        let calls = self.list.iter();
        let calls = calls.filter(|entry| entry.is_workload && entry.has_enter);
        calls.count() as u64
    }
}

/// The name of the event that wrote a record.
fn writer<'t>(trace: &'t Trace, event: &Event) -> &'t str {
    let open = event.event.and_then(|at| trace.session.get(at));
    let spec = open.and_then(|open| {
        let specs = &trace.tracing.as_ref()?.events;
        specs.get(usize::try_from(open.spec).ok()?)
    });
    spec.map_or("", |spec| spec.name.as_str())
}

/// Whether the workload has made its call: the gate is open.
fn begun(tasks: &BTreeMap<u32, Vec<Entry>>) -> bool {
    tasks.values().flatten().any(|entry| entry.is_workload)
}

/// Whether the agent enables an event, or did just now, if the gate is not open yet: it does so by
/// `ioctl`, and nothing else. A thread that has stays by then is late: it is still on its way to the
/// gate, whose `futex` is seen by the events that are on.
fn enables(trace: &Trace, event: &Event) -> bool {
    let EventKind::Sample(sample) = &event.kind else {
        return false;
    };
    let marker = [name::ENTER, name::EXIT].contains(&writer(trace, event));
    marker && sample.raw.as_deref().and_then(number) == Some(IOCTL)
}

/// A marker of another task, after these stays of the thread.
fn of_another(list: &[Entry], trace: &Trace, event: &Event) -> Option<Foreign> {
    let marks = match (&event.kind, writer(trace, event)) {
        (EventKind::Sample(_), name::ENTER) => Place::Enter,
        (EventKind::Sample(_), name::EXIT) => Place::Exit,
        _ => return None,
    };
    let last = list.last()?;
    Some(Foreign {
        marks,
        after: list.len() - 1,
        place: match (last.cookies.is_empty(), last.has_exit) {
            (false, _) => Place::Return,
            (true, true) => Place::Exit,
            (true, false) => Place::Enter,
        },
    })
}

fn add(list: &mut Vec<Entry>, trace: &Trace, event: &Event, workload: u64) {
    let entry = |raw: Option<&[u8]>, list: &[Entry]| {
        let number = raw.and_then(number).unwrap_or(u64::MAX);
        let has_executed = |it: &Entry| it.after_exec || it.number == EXECVE;
        Entry {
            tid: event.tid.unwrap_or_default(),
            number,
            is_workload: number == workload,
            after_exec: list.last().is_some_and(has_executed),
            ..Entry::default()
        }
    };
    match (&event.kind, writer(trace, event)) {
        (EventKind::Sample(sample), name::ENTER) => list.push(Entry {
            has_enter: true,
            ..entry(sample.raw.as_deref(), list)
        }),
        (EventKind::Sample(sample), name::EXIT) => {
            if list.last().is_none_or(|entry| entry.has_exit) {
                list.push(entry(sample.raw.as_deref(), list));
            }
            if let Some(entry) = list.last_mut() {
                entry.has_exit = true;
            }
        }
        (EventKind::CallchainDeferred(chain), name::REFERENCE) => {
            if let Some(entry) = list.last_mut() {
                if entry.cookies.is_empty() {
                    entry.frames.clone_from(&chain.ips);
                }
                entry.cookies.push(chain.cookie);
            }
        }
        _ => {}
    }
}

/// `id` of both tracepoints, behind the common fields of 8 bytes.
fn number(raw: &[u8]) -> Option<u64> {
    let bytes = raw.get(8..16)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// The operation: the first of its system calls after the second iteration.
fn operation(setup: &Setup, list: &[Entry]) -> Option<usize> {
    let level = setup.level(Factor::Operation);
    let wanted = match level.split_once('-')?.0 {
        "close" => CLOSE,
        "unmap" => MUNMAP,
        _ => IOCTL,
    };
    let second = list.iter().enumerate().filter(|(_, it)| it.is_workload);
    let (second, _) = { second }.nth(1)?;
    let rest = list.iter().enumerate().skip(second + 1);
    { rest }
        .find(|(_, it)| it.number == wanted)
        .map(|(at, _)| at)
}
