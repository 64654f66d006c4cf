//! The records of all CPUs as one trace.
//!
//! perf reads one ring after the other, so a file has the records of each CPU in the order of its ring, and those of
//! several CPUs in no order. They are merged as rings are (`trace/decode`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use unwindlab_abi::attr::flag;
use unwindlab_abi::message::{EventAnnounce, RingAnnounce};
use unwindlab_abi::plan::Tracing;

use super::walk::{Record, Walk};
use super::{PerfData, PerfDataError};
use crate::trace::Trace;
use crate::trace::model::{Event, EventKind, Recorded};

/// Who asks for records 22 in a way of which no order follows.
const PER_CPU: &str = "record with --sample-cpu (or --all-cpus), and without --per-thread";

/// Orders what was read.
pub(super) fn finish(mut walk: Walk) -> Result<PerfData, PerfDataError> {
    let number_of_names = walk.features.names.len();
    if number_of_names == walk.attrs.len() {
        for (attr, name) in walk.attrs.iter_mut().zip(&walk.features.names) {
            attr.name.clone_from(name);
        }
    }
    for attr in &walk.attrs {
        attr.unsuitable()?;
    }
    if walk.cut.is_some() {
        let to = walk.complete_to;
        walk.records
            .retain(|it| to.is_some_and(|to| it.id.time.is_some_and(|time| time <= to)));
    }
    let records = std::mem::take(&mut walk.records);
    let rings = rings(&walk, records)?;
    let of_tasks = !walk.opened.values().any(|it| it.tid == u32::MAX)
        && !walk
            .features
            .command
            .iter()
            .flatten()
            .any(|it| it == "-a" || it == "--all-cpus");
    let tracing = tracing(&walk, of_tasks);
    let session = session(&walk, &rings)?;
    let count = rings.values().map(Vec::len).sum();
    let recorded = Recorded {
        every_cpu: every_cpu(&walk, &rings),
        alone: false,
        steady: steady(&rings),
    };
    let highest = rings
        .keys()
        .next_back()
        .map_or(0, |cpu| cpu.saturating_add(1));
    let trace = Trace {
        release: walk.features.release.clone(),
        vcpus: walk
            .features
            .cpus
            .map_or(u32::MAX, |(all, _)| all.max(highest)),
        tracing: Some(tracing),
        rings: rings.keys().map(|&cpu| announce(cpu)).collect(),
        events: merge(rings, &session, walk.lost_at_some_time),
        session,
        recorded: Some(recorded),
        ..Trace::default()
    };
    Ok(PerfData {
        trace,
        arch: walk.features.arch,
        command: walk.features.command.unwrap_or_default().join(" "),
        kernel_text: walk.kernel_text,
        cut: walk.cut,
        records: count,
        left_out: walk.left_out.into_iter().collect(),
    })
}

/// The records of each CPU, in the order of its ring.
fn rings(walk: &Walk, records: Vec<Record>) -> Result<BTreeMap<u32, Vec<Record>>, PerfDataError> {
    let unsuitable = |what: &str| PerfDataError::Unsuitable {
        what: what.to_owned(),
        instead: PER_CPU,
    };
    if !walk.opened.is_empty() && walk.opened.values().all(|it| it.cpu == u32::MAX) {
        return Err(unsuitable(
            "there is a ring for each thread, not for each CPU",
        ));
    }
    let mut rings: BTreeMap<u32, Vec<Record>> = BTreeMap::new();
    for record in records {
        // What perf itself says has no place.
        if record.id.time == Some(0) {
            continue;
        }
        let Some(cpu) = record.cpu.filter(|&cpu| cpu != u32::MAX) else {
            return Err(unsuitable(
                "its records do not say on which CPU they were written",
            ));
        };
        if record.id.time.is_none() {
            return Err(unsuitable("its records have no time"));
        }
        rings.entry(cpu).or_default().push(record);
    }
    Ok(rings)
}

fn announce(cpu: u32) -> RingAnnounce {
    RingAnnounce {
        ring: cpu,
        cpu,
        control_page: 0,
        data_pages: Vec::new(),
        backward: false,
    }
}

fn tracing(walk: &Walk, of_tasks: bool) -> Tracing {
    let clock = |at: usize| {
        let attr = walk.attrs.get(at)?;
        Some(attr.has(flag::USE_CLOCKID).then_some(attr.clockid))
    };
    let one_clock = (0..walk.attrs.len()).all(|at| clock(at) == clock(0));
    let everything = walk.features.everything();
    let attrs = walk.attrs.iter().enumerate();
    Tracing {
        ring_pages: 0,
        events: attrs
            .map(|(number, attr)| attr.spec(number, everything, of_tasks, one_clock))
            .collect(),
    }
}

