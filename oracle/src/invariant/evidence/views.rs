//! What perf would have written if it had been another client: a trace for each client of tracefs, and
//! one for all clients together.
//!
//! In such a trace a request of the client is a sample with its cookie, and a stack is a record 22. perf's
//! own samples stay, without their cookies, and so do its other records: they say what tasks did.
//!
//! The witness notes how much of each mapped buffer of tracefs was written at a return to user mode, as it does of each ring of
//! perf ([`Written::heads`](crate::trace::witness::Written::heads)), so such a buffer is one more ring there. It knows nothing of the
//! others. But perf's records of the same task do: what lies between two of them with no return in between
//! has none before it either. So an event of another buffer is placed where the later one of them is.

use std::collections::{BTreeMap, BTreeSet};

use unwindlab_abi::message::EventAnnounce;
use unwindlab_abi::plan::{EventSource, EventSpec};

use super::returns::Returns;
use crate::invariant::limit::step;
use crate::trace::model::{CONTEXT_USER_DEFERRED, CallchainDeferred, Sample};
use crate::trace::tracefs::{TracefsClient, TracefsEvent, TracefsKind};
use crate::trace::{Event, EventKind, Trace};

/// How the name of an event begins that stands for a client of tracefs.
pub(crate) const INSTANCE: &str = "instance ";

/// A trace as one client sees it.
#[derive(Debug)]
pub(crate) struct View {
    /// The client, for messages.
    pub name: String,
    /// What it wrote, as records of perf.
    pub trace: Trace,
    /// What it asked for need not come.
    pub cancels: bool,
    /// It is registered anew in the same buffer: after each [`TracefsKind::Cleared`] it is another client.
    pub replaced: bool,
    /// By the event of the plan that stands for a registration: from which time on it may be cancelled, its tracing over, or
    /// its buffer full.
    pub cancelled: BTreeMap<u32, u64>,
    /// Some of what it wrote is lost.
    pub loses: bool,
    /// From which time on it may have lost some; `None` where that is not known.
    pub full_from: Option<u64>,
}

/// Records of all views together, each of which has those of perf anew: 1 GB or so.
const MOST_RECORDS: usize = 5_000_000;

/// A view for each client of tracefs, as far as [`MOST_RECORDS`] go.
pub(crate) fn of_each(trace: &Trace) -> Vec<View> {
    let Some(tracefs) = &trace.tracefs else {
        return Vec::new();
    };
    let most = MOST_RECORDS / trace.events.len().max(1);
    let places = Places::new(trace);
    let view = |(number, client): (usize, &TracefsClient)| {
        let (seen, cancelled) = seen_by(trace, &places, Some(number));
        View {
            name: format!("{INSTANCE}{}", client.name),
            trace: seen,
            cancels: client.cancels,
            replaced: client.registers_anew(),
            cancelled,
            loses: client.lost > 0,
            full_from: client.full_from,
        }
    };
    { tracefs.clients.iter().enumerate() }
        .take(most)
        .map(view)
        .collect()
}

/// One view of all clients: perf keeps its cookies. Empty without tracefs.
pub(crate) fn of_all(trace: &Trace) -> Option<View> {
    let tracefs = trace.tracefs.as_ref()?;
    let (seen, cancelled) = seen_by(trace, &Places::new(trace), None);
    Some(View {
        name: "all clients".to_owned(),
        trace: seen,
        cancelled,
        cancels: tracefs.clients.iter().any(|it| it.cancels),
        replaced: tracefs.clients.iter().any(TracefsClient::registers_anew),
        loses: tracefs.clients.iter().any(|it| it.lost > 0),
        full_from: None,
    })
}

/// The cookies that clients of tracefs got; `None` where not all of them are known.
pub(crate) fn given(trace: &Trace) -> Option<BTreeSet<u64>> {
    let mut clients = trace.tracefs.iter().flat_map(|it| &it.clients);
    if clients.any(|it| it.ends_early || it.lost > 0) {
        return None;
    }
    let events = trace.tracefs.iter().flat_map(|it| &it.events);
    let cookie = |event: &TracefsEvent| match event.kind {
        TracefsKind::Request { cookie, .. } => Some(cookie),
        _ => None,
    };
    Some(events.filter_map(cookie).collect())
}

