//! The perf events on every CPU and their ring buffers.

pub mod attr;
mod probe;
mod sys;

pub use sys::RingMapping;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::io::Errno;
use unwindlab_abi::message::EventAnnounce;
use unwindlab_abi::{EventSource, EventSpec, Tracing};

use attr::{
    COUNT_SW_DUMMY, PerfEventAttr, TYPE_BREAKPOINT, TYPE_HARDWARE, TYPE_SOFTWARE, TYPE_TRACEPOINT,
    flag,
};

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
    /// The kernel cannot be probed there.
    #[error("this kernel takes no kprobe on {function}: {source}")]
    Probe {
        function: String,
        source: std::io::Error,
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
            Self::NoDeferred(_) | Self::NoTracepoint { .. } | Self::NoCounter { .. }
        )
    }
}

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
    fd: OwnedFd,
    name: String,
    cpu: u32,
    /// Receives record 22.
    tracking: bool,
}

/// A ring buffer and the CPU whose events write to it.
#[derive(Debug)]
pub struct Ring {
    /// Where it is mapped.
    pub mapping: RingMapping,
    /// The CPU.
    pub cpu: u32,
}

/// All events of a plan on all CPUs, and the rings they write to. Dropping it closes them.
#[derive(Debug, Default)]
pub struct PerfSession {
    events: Vec<Event>,
    rings: Vec<Ring>,
    announces: Vec<EventAnnounce>,
}

impl PerfSession {
    /// Opens everything, disabled. `tracefs` is where tracefs is mounted.
    ///
    /// # Errors
    /// [`PerfError`].
    pub fn open(tracing: &Tracing, cpus: &[u32], tracefs: &Path) -> Result<Self, PerfError> {
        let attrs = tracing
            .events
            .iter()
            .map(|spec| {
                let (kind, config) = resolve(&spec.source, tracefs)?;
                Ok((spec, PerfEventAttr::from_spec(spec, kind, config)))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut session = Self::default();
        for &cpu in cpus {
            session.open_on(cpu, &attrs, tracing.ring_pages)?;
        }
        Ok(session)
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

    /// Enables the events, first those that receive record 22, so that each request has a receiver.
    ///
    /// # Errors
    /// [`PerfError::Event`].
    pub fn enable(&self) -> Result<(), PerfError> {
        self.switch([true, false], "cannot enable", sys::enable)
    }

    /// Disables the events, last those that receive record 22.
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
                call(event.fd.as_fd()).map_err(|errno| PerfError::Event {
                    name: event.name.clone(),
                    cpu: event.cpu,
                    what,
                    errno,
                })?;
            }
        }
        Ok(())
    }

    fn open_on(
        &mut self,
        cpu: u32,
        attrs: &[(&EventSpec, PerfEventAttr)],
        ring_pages: u32,
    ) -> Result<(), PerfError> {
        // By spec index: the event's place in `self.events` and its ring, if it is its own.
        let mut here: Vec<(usize, Option<u32>)> = Vec::new();
        for (index, (spec, attr)) in (0..).zip(attrs) {
            let failed = |what| {
                move |errno| PerfError::Event {
                    name: spec.name.clone(),
                    cpu,
                    what,
                    errno,
                }
            };
            let fd = sys::open(attr, cpu).map_err(|errno| match errno {
                // No PMU, or one that cannot interrupt.
                Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP => PerfError::NoCounter {
                    name: spec.name.clone(),
                    errno,
                },
                _ => failed("perf_event_open")(errno),
            })?;
            let (ring, own) = match spec.output_to {
                Some(target) => {
                    let (event, ring) = self.ring_of(target, &here).ok_or_else(|| {
                        let name = spec.name.clone();
                        PerfError::OutputTo { name, target }
                    })?;
                    sys::set_output(fd.as_fd(), event).map_err(failed("cannot share a ring"))?;
                    (ring, None)
                }
                None => {
                    let ring = self.map_ring(fd.as_fd(), spec, cpu, ring_pages)?;
                    (ring, Some(ring))
                }
            };
            let id = sys::id(fd.as_fd()).map_err(failed("cannot read its id"))?;
            self.announces.push(EventAnnounce {
                spec: index,
                cpu,
                id,
                ring,
            });
            here.push((self.events.len(), own));
            self.events.push(Event {
                fd,
                name: spec.name.clone(),
                cpu,
                tracking: spec.defer_output,
            });
        }
        Ok(())
    }

