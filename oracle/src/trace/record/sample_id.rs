//! `attr.sample_type`, and the `struct sample_id` that it puts at the end of every record but
//! samples (`attr.sample_id_all`, which the agent always sets).
//!
//! Source: include/uapi/linux/perf_event.h, and `__perf_event__output_id_sample` in
//! kernel/events/core.c, Linux 7.2.

use super::fields::Fields;

/// `PERF_SAMPLE_IP`.
pub const IP: u64 = 1 << 0;
/// `PERF_SAMPLE_TID`.
pub const TID: u64 = 1 << 1;
/// `PERF_SAMPLE_TIME`.
pub const TIME: u64 = 1 << 2;
/// `PERF_SAMPLE_ADDR`.
pub const ADDR: u64 = 1 << 3;
/// `PERF_SAMPLE_CALLCHAIN`.
pub const CALLCHAIN: u64 = 1 << 5;
/// `PERF_SAMPLE_ID`.
pub const ID: u64 = 1 << 6;
/// `PERF_SAMPLE_CPU`.
pub const CPU: u64 = 1 << 7;
/// `PERF_SAMPLE_PERIOD`.
pub const PERIOD: u64 = 1 << 8;
/// `PERF_SAMPLE_STREAM_ID`.
pub const STREAM_ID: u64 = 1 << 9;
/// `PERF_SAMPLE_RAW`.
pub const RAW: u64 = 1 << 10;
/// `PERF_SAMPLE_IDENTIFIER`.
pub const IDENTIFIER: u64 = 1 << 16;

/// Every bit whose field the parser knows.
pub const SUPPORTED: u64 =
    IP | TID | TIME | ADDR | CALLCHAIN | ID | CPU | PERIOD | STREAM_ID | RAW | IDENTIFIER;

/// Bits outside [`SUPPORTED`]; a record with their fields cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sample_type bits {0:#x} are not supported; leave them out of the event")]
pub struct UnsupportedSampleType(pub u64);

/// A `sample_type` with supported bits only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleType(u64);

impl SampleType {
    /// Checks the bits.
    ///
    /// # Errors
    /// [`UnsupportedSampleType`].
    pub const fn new(bits: u64) -> Result<Self, UnsupportedSampleType> {
        match bits & !SUPPORTED {
            0 => Ok(Self(bits)),
            unknown => Err(UnsupportedSampleType(unknown)),
        }
    }

    /// Whether a bit is set.
    #[must_use]
    pub const fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    /// Bytes of `struct sample_id`: each of its six members takes 8.
    #[must_use]
    pub const fn trailer_len(self) -> usize {
        let members = self.0 & (TID | TIME | ID | STREAM_ID | CPU | IDENTIFIER);
        members.count_ones() as usize * 8
    }
}

/// Who wrote a record, and when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleId {
    /// Thread group id of the current task.
    pub pid: Option<u32>,
    /// Thread id of the current task.
    pub tid: Option<u32>,
    /// Nanoseconds of the perf clock.
    pub time: Option<u64>,
    /// The event, by `IDENTIFIER` or else `ID`.
    pub id: Option<u64>,
}

impl SampleId {
    /// Reads the members in the order they have at the end of a record. `None` if `fields` is
    /// too short.
    pub(super) fn read(fields: &mut Fields<'_>, sample_type: SampleType) -> Option<Self> {
        let mut id = Self::default();
        if sample_type.has(TID) {
            let (pid, tid) = fields.pair()?;
            (id.pid, id.tid) = (Some(pid), Some(tid));
        }
        if sample_type.has(TIME) {
            id.time = Some(fields.u64()?);
        }
        if sample_type.has(ID) {
            id.id = Some(fields.u64()?);
        }
        if sample_type.has(STREAM_ID) {
            fields.u64()?;
        }
        if sample_type.has(CPU) {
            fields.u64()?;
        }
        if sample_type.has(IDENTIFIER) {
            id.id = Some(fields.u64()?);
        }
        Some(id)
    }
}
