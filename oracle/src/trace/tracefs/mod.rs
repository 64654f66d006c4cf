//! What instances of tracefs wrote: sub-buffers of `trace_pipe_raw`, and the format files that say what
//! is in an event.
//!
//! [`mapped`] reads buffers from guest memory, [`page`] takes sub-buffers apart, [`format`] reads format files. All take hostile input: whatever does
//! not make sense is a complaint, and the rest of that sub-buffer is not trusted.

mod format;
mod log;
mod mapped;
mod page;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unwindlab_abi::tracefs::{
    CLEARED, MARKER_EVENT, MAY_END, REQUEST_EVENT, STACK_EVENT, SUB_BUFFER, SYSCALL_ENTER,
    SYSCALL_EXIT, SYSCALLS,
};

use format::Format;
pub use log::{TracefsHeld, TracefsLog, TracefsPages};
pub use mapped::Position;
use page::RawEvent;

/// Complaints kept; the rest are counted.
const MAX_COMPLAINTS: usize = 8;

/// All instances, and what they wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TracefsTrace {
    /// The clients: an instance that was removed and made again is another one.
    pub clients: Vec<TracefsClient>,
    /// Their events, by client, then CPU, then position.
    pub events: Vec<TracefsEvent>,
}

/// An instance from when it was made to when it was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TracefsClient {
    /// The instance, and its life where it had several.
    pub name: String,
    /// Events that it could not write, or that were not read. [`u64::MAX`] where nobody knows: it was not read to its end.
    pub lost: u64,
    /// From which time on it may have lost events, of all its buffers; `None` where it lost none, or where that is not known.
    pub full_from: Option<u64>,
    /// Its option was cleared, or it was removed, while the workload ran: what it asked for need not come.
    pub cancels: bool,
    /// It was removed while the workload ran: what it wrote last was not read.
    pub ends_early: bool,
}

impl TracefsClient {
    /// Whether it is registered anew in the same buffer after each [`TracefsKind::Cleared`].
    pub(crate) const fn registers_anew(&self) -> bool {
        self.cancels && !self.ends_early
    }
}

/// One event of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TracefsEvent {
    /// Index of its client.
    pub client: usize,
    /// The CPU that wrote it.
    pub cpu: u32,
    /// Position among the events of this client and CPU.
    pub position: usize,
    /// The buffer, of all that were read.
    #[serde(default)]
    pub buffer: usize,
    /// Where it begins in its buffer, counted as [`Position::offset`] is.
    #[serde(default)]
    pub start: u64,
    /// Its bytes there.
    #[serde(default)]
    pub size: u16,
    /// Nanoseconds of perf's clock.
    pub time: u64,
    /// The task that was current.
    pub tid: u32,
    /// What it says.
    pub kind: TracefsKind,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TracefsKind {
    /// The event before it has asked for a stack.
    Request {
        /// What it got.
        cookie: u64,
        /// That event, if it is one of a system call. Those are written by the task itself, so a request that follows one
        /// in the buffer is its own: whatever asked in an interrupt has an event of its own in between.
        #[serde(default)]
        asker: Option<Asker>,
    },
    /// The stack.
    Stack {
        /// What it was asked for with.
        cookie: u64,
        /// Frames that were unwound.
        nr: u64,
        /// Those that had room.
        frames: Vec<u64>,
    },
    /// Its option is about to be cleared, or its tracing to end: from here on no answer need come.
    MayEnd,
    /// Its option has been cleared and not set again: the client is cancelled, and what it asked for before was written before this.
    Cleared,
    /// Any other event.
    Other {
        /// The ID of its type.
        id: u16,
    },
}

/// An event that is written once in each system call, by its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Asker {
    /// `raw_syscalls:sys_enter`, before the system call.
    SyscallEnter,
    /// `raw_syscalls:sys_exit`, between the system call and the exit work.
    SyscallExit,
}

