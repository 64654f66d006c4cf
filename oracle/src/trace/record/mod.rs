//! One record: from bytes to [`EventKind`].
//!
//! A body is read from its front and the `sample_id` trailer from its back, as the ABI demands, so
//! fields that a later kernel adds between the two do not matter. Source of every layout:
//! `enum perf_event_type` in include/uapi/linux/perf_event.h, Linux 7.2.

pub(super) mod fields;
pub(super) mod layout;
mod sample;
pub(super) mod sample_id;
#[cfg(test)]
mod tests;

use super::framing::RawRecord;
use super::model::{CallchainDeferred, EventKind};
use fields::{Fields, text};
use sample_id::{SampleId, SampleType};

/// `PERF_RECORD_*`, as far as they are decoded.
pub mod record_type {
    #![allow(missing_docs, reason = "the kernel's own names")]
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const UNTHROTTLE: u32 = 6;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const LOST_SAMPLES: u32 = 13;
    pub const SWITCH: u32 = 14;
    pub const SWITCH_CPU_WIDE: u32 = 15;
    pub const CALLCHAIN_DEFERRED: u32 = 22;
}

/// `PERF_RECORD_MISC_SWITCH_OUT`, and `PERF_RECORD_MISC_COMM_EXEC` of another record.
const MISC_13: u16 = 1 << 13;
/// `PERF_RECORD_MISC_SWITCH_OUT_PREEMPT`.
const MISC_14: u16 = 1 << 14;
/// Bytes of MMAP2 between `pgoff` and the file name: device and inode or build id, prot, flags.
const MMAP2_EXTRA: usize = 32;

/// Why a record cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum RecordError {
    /// The body ends before its fields do.
    #[error("{what} ends before its fields do")]
    TooShort { what: &'static str },
    /// A sample has bytes after its last field.
    #[error("sample has {left} bytes behind its last field")]
    LeftOver { left: usize },
}

/// A parsed record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Who wrote it and when; pid and tid are the body's own where `sample_type` asks for none.
    pub id: SampleId,
    /// What it says.
    pub kind: EventKind,
}

/// Parses a record. `sample_type` is that of the event that wrote it.
///
/// # Errors
/// [`RecordError`] if the body does not hold what its type and `sample_type` promise.
pub fn parse(raw: &RawRecord<'_>, sample_type: SampleType) -> Result<Record, RecordError> {
    let mut record = parse_fields(raw, sample_type)?;
    if sample_type.own_clock {
        record.id.time = None;
    }
    Ok(record)
}

fn parse_fields(raw: &RawRecord<'_>, sample_type: SampleType) -> Result<Record, RecordError> {
    if raw.record_type == record_type::SAMPLE {
        let (id, sample) = sample::parse(raw.body, sample_type)?;
        let kind = EventKind::Sample(sample);
        return Ok(Record { id, kind });
    }
    let what = name(raw.record_type);
    let too_short = RecordError::TooShort { what };
    let body_len = raw.body.len().checked_sub(sample_type.trailer_len());
    let (body, trailer) = body_len
        .and_then(|len| raw.body.split_at_checked(len))
        .ok_or(too_short)?;
    let mut id = SampleId::read(&mut Fields::new(trailer, sample_type.endian), sample_type)
        .ok_or(too_short)?;
    let kind = side_band(raw, Fields::new(body, sample_type.endian), &mut id).ok_or(too_short)?;
    Ok(Record { id, kind })
}

/// The kernel's word for a type, for messages.
const fn name(record_type: u32) -> &'static str {
    match record_type {
        record_type::MMAP => "mmap record",
        record_type::LOST => "lost record",
        record_type::COMM => "comm record",
        record_type::EXIT => "exit record",
        record_type::THROTTLE | record_type::UNTHROTTLE => "throttle record",
        record_type::FORK => "fork record",
        record_type::SAMPLE => "sample",
        record_type::MMAP2 => "mmap2 record",
        record_type::LOST_SAMPLES => "lost-samples record",
        record_type::SWITCH | record_type::SWITCH_CPU_WIDE => "switch record",
        record_type::CALLCHAIN_DEFERRED => "callchain-deferred record",
        _ => "record",
    }
}

