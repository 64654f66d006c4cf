//! The perf events on every CPU and their ring buffers.

pub mod attr;
mod dynamic;
mod operation;
pub mod optimized;
mod source;
mod sys;

pub use sys::RingMapping;
pub(crate) use sys::{FD_CLOEXEC, perf_event_open};

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use unwindlab_abi::message::EventAnnounce;
use unwindlab_abi::{EventSource, EventSpec, EventTarget, Observation, RingUse, Tracing};

use crate::system;
use crate::user_mode::UserModeError;
use attr::{COUNT_SW_DUMMY, PerfEventAttr, TYPE_BREAKPOINT, TYPE_SOFTWARE, flag};

/// Why the perf events cannot be opened or switched.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum PerfError {
    /// The kernel lacks deferred unwinding: it refuses the attr's bits.
    #[error(
        "this kernel's perf has no deferred user unwinding \
         (perf_event_open refuses defer_callchain and defer_output: {0})"
    )]
    NoDeferred(Errno),
    /// The kernel lacks a tracepoint.
    #[error("this kernel has no tracepoint {system}:{name}")]
    NoTracepoint { system: String, name: String },
    /// The kernel lacks probes of a kind.
    #[error("this kernel has no probes of the kind of the {place}")]
    NoProbes { place: String },
    /// The kernel cannot be probed there.
    #[error("this kernel takes no {place}: {source}{why}")]
    Probe {
        place: String,
        /// The kernel's own words.
        why: String,
        source: std::io::Error,
    },
    /// The kernel never replaces the breakpoint of a kprobe by a jump.
    #[error("this kernel optimises no kprobes (no sysctl {})", optimized::SYSCTL)]
    NoOptimizedProbes,
    /// The kernel did not replace the breakpoint of this kprobe.
    #[error(
        "this kernel did not optimise the kprobe on {place} in {} s: it takes an instruction, and \
         five bytes from it on, that no jump leads into",
        optimized::PATIENCE.as_secs()
    )]
    NotOptimized { place: String },
    /// It is not known whether a kprobe is optimised.
    #[error("cannot tell whether a kprobe is optimised: {0}")]
    Kprobes(#[source] std::io::Error),
    /// The kernel does not understand the filter, or the event takes none.
    #[error(
        "event `{name}`: this kernel refuses the filter `{filter}` ({errno}): expected a condition \
         on the event's own fields, for an event that is a tracepoint or a probe"
    )]
    Filter {
        name: String,
        filter: String,
        errno: Errno,
    },
    /// The kernel does not take a breakpoint.
    #[error(
        "event `{name}`: this kernel takes no breakpoint at {address:#x} ({errno}): a CPU has four, \
         at addresses that are multiples of their length, and none where kprobes are not allowed"
    )]
    Breakpoint {
        name: String,
        address: u64,
        errno: Errno,
    },
    /// No PMU counts the event.
    #[error("nothing counts event `{name}` on this machine (perf_event_open: {errno})")]
    NoCounter { name: String, errno: Errno },
    /// Even a dummy event cannot be opened.
    #[error("perf_event_open of a dummy event on CPU 0: {0}")]
    NoPerf(Errno),
    /// The id of a tracepoint cannot be read.
    #[error("cannot read the id of tracepoint {system}:{name}: {source}")]
    Tracepoint {
        system: String,
        name: String,
        source: std::io::Error,
    },
    /// A system call about an event failed.
    #[error("event `{name}` on CPU {cpu}: {what}: {errno}")]
    Event {
        name: String,
        cpu: u32,
        what: &'static str,
        errno: Errno,
    },
    /// A cgroup cannot be made.
    #[error("no cgroup for event `{name}`: {source}")]
    Cgroup {
        name: String,
        source: std::io::Error,
    },
    /// The plan's operation is on an event that it cannot be done to.
    #[error("no operation on event {0}: it was not opened on the first CPU, or has no such ring")]
    Operation(u32),
    /// `output_to` names no earlier event with a ring of its own.
    #[error("event `{name}` wants the ring of event {target}, which comes later or has none")]
    OutputTo { name: String, target: u32 },
}

