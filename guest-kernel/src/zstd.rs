//! Decoding of zstd streams, which may have several frames (RFC 8878, section 3).

use std::io::{self, BufRead, Read};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// Reads what a stream of frames holds.
pub(crate) struct Decoder<R: BufRead> {
    /// The frame that is read; none behind the last one.
    frame: Option<StreamingDecoder<R, FrameDecoder>>,
}

impl<R: BufRead> Decoder<R> {
    /// Reads the head of the first frame.
    ///
    /// # Errors
    /// Where the stream fails, or is not zstd.
    pub(crate) fn new(stream: R) -> io::Result<Self> {
        let frame = StreamingDecoder::new(stream).map_err(io::Error::other)?;
        Ok(Self { frame: Some(frame) })
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(mut frame) = self.frame.take() {
            let read = frame.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                self.frame = Some(frame);
                return Ok(read);
            }
            let mut stream = frame.into_inner();
            if !stream.fill_buf()?.is_empty() {
                *self = Self::new(stream)?;
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn frame(content: &[u8]) -> Vec<u8> {
        compress_to_vec(content, CompressionLevel::Fastest)
    }

    fn decoded(stream: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        Decoder::new(stream)?.read_to_end(&mut content)?;
        Ok(content)
    }

    #[test]
    fn frames_are_read_one_after_the_other() {
        let two = [frame(b"one "), frame(&[]), frame(b"two")].concat();
        assert_eq!(decoded(&two).unwrap(), b"one two");
    }

    #[test]
    fn what_is_cut_short_or_followed_by_something_else_is_an_error() {
        let whole = frame(&[7; 5000]);
        for length in 0..whole.len() {
            assert!(decoded(&whole[..length]).is_err(), "{length}");
        }
        assert!(decoded(&[whole.as_slice(), b"else"].concat()).is_err());
    }
}
