//! The stays of the workload's thread in the kernel, as the reference shows them.

use super::factors::{Factor, Setup};
use super::session::name;
use unwindlab_oracle::trace::{Event, EventKind, Trace};

// x86-64 numbers (arch/x86/entry/syscalls/syscall_64.tbl).
const CLOSE: u64 = 3;
const MUNMAP: u64 = 11;
const IOCTL: u64 = 16;
const EXIT: u64 = 60;
const GETPPID: u64 = 110;

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
    /// The system call.
    pub number: u64,
    /// It has a marker of its beginning.
    pub has_enter: bool,
    /// It has a marker of its end.
    pub has_exit: bool,
    /// Cookies of the records 22 that the reference got in it.
    pub cookies: Vec<u64>,
}

impl Entry {
    /// The call that each iteration makes.
    pub fn is_workload(&self) -> bool {
        self.number == GETPPID
    }

    /// The thread's own end.
    pub fn is_exit(&self) -> bool {
        self.number == EXIT
    }
}

/// All stays of the thread.
#[derive(Debug)]
pub(super) struct Entries {
    pub tid: u32,
    pub list: Vec<Entry>,
    /// That of the operation.
    pub operation: Option<usize>,
}

impl Entries {
    /// Reads the ring of the reference; none if records of it were lost.
    pub fn of(trace: &Trace, setup: &Setup) -> Option<Self> {
        let tid = trace.threads.first()?.tid;
        let ring = trace.session.iter().find(|open| open.spec == 0)?.ring;
        let mut list: Vec<Entry> = Vec::new();
        for event in trace.events.iter().filter(|event| event.ring == ring) {
            if let EventKind::Lost { lost: 1.., .. } | EventKind::LostSamples { lost: 1.. } =
                event.kind
            {
                return None;
            }
            if event.tid == Some(tid) {
                add(&mut list, trace, event);
            }
        }
        let operation = operation(setup, &list);
        let needed = !setup.is(Factor::Operation, "none");
        (operation.is_some() || !needed).then_some(Self {
            tid,
            list,
            operation,
        })
    }

    /// Iterations of the workload.
    pub fn of_workload(&self) -> u64 {
        let calls = self.list.iter().filter(|entry| entry.is_workload());
        calls.count() as u64
    }
}

fn add(list: &mut Vec<Entry>, trace: &Trace, event: &Event) {
    let open = event.event.and_then(|at| trace.session.get(at));
    let spec = open.and_then(|open| {
        let specs = &trace.tracing.as_ref()?.events;
        specs.get(usize::try_from(open.spec).ok()?)
    });
    let name = spec.map_or("", |spec| spec.name.as_str());
    match (&event.kind, name) {
        (EventKind::Sample(sample), name::ENTER) => list.push(Entry {
            number: sample.raw.as_deref().and_then(number).unwrap_or(u64::MAX),
            has_enter: true,
            ..Entry::default()
        }),
        (EventKind::Sample(sample), name::EXIT) => {
            if list.last().is_none_or(|entry| entry.has_exit) {
                list.push(Entry {
                    number: sample.raw.as_deref().and_then(number).unwrap_or(u64::MAX),
                    ..Entry::default()
                });
            }
            if let Some(entry) = list.last_mut() {
                entry.has_exit = true;
            }
        }
        (EventKind::CallchainDeferred(chain), name::REFERENCE) => {
            if let Some(entry) = list.last_mut() {
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
    let second = list.iter().enumerate().filter(|(_, it)| it.is_workload());
    let (second, _) = { second }.nth(1)?;
    let rest = list.iter().enumerate().skip(second + 1);
    { rest }
        .find(|(_, it)| it.number == wanted)
        .map(|(at, _)| at)
}
