//! When rings lost records.

use std::collections::BTreeMap;

use super::order::NESTING;
use crate::invariant::limit::step;
use crate::trace::{Event, EventKind, Trace};

/// A stretch of time in which a ring lost records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    /// The record that says so.
    pub index: usize,
    /// The ring.
    pub ring: u32,
    /// Records lost.
    pub count: u64,
    from: u64,
    to: u64,
}

/// All losses of a trace.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// By ring, in its order: each with the latest end so far, and the earliest beginning from there on.
    rings: Vec<Vec<(Loss, u64, u64)>>,
    corrupt: bool,
}

/// Whether a record says that records were lost, or that an event was stopped for a while.
pub(crate) fn loses(event: &Event) -> bool {
    match event.kind {
        EventKind::Lost { lost, .. } | EventKind::LostSamples { lost } => lost > 0,
        EventKind::Throttle { on, .. } => on,
        _ => false,
    }
}

fn searchable(losses: &[Loss]) -> Vec<(Loss, u64, u64)> {
    let mut latest = 0;
    let ends = losses.iter().map(|loss| {
        latest = latest.max(loss.to);
        (*loss, latest, 0)
    });
    let mut list: Vec<_> = ends.collect();
    let mut earliest = u64::MAX;
    for (loss, _, from) in list.iter_mut().rev() {
        earliest = earliest.min(loss.from);
        *from = earliest;
    }
    list
}

impl Losses {
    /// Collects the LOST records. The next successful write after a loss writes one
    /// (kernel/events/ring_buffer.c, `__perf_output_begin`), whichever event makes it: its id does
    /// not tell which event lost, and the loss lies between it and the previous record.
    pub fn new(trace: &Trace) -> Self {
        let mut rings: BTreeMap<u32, Vec<&Event>> = BTreeMap::new();
        for event in &trace.events {
            rings.entry(event.ring).or_default().push(event);
        }
        let mut of_rings = Vec::new();
        for ring in rings.values_mut() {
            let mut losses = Vec::new();
            ring.sort_by_key(|e| e.position);
            for (at, event) in ring.iter().enumerate() {
                let (EventKind::Lost { lost, .. } | EventKind::LostSamples { lost }) = event.kind
                else {
                    continue;
                };
                if lost == 0 {
                    continue;
                }
                let earlier = ring.get(at.saturating_sub(NESTING)..at);
                let times = earlier.unwrap_or_default().iter().filter_map(|e| e.time);
                losses.push(Loss {
                    index: event.index,
                    ring: event.ring,
                    count: lost,
                    from: times.min().unwrap_or(0),
                    to: event.time.unwrap_or(u64::MAX),
                });
            }
            of_rings.push(searchable(&losses));
        }
        let corrupt = !trace.corrupt.is_empty();
        Self {
            rings: of_rings,
            corrupt,
        }
    }

    /// A loss in any ring between two times. With unknown times, or a ring that could not be read,
    /// anything may have been lost.
    pub fn between(&self, from: Option<u64>, to: Option<u64>) -> Option<String> {
        step();
        if self.corrupt {
            return Some("XA a ring could not be read to its end".into());
        }
        let (from, to) = (from.unwrap_or(0), to.unwrap_or(u64::MAX));
        let loss = self.rings.iter().find_map(|ring| {
            let first = ring.partition_point(|&(_, latest, _)| latest < from);
            let near = ring.get(first..)?.iter();
            let mut near = near.take_while(|(_, _, earliest)| *earliest <= to);
            near.find(|(l, ..)| l.from <= to && from <= l.to)
        });
        let (loss, ..) = loss?;
        Some(format!(
            "XA ring {} lost {} records before event {}",
            loss.ring, loss.count, loss.index
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::Kit;

    #[test]
    fn a_loss_lies_between_its_record_and_the_one_before() {
        let mut kit = Kit::new(1);
        let mut lost = || {
            // So many places an order may differ from that of the clock.
            for _ in 0..=NESTING {
                kit.kernel_only(0, 1001);
            }
            kit.lost(0, 1)
        };
        let (first, second) = (lost(), lost());
        let trace = kit.trace();
        let losses = Losses::new(&trace);
        let time = |index: usize| trace.events[index].time;
        let between = |from: usize, to: usize| losses.between(time(from), time(to)).is_some();
        assert!(between(first, first) && between(second, second));
        assert!(between(first - 1, first));
        let behind = time(first).map(|it| it + 1);
        assert_eq!(losses.between(behind, behind), None);
        assert!(losses.between(behind, None).is_some());
    }

    #[test]
    fn a_record_of_nothing_lost_and_an_event_that_goes_on_lose_nothing() {
        let mut kit = Kit::new(1);
        kit.lost(0, 0);
        kit.lost(0, 1);
        for on in [false, true] {
            kit.push(0, 0, 0, EventKind::Throttle { on, id: 1 });
        }
        let found: Vec<bool> = kit.trace().events.iter().map(loses).collect();
        assert_eq!(found, [false, true, false, true]);
    }
}
