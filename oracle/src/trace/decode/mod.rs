//! [`Recording`] to [`Trace`]: decodes every ring and merges all of them.
//!
//! The order within a ring is the kernel's own and is always kept. Times only decide how rings
//! interleave, and they are no total order: perf reads the clock before it reserves space, so an
//! NMI that hits between the two writes the later time first. A record whose time is missing or
//! earlier than its predecessor's directly follows that one.

use unwindlab_abi::message::RingAnnounce;

use super::framing::{RawRecord, Records};
use super::lab;
use super::model::{Event, EventKind, Trace};
use super::record;
use super::record::layout::{Layout, LayoutError, Layouts};
use super::record::record_type::SAMPLE;
use super::record::sample_id::SampleId;
use super::recording::{Recording, RingBytes};
use super::tracefs;
use super::user_mode;

/// Why nothing of a ring can be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum RingDecodeError {
    #[error("ring {ring}: was never announced")]
    NotAnnounced { ring: u32 },
    #[error("ring {ring} (cpu {cpu}): {source}")]
    Layout {
        ring: u32,
        cpu: u32,
        source: LayoutError,
    },
}

/// Complaints kept about one ring's records; the rest are counted.
const MAX_COMPLAINTS: usize = 8;

impl Trace {
    /// Decodes a trial. Never fails: [`Trace::corrupt`] says what could not be decoded.
    #[must_use]
    pub fn decode(recording: &Recording) -> Self {
        let mut corrupt = Vec::new();
        let mut rings: Vec<RingDecoder<'_>> = Vec::new();
        for bytes in &recording.ring_bytes {
            match RingDecoder::new(recording, bytes) {
                Ok(ring) => rings.push(ring),
                Err(error) => corrupt.push(error.to_string()),
            }
        }
        rings.sort_by_key(|ring| (ring.cpu, ring.ring));
        let events = merge(&mut rings);
        for ring in rings {
            ring.report(&mut corrupt);
        }
        let lab = recording.lab.as_ref().map(|log| {
            let (lab, complaints) = lab::decode::decode(log);
            corrupt.extend(complaints);
            lab
        });
        let user_mode = recording.user_mode.as_ref().map(|log| {
            let (user_mode, complaints) = user_mode::decode(log);
            corrupt.extend(complaints);
            user_mode
        });
        let tracefs = recording.tracefs.as_ref().map(|log| {
            let (tracefs, complaints) = tracefs::decode(log);
            corrupt.extend(complaints);
            tracefs
        });
        Self {
            release: recording.release.clone(),
            vcpus: recording.vcpus,
            tracing: recording.tracing.clone(),
            sysctls: recording.sysctls.clone(),
            rings: recording.rings.clone(),
            session: recording.events.clone(),
            threads: recording.threads.clone(),
            user_symbols: recording.user_symbols.clone(),
            program: recording.program.clone(),
            events,
            begins_late: recording.ring_bytes.iter().any(|ring| ring.begin > 0),
            lab,
            user_mode,
            tracefs,
            witness: recording.witness.clone(),
            injections: recording.injections.clone(),
            failures: recording.failures.clone(),
            actions: recording.actions.clone(),
            points: recording.points.clone(),
            blocks: recording.blocks.clone(),
            stood_still: recording.stood_still.clone(),
            observations: recording.observations.clone(),
            perf_script: recording.perf_script.clone(),
            progress: recording.progress.clone(),
            corrupt,
            log: log_lines(recording),
            recorded: None,
        }
    }
}