/// Decodes the sub-buffers, and says what could not be decoded.
#[must_use]
pub fn decode(log: &TracefsLog) -> (TracefsTrace, Vec<String>) {
    let mut complaints = Complaints::default();
    let (clients, numbers) = log.clients();
    let mut trace = TracefsTrace {
        clients,
        events: Vec::new(),
    };
    let Some(formats) = Formats::of(log) else {
        if !log.held.pages.is_empty() {
            complaints.add("tracefs: no usable format files".to_owned());
        }
        return (trace, complaints.finish());
    };
    for (buffer, pages) in log.held.pages.iter().enumerate() {
        let Some(&client) = numbers.get(&(pages.instance, pages.life)) else {
            complaints.add(format!("tracefs: instance {} is not known", pages.instance));
            continue;
        };
        let mut position = 0;
        let mut last = 0;
        let who = || format!("instance {}, CPU {}", pages.instance, pages.cpu);
        if pages.bytes.len() % SUB_BUFFER != 0 {
            complaints.add(format!("{}: a sub-buffer is cut", who()));
        }
        let skips = std::iter::once(pages.skip).chain(std::iter::repeat(0));
        let numbered = { pages.bytes.chunks_exact(SUB_BUFFER) }.zip(pages.first..);
        for ((page, number), skip) in numbered.zip(skips) {
            let (events, wrong) = page::events(page, skip);
            if let Some(wrong) = wrong {
                complaints.add(format!("{}: {wrong}", who()));
            }
            let mut asker = None;
            for raw in events {
                last = raw.time;
                match formats.event(&raw, &mut asker) {
                    Some((tid, kind)) => trace.events.push(TracefsEvent {
                        client,
                        cpu: pages.cpu,
                        position,
                        buffer,
                        start: page::offset(number, raw.start),
                        size: u16::try_from(raw.size).unwrap_or(u16::MAX),
                        time: raw.time,
                        tid,
                        kind,
                    }),
                    None => complaints.add(format!("{}: an event is too short", who())),
                }
                position += 1;
            }
        }
        if let Some(client) = trace.clients.get_mut(client).filter(|_| pages.is_full) {
            // Whatever is dropped comes behind the last event that was not.
            client.full_from = Some(client.full_from.map_or(last, |it| it.min(last)));
        }
    }
    (trace, complaints.finish())
}

/// What the format files say.
struct Formats {
    request: Format,
    stack: Format,
    marker: Format,
    /// The IDs of those that are traced.
    askers: Vec<(u16, Asker)>,
}

impl Formats {
    fn of(log: &TracefsLog) -> Option<Self> {
        let format = |event: &str| {
            let found = log.formats.iter().find(|(name, _)| name == event);
            found.and_then(|(_, text)| Format::parse(text))
        };
        let askers = [
            (SYSCALL_ENTER, Asker::SyscallEnter),
            (SYSCALL_EXIT, Asker::SyscallExit),
        ];
        let asker = |(name, asker)| Some((format(&format!("{SYSCALLS}:{name}"))?.id, asker));
        Some(Self {
            request: format(REQUEST_EVENT)?,
            stack: format(STACK_EVENT)?,
            marker: format(MARKER_EVENT)?,
            askers: askers.into_iter().filter_map(asker).collect(),
        })
    }

    /// The task of an event, and what it says; `None` where it has no room for what its type has. `asker` is who may
    /// ask next: a task, and its event of a system call.
    fn event(
        &self,
        raw: &RawEvent<'_>,
        asker: &mut Option<(u32, Asker)>,
    ) -> Option<(u32, TracefsKind)> {
        let may_ask = asker.take();
        let id = u16::try_from(self.request.value(raw.data, "common_type")?).ok()?;
        let tid = u32::try_from(self.request.value(raw.data, "common_pid")? & 0xffff_ffff).ok()?;
        let kind = if id == self.request.id {
            TracefsKind::Request {
                cookie: self.request.value(raw.data, "cookie")?,
                asker: may_ask.filter(|it| it.0 == tid).map(|it| it.1),
            }
        } else if id == self.stack.id {
            let size = usize::try_from(self.stack.value(raw.data, "size")?).ok()?;
            // A wrong kernel may write it between the two.
            *asker = may_ask;
            TracefsKind::Stack {
                cookie: self.stack.value(raw.data, "cookie")?,
                nr: self.stack.value(raw.data, "nr")?,
                frames: self.stack.words(raw.data, "caller", size)?,
            }
        } else if id == self.marker.id {
            note(self.marker.rest(raw.data, "buf")?).unwrap_or(TracefsKind::Other { id })
        } else {
            let known = self.askers.iter().find(|it| it.0 == id);
            *asker = known.map(|it| (tid, it.1));
            TracefsKind::Other { id }
        };
        Some((tid, kind))
    }
}

/// What a text says that the agent has written.
fn note(text: &[u8]) -> Option<TracefsKind> {
    let notes = [
        (MAY_END, TracefsKind::MayEnd),
        (CLEARED, TracefsKind::Cleared),
    ];
    let mut notes = notes.into_iter();
    notes.find_map(|(says, kind)| text.starts_with(says.as_bytes()).then_some(kind))
}

/// What could not be decoded, in words.
#[derive(Debug, Default)]
struct Complaints {
    kept: Vec<String>,
    more: usize,
}

impl Complaints {
    fn add(&mut self, what: String) {
        match self.kept.len() < MAX_COMPLAINTS {
            true => self.kept.push(what),
            false => self.more += 1,
        }
    }

    fn finish(mut self) -> Vec<String> {
        if self.more > 0 {
            self.kept
                .push(format!("tracefs: {} more like these", self.more));
        }
        self.kept
    }
}
