//! Which event wrote a record, and so which `sample_type` parses it.
//!
//! Where all events of a ring have one layout (`sample_type`, `sample_id_all`, and what depends on
//! them), it parses every record. Where they differ, only `PERF_SAMPLE_IDENTIFIER` with
//! `sample_id_all` tells them apart: it is the first word of a sample and the last one of any other
//! record, whatever other fields there are.

use unwindlab_abi::message::EventAnnounce;
use unwindlab_abi::plan::Tracing;

use super::record_type;
use super::sample_id::{SampleType, UnsupportedSampleType};
use crate::trace::framing::RawRecord;

/// Why no record of a ring can be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No event was announced for the ring.
    #[error("no event was announced for it")]
    NoEvents,
    /// An announced event is not in the plan.
    #[error("event {id} names spec {spec}, which the plan does not have")]
    NoSuchSpec { id: u64, spec: u32 },
    /// An event has a `sample_type` the parser does not know.
    #[error("event {name}: {error}")]
    Unsupported {
        name: String,
        error: UnsupportedSampleType,
    },
    /// Events differ in the layout of their records, and not all records name their event.
    #[error("its events differ in sample_type and not all have PERF_SAMPLE_IDENTIFIER")]
    Ambiguous,
}

/// One event of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// `PERF_EVENT_IOC_ID`.
    id: u64,
    /// Index in the session.
    event: usize,
    sample_type: SampleType,
}

/// The events that write into one ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layouts {
    /// In the order of announcement; never empty. A handful, so searched from the front.
    entries: Vec<Entry>,
    uniform: bool,
}

/// What is known of a record before it is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// All events of the ring have this `sample_type`.
    Uniform(SampleType),
    /// The record's identifier names an event of this `sample_type`.
    Identified(SampleType),
    /// No event of the ring has the record's identifier; this is the `sample_type` of the first.
    Guessed(SampleType),
}

impl Layouts {
    /// Collects the events of ring `ring`.
    ///
    /// # Errors
    /// [`LayoutError`]; nothing of the ring can be decoded then.
    pub fn new(
        ring: u32,
        session: &[EventAnnounce],
        tracing: Option<&Tracing>,
    ) -> Result<Self, LayoutError> {
        let specs = tracing.map_or(&[][..], |tracing| &tracing.events);
        let mut entries = Vec::new();
        for (event, announce) in session.iter().enumerate() {
            if announce.ring != ring {
                continue;
            }
            let (id, spec) = (announce.id, announce.spec);
            let found = usize::try_from(spec).ok().and_then(|spec| specs.get(spec));
            let found = found.ok_or(LayoutError::NoSuchSpec { id, spec })?;
            let sample_type = SampleType::of(found).map_err(|error| {
                let name = found.name.clone();
                LayoutError::Unsupported { name, error }
            })?;
            entries.push(Entry {
                id,
                event,
                sample_type,
            });
        }
        let first = entries.first().ok_or(LayoutError::NoEvents)?.sample_type;
        let uniform = entries.iter().all(|entry| entry.sample_type == first);
        let identified = |entry: &Entry| entry.sample_type.identifies();
        if !uniform && !entries.iter().all(identified) {
            return Err(LayoutError::Ambiguous);
        }
        Ok(Self { entries, uniform })
    }

    /// The layout of `raw`; `None` if it is too short for the identifier it must have.
    #[must_use]
    pub fn of(&self, raw: &RawRecord<'_>) -> Option<Layout> {
        let first = self.entries.first()?.sample_type;
        if self.uniform {
            return Some(Layout::Uniform(first));
        }
        let word = if raw.record_type == record_type::SAMPLE {
            raw.body.first_chunk()
        } else {
            raw.body.last_chunk()
        }?;
        let entry = self.find(u64::from_le_bytes(*word));
        Some(entry.map_or(Layout::Guessed(first), |entry| {
            Layout::Identified(entry.sample_type)
        }))
    }

    /// The event with this id, as index into the session. A record without an id is of the ring's
    /// only event, if there is just one.
    #[must_use]
    pub fn event(&self, id: Option<u64>) -> Option<usize> {
        match (id, self.entries.as_slice()) {
            (Some(id), _) => self.find(id).map(|entry| entry.event),
            (None, [only]) => Some(only.event),
            (None, _) => None,
        }
    }

    fn find(&self, id: u64) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id == id)
    }
}
