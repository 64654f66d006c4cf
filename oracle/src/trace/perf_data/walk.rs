//! The records of the data section, in the order of the file.

use std::collections::BTreeMap;

use super::attr::Attr;
use super::header::Features;
use super::{Endian, Limits, PerfDataError, shown};
use crate::trace::framing::{HEADER_LEN, RawRecord};
use crate::trace::model::EventKind;
use crate::trace::record::fields::{Fields, text};
use crate::trace::record::sample_id::{SampleId, SampleType};
use crate::trace::record::{self, record_type};

/// `PERF_RECORD_*` of perf's own (`enum perf_user_event_type`, lib/perf/include/perf/event.h, Linux 7.3).
pub(super) mod own {
    /// The first of them.
    pub const START: u32 = 64;
    pub const HEADER_ATTR: u32 = 64;
    pub const TRACING_DATA: u32 = 66;
    pub const FINISHED_ROUND: u32 = 68;
    pub const ID_INDEX: u32 = 69;
    pub const AUXTRACE: u32 = 71;
    pub const EVENT_UPDATE: u32 = 78;
    pub const HEADER_FEATURE: u32 = 80;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
    /// Those whose size need not be a multiple of 8 (`perf_session__process_event`).
    pub const UNALIGNED: [u32; 3] = [TRACING_DATA, HEADER_FEATURE, COMPRESSED];
    /// `PERF_EVENT_UPDATE__NAME`.
    pub const NAME: u64 = 2;
}

/// Kernel records of types that perf makes itself for what was there before, at time 0: MMAP, COMM, FORK, MMAP2,
/// NAMESPACES, KSYMBOL, BPF_EVENT, CGROUP.
const MADE: [u32; 8] = [1, 3, 7, 10, 16, 17, 18, 19];
/// What stands for a CPU or a task where there is none.
const NONE: u32 = u32::MAX;

/// A record of the kernel.
#[derive(Debug)]
pub(super) struct Record {
    pub cpu: Option<u32>,
    pub id: SampleId,
    /// Number of its attr.
    pub attr: Option<usize>,
    pub misc: u16,
    pub size: u16,
    pub kind: EventKind,
}

/// An event, by `PERF_RECORD_ID_INDEX`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opened {
    pub cpu: u32,
    pub tid: u32,
}

/// What was read of the records so far.
#[derive(Debug)]
pub(super) struct Walk {
    pub endian: Endian,
    pub limits: Limits,
    pub attrs: Vec<Attr>,
    pub features: Features,
    pub records: Vec<Record>,
    pub opened: BTreeMap<u64, Opened>,
    pub cut: Option<String>,
    pub kernel_text: Option<u64>,
    /// Everything before this time is there, also in a file that is cut short: the latest time of the round before
    /// the last whole one, as perf sorts (`ordered_events__flush`).
    pub complete_to: Option<u64>,
    /// Samples were lost at times that are not known.
    pub lost_at_some_time: u64,
    /// Why records could not be used, and how many.
    pub left_out: BTreeMap<&'static str, usize>,
    round: Option<u64>,
    latest: Option<u64>,
    /// Pieces of the compressed stream.
    compressed: Vec<u8>,
    /// By id: the number of an attr.
    by_id: BTreeMap<u64, usize>,
    layouts: Vec<Option<SampleType>>,
    /// Whether all of them are the same.
    uniform: bool,
    /// Whether each tells where a record says of which event it is.
    identified: bool,
}

impl Walk {
    pub fn new(endian: Endian, limits: Limits, attrs: Vec<Attr>, features: Features) -> Self {
        let mut walk = Self {
            endian,
            limits,
            attrs: Vec::new(),
            features,
            records: Vec::new(),
            opened: BTreeMap::new(),
            cut: None,
            kernel_text: None,
            complete_to: None,
            lost_at_some_time: 0,
            left_out: BTreeMap::new(),
            round: None,
            latest: None,
            compressed: Vec::new(),
            by_id: BTreeMap::new(),
            layouts: Vec::new(),
            uniform: true,
            identified: true,
        };
        for attr in attrs {
            walk.add_attr(attr);
        }
        walk
    }