/// One event for each attr and CPU: what each would be if it were opened on the CPUs that wrote something.
fn session(
    walk: &Walk,
    rings: &BTreeMap<u32, Vec<Record>>,
) -> Result<Vec<EventAnnounce>, PerfDataError> {
    let limit = walk.limits.events;
    let mut session = Vec::new();
    for (number, attr) in (0..).zip(&walk.attrs) {
        let mut opened: BTreeMap<u32, u64> = BTreeMap::new();
        for id in &attr.ids {
            let cpu = walk.opened.get(id).map(|it| it.cpu);
            if let Some(cpu) = cpu.filter(|cpu| rings.contains_key(cpu)) {
                opened.entry(cpu).or_insert(*id);
            }
        }
        if opened.is_empty() {
            opened.extend(rings.keys().map(|&cpu| (cpu, 0)));
        }
        if session.len().saturating_add(opened.len()) > limit {
            return Err(PerfDataError::TooMuch {
                what: "events of one CPU",
                limit: limit as u64,
            });
        }
        session.extend(opened.into_iter().map(|(cpu, id)| EventAnnounce {
            spec: number,
            cpu,
            id,
            ring: cpu,
        }));
    }
    Ok(session)
}

/// Whether every CPU that was on was recorded.
fn every_cpu(walk: &Walk, rings: &BTreeMap<u32, Vec<Record>>) -> bool {
    let indexed = walk.opened.values().map(|it| it.cpu);
    let cpus: BTreeSet<u32> = indexed.chain(rings.keys().copied()).collect();
    let cpus = cpus.iter().filter(|&&cpu| cpu != u32::MAX).count();
    walk.features
        .cpus
        .is_some_and(|(_, on)| u32::try_from(cpus).is_ok_and(|cpus| cpus >= on))
}

/// From the latest first record of a CPU to the earliest last one: perf turns its events on and off CPU by CPU.
fn steady(rings: &BTreeMap<u32, Vec<Record>>) -> Option<(u64, u64)> {
    let times = |ring: &[Record], last: bool| {
        let record = if last { ring.last() } else { ring.first() };
        record.and_then(|it| it.id.time)
    };
    let begin = rings.values().filter_map(|it| times(it, false)).max()?;
    let end = rings.values().filter_map(|it| times(it, true)).min()?;
    (begin <= end).then_some((begin, end))
}

/// Merges as `trace/decode` does. A loss at a time that is not known comes first in each ring, without a time.
fn merge(rings: BTreeMap<u32, Vec<Record>>, session: &[EventAnnounce], lost: u64) -> Vec<Event> {
    let by_place: BTreeMap<(u32, u32), usize> = { session.iter().enumerate() }
        .map(|(at, open)| ((open.spec, open.cpu), at))
        .collect();
    let mut events = Vec::new();
    let mut waiting = BinaryHeap::new();
    let mut lists = Vec::new();
    for (ring_index, (cpu, records)) in rings.into_iter().enumerate() {
        let mut position = 0;
        if lost > 0 {
            events.push(loss(cpu, ring_index, lost));
            position = 1;
        }
        let mut list = records.into_iter();
        if let Some(next) = list.next() {
            waiting.push(Reverse((next.id.time, cpu, ring_index)));
            lists.push((cpu, position, Some(next), list));
        }
    }
    while let Some(Reverse((_, cpu, ring_index))) = waiting.pop() {
        let Some((_, position, next, list)) = lists.get_mut(ring_index) else {
            break;
        };
        let Some(record) = next.take() else { continue };
        let spec = record.attr.and_then(|it| u32::try_from(it).ok());
        events.push(Event {
            index: 0,
            ring: cpu,
            cpu,
            ring_index,
            position: *position,
            start: 0,
            time: record.id.time,
            event: spec.and_then(|spec| by_place.get(&(spec, cpu)).copied()),
            pid: record.id.pid,
            tid: record.id.tid,
            misc: record.misc,
            size: record.size,
            kind: record.kind,
        });
        *position += 1;
        *next = list.next();
        if let Some(next) = next {
            waiting.push(Reverse((next.id.time, cpu, ring_index)));
        }
    }
    for (index, event) in events.iter_mut().enumerate() {
        event.index = index;
    }
    events
}

fn loss(cpu: u32, ring_index: usize, lost: u64) -> Event {
    Event {
        index: 0,
        ring: cpu,
        cpu,
        ring_index,
        position: 0,
        start: 0,
        time: None,
        event: None,
        pid: None,
        tid: None,
        misc: 0,
        size: 0,
        kind: EventKind::LostSamples { lost },
    }
}
