//! For tests: writes records as the kernel does, from the ABI's comments and not from the parser.

use super::sample_id::*;

/// Everything a `sample_type` can ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) identifier: u64,
    pub(crate) ip: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) time: u64,
    pub(crate) addr: u64,
    pub(crate) stream_id: u64,
    pub(crate) cpu: u32,
    pub(crate) period: u64,
}

/// Bytes with little-endian fields.
#[derive(Debug, Clone, Default)]
pub(crate) struct Body(pub(crate) Vec<u8>);

impl Body {
    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn u64s(self, values: &[u64]) -> Self {
        values.iter().fold(self, |body, &value| body.u64(value))
    }

    /// A NUL-terminated string, padded with NULs to 8 bytes.
    pub(crate) fn text(mut self, text: &[u8]) -> Self {
        self.0.extend(text);
        self.0.push(0);
        let padded = self.0.len().next_multiple_of(8);
        self.0.resize(padded, 0);
        self
    }

    fn when(self, wanted: bool, write: impl FnOnce(Self) -> Self) -> Self {
        if wanted { write(self) } else { self }
    }
}

/// A whole record: header and body.
pub(crate) fn record(record_type: u32, misc: u16, body: &Body) -> Vec<u8> {
    let size = u16::try_from(8 + body.0.len()).expect("test record fits a u16 size");
    let mut bytes = record_type.to_le_bytes().to_vec();
    bytes.extend(misc.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    bytes.extend(&body.0);
    bytes
}

/// `PERF_RECORD_SAMPLE`; `raw` gets the kernel's padding.
pub(crate) fn sample(bits: u64, ids: &Ids, chain: &[u64], raw: &[u8]) -> Vec<u8> {
    let has = |bit: u64| bits & bit != 0;
    let body = Body::default()
        .when(has(IDENTIFIER), |b| b.u64(ids.identifier))
        .when(has(IP), |b| b.u64(ids.ip))
        .when(has(TID), |b| b.u32(ids.pid).u32(ids.tid))
        .when(has(TIME), |b| b.u64(ids.time))
        .when(has(ADDR), |b| b.u64(ids.addr))
        .when(has(ID), |b| b.u64(ids.identifier))
        .when(has(STREAM_ID), |b| b.u64(ids.stream_id))
        .when(has(CPU), |b| b.u32(ids.cpu).u32(0))
        .when(has(PERIOD), |b| b.u64(ids.period))
        .when(has(CALLCHAIN), |b| b.u64(chain.len() as u64).u64s(chain))
        .when(has(RAW), |b| {
            let raw = padded_raw(raw);
            let mut b = b.u32(u32::try_from(raw.len()).expect("test data is small"));
            b.0.extend(raw);
            b
        });
    record(9, 1, &body)
}

/// What the kernel makes of raw data: with its `u32` size in front it is a multiple of 8 bytes.
pub(crate) fn padded_raw(raw: &[u8]) -> Vec<u8> {
    let mut raw = raw.to_vec();
    let padded = (raw.len() + 4).next_multiple_of(8) - 4;
    raw.resize(padded, 0);
    raw
}

/// Any other record: body, then `struct sample_id`.
pub(crate) fn side_band(record_type: u32, misc: u16, body: Body, bits: u64, ids: &Ids) -> Vec<u8> {
    let has = |bit: u64| bits & bit != 0;
    let body = body
        .when(has(TID), |b| b.u32(ids.pid).u32(ids.tid))
        .when(has(TIME), |b| b.u64(ids.time))
        .when(has(ID), |b| b.u64(ids.identifier))
        .when(has(STREAM_ID), |b| b.u64(ids.stream_id))
        .when(has(CPU), |b| b.u32(ids.cpu).u32(0))
        .when(has(IDENTIFIER), |b| b.u64(ids.identifier));
    record(record_type, misc, &body)
}

/// `PERF_RECORD_CALLCHAIN_DEFERRED`.
pub(crate) fn deferred(cookie: u64, ips: &[u64], bits: u64, ids: &Ids) -> Vec<u8> {
    let body = Body::default().u64(cookie).u64(ips.len() as u64).u64s(ips);
    side_band(22, 2, body, bits, ids)
}