    fn ring_of(&self, target: u32, here: &[(usize, Option<u32>)]) -> Option<(BorrowedFd<'_>, u32)> {
        let &(event, ring) = here.get(target as usize)?;
        Some((self.events.get(event)?.fd.as_fd(), ring?))
    }

    fn map_ring(
        &mut self,
        fd: BorrowedFd<'_>,
        spec: &EventSpec,
        cpu: u32,
        ring_pages: u32,
    ) -> Result<u32, PerfError> {
        let mapping = RingMapping::new(fd, ring_pages).map_err(|errno| PerfError::Event {
            name: spec.name.clone(),
            cpu,
            what: "cannot map its ring (a power of two of pages, and enough memory?)",
            errno,
        })?;
        let ring = u32::try_from(self.rings.len()).unwrap_or(u32::MAX);
        self.rings.push(Ring { mapping, cpu });
        Ok(ring)
    }
}

/// `type` and `config` of a source.
fn resolve(source: &EventSource, tracefs: &Path) -> Result<(u32, u64), PerfError> {
    match source {
        EventSource::Dummy => Ok((TYPE_SOFTWARE, COUNT_SW_DUMMY)),
        EventSource::Software(number) => Ok((TYPE_SOFTWARE, *number)),
        EventSource::Hardware(number) => Ok((TYPE_HARDWARE, *number)),
        EventSource::Breakpoint { .. } => Ok((TYPE_BREAKPOINT, 0)),
        EventSource::Tracepoint { system, name } => {
            tracepoint_id(tracefs, system, name).map(|id| (TYPE_TRACEPOINT, id))
        }
        EventSource::Probe {
            function,
            at_return,
        } => probe::make(tracefs, function, *at_return)
            .and_then(|name| tracepoint_id(tracefs, probe::SYSTEM, &name))
            .map(|id| (TYPE_TRACEPOINT, id)),
    }
}

fn tracepoint_id(tracefs: &Path, system: &str, name: &str) -> Result<u64, PerfError> {
    let is_name = |text| {
        let mut parts = Path::new(text).components();
        matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == text)
    };
    let missing = || PerfError::NoTracepoint {
        system: system.to_owned(),
        name: name.to_owned(),
    };
    let unreadable = |source| PerfError::Tracepoint {
        system: system.to_owned(),
        name: name.to_owned(),
        source,
    };
    if !is_name(system) || !is_name(name) {
        return Err(missing());
    }
    let path = tracefs.join("events").join(system).join(name).join("id");
    match std::fs::read_to_string(path) {
        Ok(text) => text
            .trim()
            .parse()
            .map_err(|error| unreadable(std::io::Error::other(error))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(missing()),
        Err(error) => Err(unreadable(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracepoint_is_found_by_name_and_nothing_else_is() {
        let dir = std::env::temp_dir().join(format!("unwindlab-agent-{}", std::process::id()));
        let event = dir.join("events/nmi/nmi_handler");
        std::fs::create_dir_all(&event).unwrap();
        std::fs::write(event.join("id"), "471\n").unwrap();
        let nmi = tracepoint_id(&dir, "nmi", "nmi_handler");
        let missing = [
            "nmi_gone",
            "",
            ".",
            "..",
            "../nmi/nmi_handler",
            "nmi_handler/",
        ]
        .map(|name| tracepoint_id(&dir, "nmi", name));
        std::fs::write(event.join("id"), "no number").unwrap();
        let garbled = tracepoint_id(&dir, "nmi", "nmi_handler");
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(nmi.unwrap(), 471);
        for error in missing {
            assert!(error.unwrap_err().is_unsupported());
        }
        assert!(!garbled.unwrap_err().is_unsupported());
    }
}
