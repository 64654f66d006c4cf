//! The body of `PERF_RECORD_SAMPLE`: the fields that `sample_type` names, in the ABI's order,
//! which is neither that of the bits nor that of `struct sample_id`.
//!
//! Source: the comment at `PERF_RECORD_SAMPLE` in include/uapi/linux/perf_event.h, and
//! `perf_output_sample` in kernel/events/core.c, Linux 7.2.

use super::RecordError;
use super::fields::Fields;
use super::sample_id::{
    ADDR, CALLCHAIN, CGROUP, CODE_PAGE_SIZE, CPU, DATA_PAGE_SIZE, DATA_SRC, ID, IDENTIFIER, IP,
    PERIOD, PHYS_ADDR, RAW, READ, REGS_INTR, REGS_USER, STACK_USER, STREAM_ID, SampleId,
    SampleType, TID, TIME, TRANSACTION, WEIGHT,
};
use crate::trace::model::Sample;

/// Reads a whole body. Bytes left over mean that `sample_type` is not that of the record.
pub(super) fn parse(body: &[u8], with: SampleType) -> Result<(SampleId, Sample), RecordError> {
    let mut fields = Fields::new(body, with.endian);
    let parsed = read(&mut fields, with).ok_or(RecordError::TooShort { what: "sample" })?;
    match fields.len() {
        0 => Ok(parsed),
        left => Err(RecordError::LeftOver { left }),
    }
}

fn read(fields: &mut Fields<'_>, with: SampleType) -> Option<(SampleId, Sample)> {
    let mut id = SampleId::default();
    let mut sample = Sample::default();
    if with.has(IDENTIFIER) {
        id.id = Some(fields.u64()?);
    }
    if with.has(IP) {
        sample.ip = Some(fields.u64()?);
    }
    if with.has(TID) {
        let (pid, tid) = fields.pair()?;
        (id.pid, id.tid) = (Some(pid), Some(tid));
    }
    if with.has(TIME) {
        id.time = Some(fields.u64()?);
    }
    words(fields, with, &[ADDR])?;
    if with.has(ID) {
        let value = fields.u64()?;
        id.id = id.id.or(Some(value));
    }
    if with.has(STREAM_ID) {
        fields.u64()?;
    }
    if with.has(CPU) {
        id.cpu = Some(fields.pair()?.0);
    }
    if with.has(PERIOD) {
        sample.period = Some(fields.u64()?);
    }
    if with.has(READ) {
        read_values(fields, with.read_format)?;
    }
    if with.has(CALLCHAIN) {
        let count = fields.u64()?;
        sample.chain = Some(fields.u64s(count)?);
    }
    if with.has(RAW) {
        sample.raw = Some(raw(fields)?);
    }
    if with.has(REGS_USER) {
        let (abi, values) = registers(fields, with.regs_user)?;
        (sample.user_abi, sample.regs_user) = (abi, Some(values));
    }
    if with.has(STACK_USER) {
        sample.stack_user = Some(stack(fields)?);
    }
    words(fields, with, &[WEIGHT, DATA_SRC, TRANSACTION])?;
    if with.has(REGS_INTR) {
        registers(fields, with.regs_intr)?;
    }
    let last = [PHYS_ADDR, CGROUP, DATA_PAGE_SIZE, CODE_PAGE_SIZE];
    words(fields, with, &last)?;
    Some((id, sample))
}

/// The fields of one word among these that are there.
fn words(fields: &mut Fields<'_>, with: SampleType, bits: &[u64]) -> Option<()> {
    for &bit in bits {
        if with.has(bit) {
            fields.u64()?;
        }
    }
    Some(())
}

/// `PERF_FORMAT_*` of `read_format`.
mod read_format {
    pub(super) const TOTAL_TIME_ENABLED: u64 = 1 << 0;
    pub(super) const TOTAL_TIME_RUNNING: u64 = 1 << 1;
    pub(super) const ID: u64 = 1 << 2;
    pub(super) const GROUP: u64 = 1 << 3;
    pub(super) const LOST: u64 = 1 << 4;
}

/// `struct read_format`: the times once, value, id and count of losses once for each event of the
/// group, behind the number of events; or for the event alone.
fn read_values(fields: &mut Fields<'_>, format: u64) -> Option<()> {
    let count = |bits: u64| u64::from((format & bits).count_ones());
    let times = count(read_format::TOTAL_TIME_ENABLED | read_format::TOTAL_TIME_RUNNING);
    let each = 1 + count(read_format::ID | read_format::LOST);
    let events = match format & read_format::GROUP {
        0 => 1,
        _ => fields.u64()?,
    };
    fields.u64s(times)?;
    fields.u64s(events.checked_mul(each)?)?;
    Some(())
}

/// `u64 abi, u64 regs[weight(mask)]`; the registers are there if `abi` is not 0
/// (`PERF_SAMPLE_REGS_ABI_NONE`).
fn registers(fields: &mut Fields<'_>, mask: u64) -> Option<(u64, Vec<u64>)> {
    match fields.u64()? {
        0 => Some((0, Vec::new())),
        abi => Some((abi, fields.u64s(mask.count_ones().into())?)),
    }
}

/// `u64 size, char data[size], u64 dyn_size`; the last one is there if `size` is not 0
/// (`perf_prepare_sample`), and says how many bytes were copied.
fn stack(fields: &mut Fields<'_>) -> Option<Vec<u8>> {
    let size = fields.u64()?;
    if size == 0 {
        return Some(Vec::new());
    }
    let bytes = fields.bytes(usize::try_from(size).ok()?)?;
    let copied = usize::try_from(fields.u64()?).unwrap_or(usize::MAX);
    Some(bytes.get(..copied).unwrap_or(bytes).to_vec())
}

/// `u32 size, char data[size]`, together a multiple of 8 bytes. The kernel counts its padding to 8
/// bytes in `size` (`perf_sample_save_raw_data`); where it does not, the padding is stepped over.
fn raw(fields: &mut Fields<'_>) -> Option<Vec<u8>> {
    let size = usize::try_from(fields.u32()?).ok()?;
    let data = fields.bytes(size)?.to_vec();
    let whole = size.checked_add(4)?.next_multiple_of(8);
    fields.bytes(whole - 4 - size)?;
    Some(data)
}
