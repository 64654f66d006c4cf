//! Which record of perf shows what an event of an instance of tracefs shows: the same request, or the same walk.
//!
//! An instance's events name no instruction, so no finding is recognised by them alone. But a walk calls all its
//! clients, and an NMI makes the requests of all, one right after the other: what is wrong with both is one thing.

use std::collections::BTreeMap;

use super::views::{View, ring};
use crate::invariant::Violation;
use crate::trace::tracefs::{TracefsEvent, TracefsKind};
use crate::trace::{Event, Trace};

/// perf's records and those of the instances, to be compared.
#[derive(Debug)]
pub(crate) struct Beside<'t> {
    /// perf's records by task and time.
    perfs: BTreeMap<u32, Vec<&'t Event>>,
    /// By ring and position in a view.
    instances: BTreeMap<(u32, usize), &'t TracefsEvent>,
}

impl<'t> Beside<'t> {
    pub fn new(trace: &'t Trace) -> Self {
        let mut perfs: BTreeMap<u32, Vec<&Event>> = BTreeMap::new();
        for event in trace.events.iter().filter(|it| it.time.is_some()) {
            let list = event.tid.map(|tid| perfs.entry(tid).or_default());
            list.into_iter().for_each(|list| list.push(event));
        }
        for list in perfs.values_mut() {
            list.sort_by_key(|it| it.time);
        }
        let events = trace.tracefs.iter().flat_map(|it| &it.events);
        let place = |it: &TracefsEvent| (ring(trace, it.client, it.cpu), it.position);
        Self {
            perfs,
            instances: events.map(|it| (place(it), it)).collect(),
        }
    }

    /// For each event of an instance that shows a violation: the records of perf that say the same. A violation by
    /// what perf wrote is the same one if it has one of each.
    pub fn of(&self, view: &View, violation: &Violation) -> Vec<Vec<usize>> {
        let events = violation.events.iter();
        let events = events.filter_map(|&at| view.trace.events.get(at));
        let instance = |it: &Event| self.instances.get(&(it.ring, it.position)).copied();
        let mut shown: Vec<&TracefsEvent> = events.filter_map(instance).collect();
        // A story ends with the answer that is wrong. What is before it says how it came about.
        if let Some(&answer) = shown.last()
            && matches!(answer.kind, TracefsKind::Stack { .. })
        {
            shown = vec![answer];
        }
        let perfs = |it: &TracefsEvent| {
            let like = self.neighbours(it).filter(|perf| is_like(it, perf));
            like.map(|perf| perf.index).collect()
        };
        shown.into_iter().map(perfs).collect()
    }

    /// perf's records of the task right before and behind an event, and those of the same time.
    fn neighbours(&self, event: &TracefsEvent) -> impl Iterator<Item = &'t Event> {
        let list = self.perfs.get(&event.tid).map_or(&[][..], Vec::as_slice);
        let from = list.partition_point(|it| it.time < Some(event.time));
        let to = list.partition_point(|it| it.time <= Some(event.time));
        let near = list.get(from.saturating_sub(1)..list.len().min(to + 1));
        near.unwrap_or_default().iter().copied()
    }
}

/// Whether a record of perf says what an event of an instance says.
fn is_like(event: &TracefsEvent, perf: &Event) -> bool {
    match &event.kind {
        // What another event of the instance made is that event's request, whatever cookie it got.
        TracefsKind::Request { asker: Some(_), .. } => false,
        TracefsKind::Request { cookie, .. } => {
            perf.deferred_sample().is_some_and(|it| it.1 == *cookie)
        }
        TracefsKind::Stack {
            cookie: 0, frames, ..
        } => {
            let chain = perf.deferred_chain().filter(|it| it.cookie == 0);
            chain.is_some_and(|it| perf.cpu == event.cpu && it.frames() == *frames)
        }
        _ => false,
    }
}