/// Lines of the kernel log, then of the console, without empty ones. A line that reached both is
/// there twice, which does not matter to a search for bad ones.
fn log_lines(recording: &Recording) -> Vec<String> {
    [&recording.kernel_log, &recording.console]
        .into_iter()
        .flat_map(|text| text.lines())
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Repeatedly takes the ring with the earliest next record (one without a time comes at once).
/// There are as many rings as vCPUs, so a scan beats a heap. Of equal times the first in (cpu,
/// ring) order goes first. A next record that is earlier than the last one taken is also earlier
/// than all others that wait, which keeps it with its predecessor.
fn merge(rings: &mut [RingDecoder<'_>]) -> Vec<Event> {
    let mut events = Vec::new();
    for ring in &mut *rings {
        ring.advance();
    }
    let time = |ring: &&mut RingDecoder<'_>| ring.next.as_ref().and_then(|event| event.time);
    let pending = |ring: &&mut RingDecoder<'_>| ring.next.is_some();
    while let Some(ring) = rings.iter_mut().filter(pending).min_by_key(time) {
        if let Some(mut event) = ring.next.take() {
            event.index = events.len();
            events.push(event);
        }
        ring.advance();
    }
    events
}

/// The records of one ring, one at a time.
#[derive(Debug)]
struct RingDecoder<'a> {
    ring: u32,
    cpu: u32,
    ring_index: usize,
    /// Where the first record begins.
    begin: u64,
    layouts: Layouts,
    records: Records<'a>,
    /// The record to be merged next.
    next: Option<Event>,
    position: usize,
    /// Why the reader of the ring stopped, if it did.
    stopped: Option<&'a str>,
    complaints: Vec<String>,
    more_complaints: usize,
}

impl<'a> RingDecoder<'a> {
    fn new(recording: &'a Recording, bytes: &'a RingBytes) -> Result<Self, RingDecodeError> {
        let ring = bytes.ring;
        let is_this = |announce: &RingAnnounce| announce.ring == ring;
        let rings = recording.rings.iter().enumerate();
        let Some((ring_index, announce)) = { rings }.find(|(_, it)| is_this(it)) else {
            return Err(RingDecodeError::NotAnnounced { ring });
        };
        let layouts = Layouts::new(ring, &recording.events, recording.tracing.as_ref()).map_err(
            |source| RingDecodeError::Layout {
                ring,
                cpu: announce.cpu,
                source,
            },
        )?;
        Ok(Self {
            ring,
            cpu: announce.cpu,
            ring_index,
            begin: bytes.begin,
            layouts,
            records: Records::new(&bytes.bytes),
            next: None,
            position: 0,
            stopped: bytes.corrupt.as_deref(),
            complaints: Vec::new(),
            more_complaints: 0,
        })
    }

    /// Decodes the next record into `next`; `None` at the end.
    fn advance(&mut self) {
        let start = self.begin.saturating_add(self.records.offset() as u64);
        let raw = match self.records.next() {
            Some(Ok(raw)) => raw,
            Some(Err(error)) => return self.complain(&error),
            None => return,
        };
        let (id, kind) = self.take_apart(&raw);
        self.next = Some(Event {
            index: 0,
            ring: self.ring,
            cpu: self.cpu,
            ring_index: self.ring_index,
            position: self.position,
            start,
            time: id.time,
            event: self.layouts.event(id.id),
            pid: id.pid,
            tid: id.tid,
            misc: raw.misc,
            size: raw.size,
            kind,
        });
        self.position += 1;
    }

    /// A record that cannot be parsed keeps its place in the trace as `Other`.
    fn take_apart(&mut self, raw: &RawRecord<'_>) -> (SampleId, EventKind) {
        let record_type = raw.record_type;
        let other = (SampleId::default(), EventKind::Other { record_type });
        let sample_type = match self.layouts.of(raw) {
            Some(Layout::Uniform(sample_type) | Layout::Identified(sample_type)) => sample_type,
            // `sample_type` decides all of a sample: parsed by a guess, it would be made-up
            // evidence.
            Some(Layout::Guessed(_)) if record_type == SAMPLE => {
                self.complain(&"sample of an unknown event");
                return other;
            }
            Some(Layout::Guessed(sample_type)) => sample_type,
            None => {
                self.complain(&"too short for its identifier");
                return other;
            }
        };
        match record::parse(raw, sample_type) {
            Ok(record) => {
                if record.id.id.is_some() && self.layouts.event(record.id.id).is_none() {
                    self.complain(&format_args!("type {record_type} of an unknown event"));
                }
                (record.id, record.kind)
            }
            Err(error) => {
                self.complain(&error);
                other
            }
        }
    }

    fn complain(&mut self, about: &dyn std::fmt::Display) {
        if self.complaints.len() < MAX_COMPLAINTS {
            self.complaints
                .push(format!("record {}: {about}", self.position));
        } else {
            self.more_complaints += 1;
        }
    }

    fn report(self, into: &mut Vec<String>) {
        let (ring, cpu) = (self.ring, self.cpu);
        let say = |what: String| format!("ring {ring} (cpu {cpu}): {what}");
        into.extend(self.complaints.into_iter().map(say));
        if self.more_complaints > 0 {
            into.push(say(format!("{} more like these", self.more_complaints)));
        }
        into.extend(self.stopped.map(|reason| say(reason.to_owned())));
    }
}

#[cfg(test)]
mod tests;