impl PerfError {
    /// Whether the kernel or machine lacks something, as opposed to something going wrong.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::NoDeferred(_)
                | Self::NoTracepoint { .. }
                | Self::NoProbes { .. }
                | Self::Probe { .. }
                | Self::NoOptimizedProbes
                | Self::NotOptimized { .. }
                | Self::NoCounter { .. }
        )
    }
}

const NO_RING: &str = "cannot map its ring (a power of two of pages, and enough memory?)";

/// Checks that the kernel accepts the attr bits that the plan needs.
///
/// # Errors
/// [`PerfError::NoDeferred`] if not, [`PerfError::NoPerf`] if perf does not work at all.
pub fn probe(tracing: &Tracing) -> Result<(), PerfError> {
    let mut attr = PerfEventAttr::quiet(TYPE_SOFTWARE, COUNT_SW_DUMMY);
    sys::open(&attr, 0).map_err(PerfError::NoPerf)?;
    let wants = |spec: &EventSpec| spec.defer_callchain || spec.defer_output;
    if tracing.events.iter().any(wants) {
        attr.flags |= flag::DEFER_CALLCHAIN | flag::DEFER_OUTPUT;
        match sys::open(&attr, 0) {
            Ok(_) => {}
            Err(errno @ (Errno::INVAL | Errno::TOOBIG)) => {
                return Err(PerfError::NoDeferred(errno));
            }
            Err(errno) => return Err(PerfError::NoPerf(errno)),
        }
    }
    Ok(())
}

/// One open event.
#[derive(Debug)]
struct Event {
    /// None: the workload closes it.
    fd: Option<OwnedFd>,
    name: String,
    spec: u32,
    cpu: u32,
    /// Receives record 22 and requests nothing.
    tracking: bool,
    /// It samples a tracepoint.
    tracepoint: bool,
    /// Its samples have deferred chains.
    deferred: bool,
    /// Its ring, if it is not read.
    unread: Option<RingMapping>,
}

/// A ring buffer and the CPU whose events write to it.
#[derive(Debug)]
pub struct Ring {
    /// Where it is mapped.
    pub mapping: RingMapping,
    /// The CPU.
    pub cpu: u32,
    /// Its events have `write_backward`.
    pub backward: bool,
}

/// A spec, its index in the plan, and its attr.
type Resolved = (u32, EventSpec, PerfEventAttr);

/// All events of a plan on all CPUs, and the rings they write to. Dropping it closes them.
#[derive(Debug, Default)]
pub struct PerfSession {
    events: Vec<Event>,
    rings: Vec<Ring>,
    announces: Vec<EventAnnounce>,
    refused: Vec<Observation>,
    /// By spec and CPU: the event's place in `events`, and its ring if it is its own.
    places: BTreeMap<(u32, u32), (usize, Option<u32>)>,
    /// Those of workload threads, which do not exist yet.
    later: Vec<Resolved>,
    cpus: Vec<u32>,
    ring_pages: u32,
}

impl PerfSession {
    /// Opens everything but the events of workload threads, disabled. `tracefs` is where tracefs is
    /// mounted.
    ///
    /// # Errors
    /// [`PerfError`].
    pub fn open(tracing: &Tracing, cpus: &[u32], tracefs: &Path) -> Result<Self, PerfError> {
        optimized::prepare(tracing)?;
        let resolved = (0..).zip(&tracing.events).map(|(index, spec)| {
            let (kind, config) = source::resolve(&spec.source, index, tracefs)?;
            let attr = PerfEventAttr::from_spec(spec, kind, config);
            Ok((index, spec.clone(), attr))
        });
        let resolved = resolved.collect::<Result<Vec<Resolved>, PerfError>>()?;
        let of_thread = |(_, spec, _): &Resolved| {
            matches!(spec.details.target, EventTarget::Thread(_))
                || matches!(spec.source, EventSource::TaskField { .. })
        };
        let (later, now) = resolved.into_iter().partition(of_thread);
        let mut session = Self {
            later,
            cpus: cpus.to_vec(),
            ring_pages: tracing.ring_pages,
            ..Self::default()
        };
        session.open_all(&now, &[])?;
        optimized::wait(tracing)?;
        Ok(session)
    }