    fn add_attr(&mut self, attr: Attr) {
        let number = self.attrs.len();
        self.by_id.extend(attr.ids.iter().map(|&id| (id, number)));
        let spec = attr.spec(number, false, false, true);
        let layout = SampleType::of(&spec).ok();
        let layout = layout.map(|it| it.written(self.endian));
        self.layouts.push(layout);
        self.uniform &= self.layouts.first() == Some(&layout);
        self.identified &= layout.is_none_or(SampleType::identifies);
        self.attrs.push(attr);
    }

    /// Reads all records, those that are compressed last: perf compresses all of the kernel's or none.
    pub fn all(&mut self, data: &[u8]) -> Result<(), PerfDataError> {
        self.section(data)?;
        if self.compressed.is_empty() {
            return Ok(());
        }
        let stream = std::mem::take(&mut self.compressed);
        let (content, whole) = super::inflate::inflate(&stream, self.limits.inflated)?;
        if !whole {
            self.broken("a compressed record cannot be unpacked");
        }
        // Which rounds they are of is not known.
        self.complete_to = None;
        self.section(&content)
    }

    fn broken(&mut self, why: impl Into<String>) {
        self.cut.get_or_insert(why.into());
    }

    fn section(&mut self, bytes: &[u8]) -> Result<(), PerfDataError> {
        let mut fields = Fields::new(bytes, self.endian);
        while fields.len() > 0 {
            let (Some(kind), Some(misc), Some(size)) = (fields.u32(), fields.u16(), fields.u16())
            else {
                self.broken("it ends within a record's header");
                return Ok(());
            };
            let ok = size.is_multiple_of(8) || own::UNALIGNED.contains(&kind);
            let body = usize::from(size).checked_sub(HEADER_LEN).filter(|_| ok);
            let Some(length) = body else {
                self.broken(format!(
                    "a record of type {kind} says that it has {size} bytes"
                ));
                return Ok(());
            };
            let Some(body) = fields.bytes(length) else {
                self.broken("it ends within a record");
                return Ok(());
            };
            if kind < own::START {
                self.kernel(&RawRecord {
                    record_type: kind,
                    misc,
                    size,
                    body,
                })?;
                continue;
            }
            let behind = self.own(kind, body)?;
            if behind > 0
                && usize::try_from(behind)
                    .ok()
                    .and_then(|len| fields.bytes(len))
                    .is_none()
            {
                self.broken("it ends within what follows a record");
                return Ok(());
            }
        }
        Ok(())
    }

    /// A record of perf's own; how many bytes follow it that are no record.
    fn own(&mut self, kind: u32, body: &[u8]) -> Result<u64, PerfDataError> {
        let mut fields = Fields::new(body, self.endian);
        match kind {
            own::TRACING_DATA => return Ok(fields.u32().unwrap_or(0).into()),
            own::AUXTRACE => return Ok(fields.u64().unwrap_or(0)),
            own::FINISHED_ROUND => {
                self.complete_to = self.round;
                self.round = self.latest;
            }
            own::HEADER_ATTR => {
                let damaged = || PerfDataError::Damaged("an attribute makes no sense".to_owned());
                let size = Attr::size(body, self.endian).ok_or_else(damaged)?;
                let (attr, ids) = body.split_at_checked(size).ok_or_else(damaged)?;
                let attr = Attr::read(attr, self.endian).ok_or_else(damaged)?;
                let ids = Fields::new(ids, self.endian).words(ids.len());
                self.add_attr(Attr {
                    ids: ids.unwrap_or_default(),
                    ..attr
                });
            }
            own::EVENT_UPDATE => {
                if let (Some(own::NAME), Some(id)) = (fields.u64(), fields.u64())
                    && let Some(attr) = self.by_id.get(&id).and_then(|&at| self.attrs.get_mut(at))
                {
                    attr.name = shown(&text(fields.rest()));
                }
            }
            own::HEADER_FEATURE => {
                if let Some(bit) = fields.u64() {
                    self.features.read(bit, fields.rest(), self.endian)?;
                }
            }
            own::ID_INDEX => {
                let count = fields.u64().unwrap_or(0);
                for _ in 0..count {
                    let entry = [fields.u64(), fields.u64(), fields.u64(), fields.u64()];
                    let [Some(id), Some(_), Some(cpu), Some(tid)] = entry else {
                        break;
                    };
                    // -1 is none.
                    let [cpu, tid] = [cpu, tid].map(|it| u32::try_from(it).unwrap_or(NONE));
                    self.opened.insert(id, Opened { cpu, tid });
                }
            }
            own::COMPRESSED => self.compressed.extend(body),
            own::COMPRESSED2 => {
                let len = fields.u64().and_then(|len| usize::try_from(len).ok());
                match len.and_then(|len| fields.bytes(len)) {
                    Some(piece) => self.compressed.extend(piece),
                    None => self.broken("a compressed record is longer than itself"),
                }
            }
            _ => {}
        }
        Ok(0)
    }

