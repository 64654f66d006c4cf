//! When rings lost records.

use std::collections::BTreeMap;

use super::order::NESTING;
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
    losses: Vec<Loss>,
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

impl Losses {
    /// Collects the LOST records. The next successful write after a loss writes one
    /// (kernel/events/ring_buffer.c, `__perf_output_begin`), whichever event makes it: its id does
    /// not tell which event lost, and the loss lies between it and the previous record.
    pub fn new(trace: &Trace) -> Self {
        let mut rings: BTreeMap<u32, Vec<&Event>> = BTreeMap::new();
        for event in &trace.events {
            rings.entry(event.ring).or_default().push(event);
        }
        let mut losses = Vec::new();
        for ring in rings.values_mut() {
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
        }
        let corrupt = !trace.corrupt.is_empty();
        Self { losses, corrupt }
    }

    /// A loss in any ring between two times. With unknown times, or a ring that could not be read,
    /// anything may have been lost.
    pub fn between(&self, from: Option<u64>, to: Option<u64>) -> Option<String> {
        if self.corrupt {
            return Some("XA a ring could not be read to its end".into());
        }
        let (from, to) = (from.unwrap_or(0), to.unwrap_or(u64::MAX));
        let loss = self.losses.iter().find(|l| l.from <= to && from <= l.to)?;
        Some(format!(
            "XA ring {} lost {} records before event {}",
            loss.ring, loss.count, loss.index
        ))
    }
}
