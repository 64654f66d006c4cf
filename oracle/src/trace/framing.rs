//! Where one record ends and the next begins.
//!
//! Every record starts with `struct perf_event_header` (include/uapi/linux/perf_event.h):
//! `u32 type, u16 misc, u16 size`, where `size` counts the header too. The kernel only writes
//! sizes that are multiples of 8 (`perf_event_header__init_id` and the `WARN_ON_ONCE(size & 7)`
//! in `perf_prepare_header`, Linux 7.2).

/// Bytes of `struct perf_event_header`.
pub const HEADER_LEN: usize = 8;

/// A record cut out of a ring, not interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRecord<'a> {
    /// `header.type`.
    pub record_type: u32,
    /// `header.misc`.
    pub misc: u16,
    /// `header.size` in bytes.
    pub size: u16,
    /// What follows the header: `size - 8` bytes.
    pub body: &'a [u8],
}

/// Why bytes are not a sequence of records. Offsets count from the start of the given bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum FramingError {
    /// `header.size` is less than the header itself, or 0: there is no next record.
    #[error("record at byte {at} claims a size of {size}, less than its header")]
    TooSmall { at: usize, size: u16 },
    /// `header.size` is no multiple of 8.
    #[error("record at byte {at} claims a size of {size}, which is no multiple of 8")]
    Unaligned { at: usize, size: u16 },
    /// The record claims more bytes than there are; 8 where not even a header is there.
    #[error("record at byte {at} claims a size of {size}, but only {left} bytes are there")]
    BeyondEnd { at: usize, size: u16, left: usize },
}

/// Walks the records in `bytes`. Ends after the first error, and always ends: every step
/// consumes at least a header.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    /// Starts at the first byte, which must be the first of a record.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, at: 0 }
    }

    /// Offset of the first byte not consumed; after an error, of the faulty record.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.at
    }

    fn step(&mut self) -> Result<RawRecord<'a>, FramingError> {
        let (at, left) = (self.at, self.rest.len());
        let no_header = FramingError::BeyondEnd { at, size: 8, left };
        let (header, _) = self
            .rest
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(no_header)?;
        let [t0, t1, t2, t3, m0, m1, s0, s1] = *header;
        let size = u16::from_le_bytes([s0, s1]);
        if usize::from(size) < HEADER_LEN {
            return Err(FramingError::TooSmall { at, size });
        }
        if !size.is_multiple_of(8) {
            return Err(FramingError::Unaligned { at, size });
        }
        let (record, rest) = self
            .rest
            .split_at_checked(usize::from(size))
            .ok_or(FramingError::BeyondEnd { at, size, left })?;
        self.rest = rest;
        self.at += record.len();
        Ok(RawRecord {
            record_type: u32::from_le_bytes([t0, t1, t2, t3]),
            misc: u16::from_le_bytes([m0, m1]),
            size,
            body: record.get(HEADER_LEN..).unwrap_or_default(),
        })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RawRecord<'a>, FramingError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.step();
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(size: u16) -> Vec<u8> {
        let mut bytes = vec![9, 0, 0, 0, 1, 0];
        bytes.extend(size.to_le_bytes());
        bytes
    }

    fn first(bytes: &[u8]) -> Option<Result<RawRecord<'_>, FramingError>> {
        Records::new(bytes).next()
    }

    #[test]
    fn refuses_sizes_that_cannot_be() {
        let at = 0;
        for size in [0, 7] {
            let expected = FramingError::TooSmall { at, size };
            assert_eq!(first(&header(size)), Some(Err(expected)));
        }
        let mut long = header(12);
        long.resize(64, 0);
        let expected = FramingError::Unaligned { at, size: 12 };
        assert_eq!(first(&long), Some(Err(expected)));
        let (size, left) = (16, 8);
        let expected = FramingError::BeyondEnd { at, size, left };
        assert_eq!(first(&header(16)), Some(Err(expected)));
        let (size, left) = (8, 3);
        let expected = FramingError::BeyondEnd { at, size, left };
        assert_eq!(first(&[0; 3]), Some(Err(expected)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let mut records = Records::new(&bytes);
            let whole: usize = records.by_ref().flatten().map(|r| HEADER_LEN + r.body.len()).sum();
            prop_assert_eq!(whole, records.offset());
            prop_assert!(records.next().is_none());
        }
    }
}
