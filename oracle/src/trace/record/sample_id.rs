//! `attr.sample_type`, and the `struct sample_id` that it puts at the end of every record but
//! samples, if the event has `attr.sample_id_all`.
//!
//! Source: include/uapi/linux/perf_event.h, and `__perf_event__output_id_sample` in
//! kernel/events/core.c, Linux 7.2.

use unwindlab_abi::EventSpec;
use unwindlab_abi::attr::flag;

use super::fields::{Endian, Fields};

/// `PERF_SAMPLE_IP`.
pub const IP: u64 = 1 << 0;
/// `PERF_SAMPLE_TID`.
pub const TID: u64 = 1 << 1;
/// `PERF_SAMPLE_TIME`.
pub const TIME: u64 = 1 << 2;
/// `PERF_SAMPLE_ADDR`.
pub const ADDR: u64 = 1 << 3;
/// `PERF_SAMPLE_READ`.
pub const READ: u64 = 1 << 4;
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
/// `PERF_SAMPLE_REGS_USER`.
pub const REGS_USER: u64 = 1 << 12;
/// `PERF_SAMPLE_STACK_USER`.
pub const STACK_USER: u64 = 1 << 13;
/// `PERF_SAMPLE_WEIGHT` and `PERF_SAMPLE_WEIGHT_STRUCT`: two forms of one field.
pub const WEIGHT: u64 = 1 << 14 | 1 << 24;
/// `PERF_SAMPLE_DATA_SRC`.
pub const DATA_SRC: u64 = 1 << 15;
/// `PERF_SAMPLE_IDENTIFIER`.
pub const IDENTIFIER: u64 = 1 << 16;
/// `PERF_SAMPLE_TRANSACTION`.
pub const TRANSACTION: u64 = 1 << 17;
/// `PERF_SAMPLE_REGS_INTR`.
pub const REGS_INTR: u64 = 1 << 18;
/// `PERF_SAMPLE_PHYS_ADDR`.
pub const PHYS_ADDR: u64 = 1 << 19;
/// `PERF_SAMPLE_CGROUP`.
pub const CGROUP: u64 = 1 << 21;
/// `PERF_SAMPLE_DATA_PAGE_SIZE`.
pub const DATA_PAGE_SIZE: u64 = 1 << 22;
/// `PERF_SAMPLE_CODE_PAGE_SIZE`.
pub const CODE_PAGE_SIZE: u64 = 1 << 23;

/// Every bit whose field the parser knows: all of Linux 7.3 but those that only a hardware event
/// can have (`BRANCH_STACK`, `AUX`).
pub const SUPPORTED: u64 = IP
    | TID
    | TIME
    | ADDR
    | READ
    | CALLCHAIN
    | ID
    | CPU
    | PERIOD
    | STREAM_ID
    | RAW
    | REGS_USER
    | STACK_USER
    | WEIGHT
    | DATA_SRC
    | IDENTIFIER
    | TRANSACTION
    | REGS_INTR
    | PHYS_ADDR
    | CGROUP
    | DATA_PAGE_SIZE
    | CODE_PAGE_SIZE;

/// Bits outside [`SUPPORTED`]; a record with their fields cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sample_type bits {0:#x} are not supported; leave them out of the event")]
pub struct UnsupportedSampleType(pub u64);

/// What an event's attr says of the layout of its records: a `sample_type` with supported bits
/// only, and what other fields of the attr add to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleType {
    bits: u64,
    /// `read_format`, the layout of the field of [`READ`].
    pub(super) read_format: u64,
    /// The registers in the field of [`REGS_USER`].
    pub(super) regs_user: u64,
    /// The registers in the field of [`REGS_INTR`].
    pub(super) regs_intr: u64,
    has_trailer: bool,
    /// Times are of a clock of the event's own, and cannot be compared with those of others.
    pub(super) own_clock: bool,
    /// The order of bytes of the machine that wrote.
    pub(super) endian: Endian,
}

impl SampleType {
    /// Checks the bits. Every record that is no sample has a trailer.
    ///
    /// # Errors
    /// [`UnsupportedSampleType`].
    pub const fn new(bits: u64) -> Result<Self, UnsupportedSampleType> {
        match bits & !SUPPORTED {
            0 => Ok(Self {
                bits,
                read_format: 0,
                regs_user: 0,
                regs_intr: 0,
                has_trailer: true,
                own_clock: false,
                endian: Endian::Little,
            }),
            unknown => Err(UnsupportedSampleType(unknown)),
        }
    }

    /// The layout of an event's records.
    ///
    /// # Errors
    /// [`UnsupportedSampleType`].
    pub fn of(spec: &EventSpec) -> Result<Self, UnsupportedSampleType> {
        Ok(Self {
            read_format: spec.details.read_format,
            regs_user: spec.details.regs_user,
            regs_intr: spec.details.regs_intr,
            has_trailer: spec.details.clear & flag::SAMPLE_ID_ALL == 0,
            own_clock: spec.details.set & flag::USE_CLOCKID != 0,
            ..Self::new(spec.sample_type)?
        })
    }

    /// The same, written by a machine with this order of bytes.
    #[must_use]
    pub const fn written(self, endian: Endian) -> Self {
        Self { endian, ..self }
    }

    /// Whether one of these bits is set.
    #[must_use]
    pub const fn has(self, bits: u64) -> bool {
        self.bits & bits != 0
    }

    /// Whether each record names the event that wrote it at a place that does not depend on the
    /// event.
    #[must_use]
    pub const fn identifies(self) -> bool {
        self.has_trailer && self.has(IDENTIFIER)
    }

    /// Whether every record that is no sample ends in a `struct sample_id`.
    #[must_use]
    pub const fn has_trailer(self) -> bool {
        self.has_trailer
    }

    /// Bytes of `struct sample_id`: each of its six members takes 8.
    #[must_use]
    pub const fn trailer_len(self) -> usize {
        if !self.has_trailer {
            return 0;
        }
        let members = self.bits & (TID | TIME | ID | STREAM_ID | CPU | IDENTIFIER);
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
    /// The CPU.
    pub cpu: Option<u32>,
}

impl SampleId {
    /// Reads the members in the order they have at the end of a record. `None` if `fields` is
    /// too short.
    pub(super) fn read(fields: &mut Fields<'_>, sample_type: SampleType) -> Option<Self> {
        let mut id = Self::default();
        if !sample_type.has_trailer() {
            return Some(id);
        }
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
            id.cpu = Some(fields.pair()?.0);
        }
        if sample_type.has(IDENTIFIER) {
            id.id = Some(fields.u64()?);
        }
        Some(id)
    }
}
