//! The body of `PERF_RECORD_SAMPLE`: the fields that `sample_type` names, in the ABI's order,
//! which is neither that of the bits nor that of `struct sample_id`.
//!
//! Source: the comment at `PERF_RECORD_SAMPLE` in include/uapi/linux/perf_event.h, and
//! `perf_output_sample` in kernel/events/core.c, Linux 7.2.

use super::RecordError;
use super::fields::Fields;
use super::sample_id::{
    ADDR, CALLCHAIN, CPU, ID, IDENTIFIER, IP, PERIOD, RAW, STREAM_ID, SampleId, SampleType, TID,
    TIME,
};
use crate::trace::model::Sample;

/// Reads a whole body. Bytes left over mean that `sample_type` is not that of the record.
pub(super) fn parse(body: &[u8], with: SampleType) -> Result<(SampleId, Sample), RecordError> {
    let mut fields = Fields::new(body);
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
    if with.has(ADDR) {
        fields.u64()?;
    }
    if with.has(ID) {
        let value = fields.u64()?;
        id.id = id.id.or(Some(value));
    }
    if with.has(STREAM_ID) {
        fields.u64()?;
    }
    if with.has(CPU) {
        fields.u64()?;
    }
    if with.has(PERIOD) {
        sample.period = Some(fields.u64()?);
    }
    if with.has(CALLCHAIN) {
        let count = fields.u64()?;
        sample.chain = Some(fields.u64s(count)?);
    }
    if with.has(RAW) {
        sample.raw = Some(raw(fields)?);
    }
    Some((id, sample))
}

/// `u32 size, char data[size]`. The kernel counts its padding to 8 bytes in `size`
/// (`perf_sample_save_raw_data`); where it does not, the padding is stepped over.
fn raw(fields: &mut Fields<'_>) -> Option<Vec<u8>> {
    let size = usize::try_from(fields.u32()?).ok()?;
    let data = fields.bytes(size)?.to_vec();
    fields.bytes(fields.len() % 8)?;
    Some(data)
}