/// The ring of a client's events on a CPU: behind those of perf.
pub(crate) fn ring(trace: &Trace, client: usize, cpu: u32) -> u32 {
    let first = trace
        .rings
        .iter()
        .map(|it| it.ring)
        .max()
        .map_or(0, |it| it + 1);
    let at = u32::try_from(client).unwrap_or(0).saturating_mul(256);
    first.saturating_add(at).saturating_add(cpu)
}

/// What one client sees, or all together; and [`View::cancelled`].
fn seen_by(trace: &Trace, places: &Places<'_>, only: Option<usize>) -> (Trace, BTreeMap<u32, u64>) {
    let mut view = Trace {
        tracefs: None,
        ..trace.clone()
    };
    if only.is_some() {
        view.events.retain(|it| it.deferred_chain().is_none());
        view.events.iter_mut().for_each(forget_cookie);
    }
    let (mut specs, mut session) = (BTreeMap::new(), BTreeMap::new());
    let mut cancelled = BTreeMap::new();
    let tracefs = trace.tracefs.iter().flat_map(|it| &it.events);
    for event in tracefs.filter(|it| only.is_none_or(|only| it.client == only)) {
        step();
        let ring = ring(trace, event.client, event.cpu);
        let number = places.registrations.of(event);
        let spec = *specs.entry((event.client, number)).or_insert_with(|| {
            let spec = spec(&mut view, trace, event.client);
            let from = places.registrations.cancelled_from(event.client, number);
            let clients = trace.tracefs.iter().flat_map(|it| &it.clients);
            let full = { clients }.nth(event.client).and_then(|it| it.full_from);
            let from = from.into_iter().chain(full).min();
            cancelled.extend(from.and_then(|from| Some((u32::try_from(spec).ok()?, from))));
            spec
        });
        let open = *session
            .entry((spec, event.cpu))
            .or_insert_with(|| open(&mut view, spec, event.cpu, ring));
        view.events.extend(places.record(event, ring, open));
    }
    view.events
        .sort_by_key(|it| (it.time, it.cpu, it.ring, it.position));
    for (index, event) in view.events.iter_mut().enumerate() {
        event.index = index;
    }
    (view, cancelled)
}

/// An event of perf that stands for a registration of a client; its place in the plan.
fn spec(view: &mut Trace, trace: &Trace, client: usize) -> usize {
    let mut clients = trace.tracefs.iter().flat_map(|it| &it.clients);
    let name = clients.nth(client).map_or("?", |it| &it.name);

    let tracing = view.tracing.get_or_insert_with(|| unwindlab_abi::Tracing {
        ring_pages: 1,
        events: Vec::new(),
    });
    tracing.events.push(EventSpec {
        defer_callchain: true,
        defer_output: true,
        task: true,
        ..EventSpec::blank(&format!("{INSTANCE}{name}"), EventSource::Dummy)
    });
    tracing.events.len() - 1
}

/// Opens such an event on a CPU; its place in the session.
fn open(view: &mut Trace, spec: usize, cpu: u32, ring: u32) -> usize {
    view.session.push(EventAnnounce {
        spec: u32::try_from(spec).unwrap_or(u32::MAX),
        cpu,
        id: u64::MAX - view.session.len() as u64,
        ring,
    });
    view.session.len() - 1
}

/// When each registration of each client ended: from then on at the earliest, and by then.
#[derive(Debug)]
struct Registrations(BTreeMap<usize, Vec<(u64, u64)>>);

impl Registrations {
    fn new(trace: &Trace) -> Self {
        let mut notes: BTreeMap<usize, Vec<(u64, bool)>> = BTreeMap::new();
        for event in trace.tracefs.iter().flat_map(|it| &it.events) {
            let is_over = match event.kind {
                TracefsKind::MayEnd => false,
                TracefsKind::Cleared => true,
                _ => continue,
            };
            let list = notes.entry(event.client).or_default();
            list.push((event.time, is_over));
        }
        let of = |(client, list)| (client, cancellations(list));
        Self(notes.into_iter().map(of).collect())
    }

    /// How often its client had been cancelled. The cancellation awaits callbacks (`unwind_deferred_cancel()`,
    /// kernel/unwind/deferred.c, 7.3), so what the client was called for before has an earlier time than the note.
    fn of(&self, event: &TracefsEvent) -> usize {
        let times = self.0.get(&event.client).map_or(&[][..], Vec::as_slice);
        times.partition_point(|&(_, by)| by <= event.time)
    }