    /// Opens the events of workload threads, whose ids these are, disabled: those of one thread,
    /// and those on a field of each thread's `task_struct`, if these addresses are known.
    ///
    /// # Errors
    /// [`PerfError`].
    pub fn open_of_threads(&mut self, tids: &[u32], tasks: &[u64]) -> Result<(), PerfError> {
        let mut later = Vec::new();
        for (index, spec, attr) in std::mem::take(&mut self.later) {
            let EventSource::TaskField { offset, watch } = spec.source else {
                later.push((index, spec, attr));
                continue;
            };
            for (thread, task) in (0..).zip(tasks) {
                let (mut spec, mut attr) = (spec.clone(), attr.clone());
                spec.details.target = EventTarget::Thread(thread);
                attr.break_at(task.wrapping_add(offset), watch);
                later.push((index, spec, attr));
            }
        }
        self.open_all(&later, tids)
    }

    fn open_all(&mut self, resolved: &[Resolved], tids: &[u32]) -> Result<(), PerfError> {
        for cpu in self.cpus.clone() {
            for event in resolved {
                self.open_on(cpu, event, tids)?;
            }
        }
        Ok(())
    }

    /// The events that `perf_event_open` refused, which the plan allows.
    #[must_use]
    pub fn refused(&self) -> &[Observation] {
        &self.refused
    }

    /// Has the kernel run a BPF program at each occurrence of the first sampling event that is a
    /// tracepoint, of those with deferred chains if there are such, on every CPU: the program belongs to the tracepoint.
    ///
    /// # Errors
    /// [`UserModeError`].
    pub fn attach(&self, program: BorrowedFd<'_>) -> Result<(), UserModeError> {
        let tracepoints = || self.events.iter().filter(|it| it.tracepoint);
        let event = { tracepoints().find(|it| it.deferred) }.or_else(|| tracepoints().next());
        let fd = event.and_then(|it| it.fd.as_ref());
        let fd = fd.ok_or(UserModeError::NoEvent)?;
        sys::set_bpf(fd.as_fd(), program).map_err(UserModeError::Attach)
    }

    /// The announcements of the events.
    #[must_use]
    pub fn announces(&self) -> &[EventAnnounce] {
        &self.announces
    }

    /// The rings, by number.
    #[must_use]
    pub fn rings(&self) -> &[Ring] {
        &self.rings
    }

    /// Enables the events, first those that only receive record 22, so that each request has a
    /// receiver.
    ///
    /// # Errors
    /// [`PerfError::Event`].
    pub fn enable(&self) -> Result<(), PerfError> {
        self.switch([true, false], "cannot enable", sys::enable)
    }

    /// Disables the events, last those that only receive record 22.
    ///
    /// # Errors
    /// [`PerfError::Event`].
    pub fn disable(&self) -> Result<(), PerfError> {
        self.switch([false, true], "cannot disable", sys::disable)
    }