/// Everything but samples. `None`: too short.
fn side_band(raw: &RawRecord<'_>, mut body: Fields<'_>, id: &mut SampleId) -> Option<EventKind> {
    let bit_13 = raw.misc & MISC_13 != 0;
    Some(match raw.record_type {
        record_type::CALLCHAIN_DEFERRED => deferred(body)?,
        record_type::LOST => EventKind::Lost {
            id: body.u64()?,
            lost: body.u64()?,
        },
        record_type::LOST_SAMPLES => EventKind::LostSamples { lost: body.u64()? },
        record_type::SWITCH => EventKind::Switch {
            out: bit_13,
            preempt: raw.misc & MISC_14 != 0,
            other: None,
        },
        record_type::SWITCH_CPU_WIDE => EventKind::Switch {
            out: bit_13,
            preempt: raw.misc & MISC_14 != 0,
            other: Some(body.pair()?),
        },
        record_type::MMAP => mmap(body, 0, id)?,
        record_type::MMAP2 => mmap(body, MMAP2_EXTRA, id)?,
        record_type::COMM => {
            task(&mut body, id)?;
            EventKind::Comm {
                comm: text(body.rest()),
                exec: bit_13,
            }
        }
        record_type::FORK => {
            let [pid, ppid, tid, ptid] = family(&mut body, id)?;
            EventKind::Fork {
                pid,
                ppid,
                tid,
                ptid,
            }
        }
        record_type::EXIT => {
            let [pid, ppid, tid, ptid] = family(&mut body, id)?;
            id.pid = id.pid.or(Some(pid));
            id.tid = id.tid.or(Some(tid));
            EventKind::Exit {
                pid,
                ppid,
                tid,
                ptid,
            }
        }
        record_type::THROTTLE | record_type::UNTHROTTLE => {
            let time = body.u64()?;
            id.time = id.time.or(Some(time));
            EventKind::Throttle {
                on: raw.record_type == record_type::THROTTLE,
                id: body.u64()?,
            }
        }
        record_type => EventKind::Other { record_type },
    })
}

/// `u64 cookie, nr, ips[nr]`. Where `nr` is more than the record holds, returns what it holds: A2
/// judges whether the two agree.
fn deferred(mut body: Fields<'_>) -> Option<EventKind> {
    let (cookie, nr) = (body.u64()?, body.u64()?);
    let there = body.len() / 8;
    let count = usize::try_from(nr).map_or(there, |nr| nr.min(there));
    let ips = body.words(count * 8)?;
    Some(EventKind::CallchainDeferred(CallchainDeferred {
        cookie,
        nr,
        ips,
    }))
}

/// `u32 pid, tid`: used where the trailer has none.
fn task(body: &mut Fields<'_>, id: &mut SampleId) -> Option<()> {
    let (pid, tid) = body.pair()?;
    id.pid = id.pid.or(Some(pid));
    id.tid = id.tid.or(Some(tid));
    Some(())
}

/// `u32 pid, ppid, tid, ptid, u64 time` of FORK and EXIT.
fn family(body: &mut Fields<'_>, id: &mut SampleId) -> Option<[u32; 4]> {
    let (pid, ppid) = body.pair()?;
    let (tid, ptid) = body.pair()?;
    let time = body.u64()?;
    id.time = id.time.or(Some(time));
    Some([pid, ppid, tid, ptid])
}

fn mmap(mut body: Fields<'_>, extra: usize, id: &mut SampleId) -> Option<EventKind> {
    task(&mut body, id)?;
    let (addr, len, pgoff) = (body.u64()?, body.u64()?, body.u64()?);
    body.bytes(extra)?;
    Some(EventKind::Mmap {
        addr,
        len,
        pgoff,
        filename: text(body.rest()),
    })
}