    /// From which time on this registration of a client may be over; `None` where nothing ends it.
    fn cancelled_from(&self, client: usize, number: usize) -> Option<u64> {
        let &(from, _) = self.0.get(&client)?.get(number)?;
        Some(from)
    }
}

/// From notes of the begin and the end of each cancellation, in any order. One whose begin is not known may begin at once.
fn cancellations(mut notes: Vec<(u64, bool)>) -> Vec<(u64, u64)> {
    notes.sort_unstable();
    let mut begun = None;
    let mut list = Vec::new();
    for (time, is_over) in notes {
        match is_over {
            false => begun = begun.or(Some(time)),
            true => list.push((begun.take().unwrap_or(0), time)),
        }
    }
    list.extend(begun.map(|from| (from, u64::MAX)));
    list
}

/// Cuts a chain before the marker of a deferred one.
fn forget_cookie(event: &mut Event) {
    if let EventKind::Sample(sample) = &mut event.kind
        && let Some(chain) = &mut sample.chain
        && let Some(at) = chain.iter().position(|&ip| ip == CONTEXT_USER_DEFERRED)
    {
        chain.truncate(at);
    }
}

/// perf's records of each task, by time.
#[derive(Debug)]
struct Places<'t> {
    rings: usize,
    returns: Returns<'t>,
    registrations: Registrations,
    of: BTreeMap<u32, Vec<&'t Event>>,
    pids: BTreeMap<u32, u32>,
}

impl<'t> Places<'t> {
    fn new(trace: &'t Trace) -> Self {
        let mut of: BTreeMap<u32, Vec<&'t Event>> = BTreeMap::new();
        let mut pids = BTreeMap::new();
        for thread in &trace.threads {
            pids.insert(thread.tid, thread.pid);
        }
        for event in &trace.events {
            if let (Some(tid), Some(_)) = (event.tid, event.time) {
                of.entry(tid).or_default().push(event);
                pids.extend(event.pid.map(|pid| (tid, pid)));
            }
        }
        for list in of.values_mut() {
            list.sort_by_key(|it| it.time);
        }
        Self {
            rings: trace.rings.len(),
            returns: Returns::new(trace),
            registrations: Registrations::new(trace),
            of,
            pids,
        }
    }

    /// The later one of the two records of its task between which an event lies, if no return to user
    /// mode was noted between them.
    fn neighbour(&self, event: &TracefsEvent) -> Option<&'t Event> {
        let list = self.of.get(&event.tid)?;
        let after = list.partition_point(|it| it.time <= Some(event.time));
        let from = list.partition_point(|it| it.time < Some(event.time));
        let (earlier, later) = (list.get(from.checked_sub(1)?)?, list.get(after)?);
        let [i, j] = [earlier, later].map(|it| self.returns.before(it));
        (i.is_some() && i == j).then_some(*later)
    }

    /// Where an event is, for the witness: among all that it looked at, its first byte there, and how many.
    fn place(&self, event: &TracefsEvent) -> (usize, u64, u16) {
        if let Some(at) = self.returns.buffer(self.rings, event.buffer) {
            return (at, event.start, event.size);
        }
        match self.neighbour(event) {
            Some(it) => (it.ring_index, it.start, it.size),
            // Nowhere where the witness looked.
            None => (usize::MAX, 0, 0),
        }
    }

    /// The record that perf would have written.
    fn record(&self, event: &TracefsEvent, ring: u32, open: usize) -> Option<Event> {
        let kind = match &event.kind {
            TracefsKind::Request { cookie, asker } => EventKind::Sample(Sample {
                chain: Some(vec![CONTEXT_USER_DEFERRED, *cookie]),
                asker: *asker,
                ..Sample::default()
            }),
            TracefsKind::Stack { cookie, nr, frames } => {
                EventKind::CallchainDeferred(CallchainDeferred {
                    cookie: *cookie,
                    nr: *nr,
                    ips: frames.clone(),
                })
            }
            TracefsKind::MayEnd | TracefsKind::Cleared | TracefsKind::Other { .. } => return None,
        };
        let (ring_index, start, size) = self.place(event);
        Some(Event {
            index: 0,
            ring,
            cpu: event.cpu,
            ring_index,
            position: event.position,
            start,
            time: Some(event.time),
            event: Some(open),
            pid: self.pids.get(&event.tid).copied(),
            tid: Some(event.tid),
            misc: 0,
            size,
            kind,
        })
    }
}