    /// What it said is not known: it counts as lost.
    fn leave_out(&mut self, why: &'static str) {
        self.lost_at_some_time = self.lost_at_some_time.saturating_add(1);
        *self.left_out.entry(why).or_default() += 1;
    }

    fn kernel(&mut self, raw: &RawRecord<'_>) -> Result<(), PerfDataError> {
        if self.records.len() >= self.limits.records {
            return Err(PerfDataError::TooMuch {
                what: "records",
                limit: self.limits.records as u64,
            });
        }
        let Some((attr, layout)) = self.layout(raw) else {
            self.leave_out("records of an event that the file does not describe");
            return Ok(());
        };
        let Ok(record) = record::parse(raw, layout) else {
            self.leave_out("records that their fields do not fit");
            return Ok(());
        };
        self.look_for_kernel(&record.kind);
        if record.id.time == Some(0) {
            match record.kind {
                EventKind::LostSamples { lost } => {
                    self.lost_at_some_time = self.lost_at_some_time.saturating_add(lost);
                }
                _ if MADE.contains(&raw.record_type) => return Ok(()),
                _ => {}
            }
        }
        self.latest = self.latest.max(record.id.time);
        let opened = record.id.id.and_then(|id| self.opened.get(&id));
        let by_index = opened.map(|it| it.cpu).filter(|&cpu| cpu != NONE);
        self.records.push(Record {
            cpu: record.id.cpu.or(by_index),
            id: record.id,
            attr,
            misc: raw.misc,
            size: raw.size,
            kind: record.kind,
        });
        Ok(())
    }

    /// The event of a record, and how its records are laid out.
    fn layout(&self, raw: &RawRecord<'_>) -> Option<(Option<usize>, SampleType)> {
        if let [Some(only)] = self.layouts.as_slice() {
            return Some((Some(0), *only));
        }
        let first = (*self.layouts.first()?)?;
        let word = |bytes: Option<&[u8; 8]>| Some(self.endian.u64(*bytes?));
        if self.uniform && !first.identifies() {
            // `PERF_SAMPLE_ID` tells the event, if it is there.
            let id = record::parse(raw, first).ok()?.id.id;
            let attr = id.and_then(|id| self.by_id.get(&id)).copied();
            return Some((attr, first));
        }
        if !self.identified {
            return None;
        }
        let id = match raw.record_type {
            record_type::SAMPLE => word(raw.body.first_chunk())?,
            _ => word(raw.body.last_chunk())?,
        };
        match self.by_id.get(&id) {
            Some(&attr) => Some((Some(attr), (*self.layouts.get(attr)?)?)),
            // What perf made up is laid out as the records of the first event (`perf_event__synthesize_id_sample`).
            None if raw.record_type != record_type::SAMPLE && id == 0 => Some((None, first)),
            None => None,
        }
    }

    /// Where the kernel's text was: the mapping that perf makes up for it.
    fn look_for_kernel(&mut self, kind: &EventKind) {
        if let EventKind::Mmap { addr, filename, .. } = kind
            && filename == "[kernel.kallsyms]_text"
        {
            self.kernel_text.get_or_insert(*addr);
        }
    }
}