    fn switch(
        &self,
        order: [bool; 2],
        what: &'static str,
        call: fn(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(), PerfError> {
        for tracking in order {
            for event in self.events.iter().filter(|e| e.tracking == tracking) {
                // What the workload closes is not there at the end.
                let Some(fd) = &event.fd else { continue };
                call(fd.as_fd()).map_err(|errno| event.failed(what, errno))?;
            }
        }
        Ok(())
    }

    fn open_on(
        &mut self,
        cpu: u32,
        (index, spec, attr): &Resolved,
        tids: &[u32],
    ) -> Result<(), PerfError> {
        let failed = |what| {
            move |errno| PerfError::Event {
                name: spec.name.clone(),
                cpu,
                what,
                errno,
            }
        };
        let shared = match spec.output_to {
            Some(target) => Some(self.ring_of(target, cpu).ok_or_else(|| {
                let name = spec.name.clone();
                PerfError::OutputTo { name, target }
            })?),
            None => None,
        };
        let at_open = shared.filter(|_| spec.details.ring == RingUse::SharedAtOpen);
        let fd = match open_event(spec, attr, cpu, tids, at_open.map(|(fd, _)| fd))? {
            Ok(fd) => fd,
            Err(errno) if spec.details.may_be_refused => {
                self.refused.push(Observation::Refused {
                    spec: *index,
                    cpu,
                    errno: errno.raw_os_error(),
                });
                return Ok(());
            }
            Err(errno) if attr.kind == TYPE_BREAKPOINT => {
                return Err(PerfError::Breakpoint {
                    name: spec.name.clone(),
                    address: attr.config1,
                    errno,
                });
            }
            // No PMU, or one that cannot interrupt.
            Err(errno @ (Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP)) => {
                let name = spec.name.clone();
                return Err(PerfError::NoCounter { name, errno });
            }
            Err(errno) => return Err(failed("perf_event_open")(errno)),
        };
        if let Some(filter) = &spec.filter {
            set_filter(fd.as_fd(), spec, filter)?;
        }
        let (mut own, mut unread) = (None, None);
        let ring = match shared {
            Some((event, ring)) => {
                if at_open.is_none() {
                    sys::set_output(fd.as_fd(), event).map_err(failed("cannot share a ring"))?;
                }
                Some(ring)
            }
            None => {
                let writable = spec.details.ring != RingUse::Overwritten;
                let pages = spec.details.ring_pages.unwrap_or(self.ring_pages);
                let mapping = RingMapping::new(fd.as_fd(), pages, writable);
                let mapping = mapping.map_err(failed(NO_RING))?;
                if spec.details.ring == RingUse::Unread {
                    unread = Some(mapping);
                } else {
                    own = Some(u32::try_from(self.rings.len()).unwrap_or(u32::MAX));
                    self.rings.push(Ring {
                        mapping,
                        cpu,
                        backward: attr.flags & unwindlab_abi::attr::flag::WRITE_BACKWARD != 0,
                    });
                }
                own
            }
        };
        if let Some(ring) = ring {
            let id = sys::id(fd.as_fd()).map_err(failed("cannot read its id"))?;
            self.announces.push(EventAnnounce {
                spec: *index,
                cpu,
                id,
                ring,
            });
        }
        self.places.insert((*index, cpu), (self.events.len(), own));
        self.events.push(Event {
            fd: Some(fd),
            name: spec.name.clone(),
            spec: *index,
            cpu,
            tracking: spec.defer_output && !spec.defer_callchain,
            tracepoint: spec.sample_period > 0
                && matches!(spec.source, EventSource::Tracepoint { .. }),
            deferred: spec.defer_callchain,
            unread,
        });
        Ok(())
    }

    fn ring_of(&self, target: u32, cpu: u32) -> Option<(BorrowedFd<'_>, u32)> {
        let &(event, ring) = self.places.get(&(target, cpu))?;
        Some((self.events.get(event)?.fd.as_ref()?.as_fd(), ring?))
    }
}

impl Event {
    fn failed(&self, what: &'static str, errno: Errno) -> PerfError {
        PerfError::Event {
            name: self.name.clone(),
            cpu: self.cpu,
            what,
            errno,
        }
    }
}

/// Opens one event for whom its spec says; the inner result is the kernel's.
fn open_event(
    spec: &EventSpec,
    attr: &PerfEventAttr,
    cpu: u32,
    tids: &[u32],
    output: Option<BorrowedFd<'_>>,
) -> Result<Result<OwnedFd, Errno>, PerfError> {
    let cgroup: File;
    let tasks = match spec.details.target {
        EventTarget::Usual if attr.flags & flag::INHERIT != 0 => sys::Tasks::Caller,
        EventTarget::Usual => sys::Tasks::All,
        EventTarget::Thread(thread) => {
            let tid = usize::try_from(thread).ok().and_then(|it| tids.get(it));
            sys::Tasks::Thread(tid.copied().unwrap_or(u32::MAX))
        }
        EventTarget::RootCgroup | EventTarget::EmptyCgroup => {
            let is_empty = spec.details.target == EventTarget::EmptyCgroup;
            cgroup = system::cgroup(is_empty).map_err(|source| {
                let name = spec.name.clone();
                PerfError::Cgroup { name, source }
            })?;
            sys::Tasks::Cgroup(cgroup.as_fd())
        }
    };
    Ok(sys::open_for(attr, tasks, cpu, output))
}

fn set_filter(fd: BorrowedFd<'_>, spec: &EventSpec, filter: &str) -> Result<(), PerfError> {
    let refused = |errno| PerfError::Filter {
        name: spec.name.clone(),
        filter: filter.to_owned(),
        errno,
    };
    let text = CString::new(filter).map_err(|_| refused(Errno::INVAL))?;
    sys::set_filter(fd, &text).map_err(refused)
}
