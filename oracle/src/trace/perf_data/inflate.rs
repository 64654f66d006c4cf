//! Compressed records (`perf record -z`): pieces of one zstd stream, which perf flushes but never ends
//! (`zstd_compress_stream_to_records`, tools/perf/util/zstd.c, Linux 7.3).

use std::io::Read;

use ruzstd::decoding::StreamingDecoder;

use super::PerfDataError;

/// A last block without content.
const LAST_BLOCK: [u8; 3] = [1, 0, 0];
/// Magic number of a frame (RFC 8878).
const MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
/// Bytes of a block's head.
const BLOCK_HEAD: usize = 3;

/// Unpacks the stream; where it ends in the middle of something, up to there, and says so.
pub(super) fn inflate(stream: &[u8], most: u64) -> Result<(Vec<u8>, bool), PerfDataError> {
    let mut content = Vec::new();
    let mut rest = stream;
    let mut whole = true;
    while !rest.is_empty() {
        let Some(frame) = Frame::cut(rest) else {
            return Ok((content, false));
        };
        rest = frame.rest;
        let mut bytes = frame.bytes.to_vec();
        if !frame.ended {
            bytes.extend(LAST_BLOCK);
        }
        whole = frame.whole;
        let left = most.saturating_sub(content.len() as u64);
        let Ok(decoder) = StreamingDecoder::new(bytes.as_slice()) else {
            return Ok((content, false));
        };
        let read = decoder.take(left + 1).read_to_end(&mut content);
        if content.len() as u64 > most {
            return Err(PerfDataError::TooMuch {
                what: "bytes of unpacked records",
                limit: most,
            });
        }
        if read.is_err() {
            return Ok((content, false));
        }
    }
    Ok((content, whole))
}

/// The whole blocks of a frame.
struct Frame<'a> {
    bytes: &'a [u8],
    rest: &'a [u8],
    /// Its last block is there.
    ended: bool,
    /// It ends with a whole block.
    whole: bool,
}

impl<'a> Frame<'a> {
    /// The first frame of a stream; `None` where its head is not there.
    fn cut(stream: &'a [u8]) -> Option<Self> {
        let mut at = head(stream)?;
        let end = |at: usize, ended, whole| {
            let (bytes, rest) = stream.split_at_checked(at)?;
            let rest = if ended { rest } else { &[] };
            Some(Self {
                bytes,
                rest,
                ended,
                whole,
            })
        };
        loop {
            let rest = stream.get(at..)?;
            let Some(&[a, b, c]) = rest.first_chunk::<BLOCK_HEAD>() else {
                return end(at, false, rest.is_empty());
            };
            let word = u32::from_le_bytes([a, b, c, 0]);
            let size = match word >> 1 & 3 {
                // One byte, repeated.
                1 => 1,
                _ => usize::try_from(word >> 3).ok()?,
            };
            let next = at.checked_add(BLOCK_HEAD + size)?;
            if next > stream.len() {
                return end(at, false, false);
            }
            at = next;
            if word & 1 == 1 {
                let checksum = if has_checksum(stream) { 4 } else { 0 };
                return end((at + checksum).min(stream.len()), true, true);
            }
        }
    }
}

fn has_checksum(stream: &[u8]) -> bool {
    stream.get(MAGIC.len()).is_some_and(|it| it & 4 != 0)
}

/// Bytes of a frame's head (RFC 8878, section 3.1.1.1).
fn head(stream: &[u8]) -> Option<usize> {
    let flags = *stream.strip_prefix(&MAGIC)?.first()?;
    let single = flags >> 5 & 1;
    let window = usize::from(single == 0);
    let dictionary = match flags & 3 {
        3 => 4,
        size => usize::from(size),
    };
    let content = match (flags >> 6, single) {
        (0, single) => usize::from(single),
        (1, _) => 2,
        (2, _) => 4,
        _ => 8,
    };
    Some(MAGIC.len() + 1 + window + dictionary + content)
}

#[cfg(test)]
pub(super) mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    /// Bytes of the head of a stream's first frame.
    pub fn head_len(stream: &[u8]) -> usize {
        head(stream).unwrap()
    }

    #[test]
    fn a_stream_that_is_not_ended_gives_its_whole_blocks() {
        let content: Vec<u8> = (0..400_000_u32)
            .flat_map(|it| (it / 7).to_le_bytes())
            .collect();
        let stream = compress_to_vec(content.as_slice(), CompressionLevel::Fastest);
        assert_eq!(inflate(&stream, 1 << 30).unwrap(), (content.clone(), true));
        let twice = [stream.as_slice(), &stream].concat();
        let (two, whole) = inflate(&twice, 1 << 30).unwrap();
        assert!(whole && two.len() == 2 * content.len());
        let (part, whole) = inflate(&stream[..stream.len() / 2], 1 << 30).unwrap();
        assert!(!whole && !part.is_empty() && content.starts_with(&part));
        assert_eq!(
            inflate(b"no stream at all", 9).unwrap(),
            (Vec::new(), false)
        );
    }
}
