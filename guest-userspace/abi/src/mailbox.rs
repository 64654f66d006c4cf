//! The mailbox: a header page and the data pages it lists, all in guest-physical memory.
//!
//! Header page, little-endian: `u32` [`MAGIC`], `u32` length of the message in bytes, `u32`
//! number of data pages (at most [`MAX_PAGES`]), `u32` zero, then one `u64` guest-physical
//! address per data page. The message is the concatenation of the data pages, cut to the
//! length. The host overwrites length and data with its answer.

use serde::{Serialize, de::DeserializeOwned};

/// "UWLB", little-endian.
pub const MAGIC: u32 = u32::from_le_bytes(*b"UWLB");
/// Most data pages of a mailbox: the header must fit one page.
pub const MAX_PAGES: usize = 256;
/// Bytes before the page list.
pub const HEADER_LEN: usize = 16;
/// Bytes of an x86-64 base page.
pub const PAGE_SIZE: usize = 4096;

/// Why a mailbox header or message is refused. Each is a fault of the guest.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum MailboxError {
    /// The header does not start with [`MAGIC`] or is shorter than [`HEADER_LEN`].
    #[error("not a mailbox header")]
    NotAHeader,
    /// More pages than [`MAX_PAGES`], or a length beyond them.
    #[error("mailbox claims {len} bytes in {pages} pages")]
    BadSize { len: usize, pages: usize },
    /// The bytes are not a message of this ABI version.
    #[error("undecodable message")]
    Undecodable,
    /// The message does not fit the pages.
    #[error("message of {need} bytes does not fit {have}")]
    TooLarge { need: usize, have: usize },
}

/// A checked header: the length of the message and its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Message length in bytes.
    pub len: usize,
    /// Guest-physical addresses of the data pages, in order.
    pub pages: Vec<u64>,
}

impl Header {
    /// Reads and checks a header page.
    ///
    /// # Errors
    /// [`MailboxError`] if the page is not a header or its numbers are out of range.
    pub fn parse(page: &[u8]) -> Result<Self, MailboxError> {
        let word = |at: usize| -> Result<u32, MailboxError> {
            let bytes = page.get(at..at + 4).ok_or(MailboxError::NotAHeader)?;
            Ok(u32::from_le_bytes(
                bytes.try_into().map_err(|_| MailboxError::NotAHeader)?,
            ))
        };
        if word(0)? != MAGIC {
            return Err(MailboxError::NotAHeader);
        }
        let (len, count) = (word(4)? as usize, word(8)? as usize);
        if count > MAX_PAGES || len > count * PAGE_SIZE {
            return Err(MailboxError::BadSize { len, pages: count });
        }
        let list = page
            .get(HEADER_LEN..HEADER_LEN + 8 * count)
            .ok_or(MailboxError::BadSize { len, pages: count })?;
        let pages = list
            .as_chunks::<8>()
            .0
            .iter()
            .map(|raw| u64::from_le_bytes(*raw))
            .collect();
        Ok(Self { len, pages })
    }

    /// The header's bytes in its page.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN + 8 * self.pages.len());
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&small(self.len));
        out.extend_from_slice(&small(self.pages.len()));
        out.extend_from_slice(&[0; 4]);
        for page in &self.pages {
            out.extend_from_slice(&page.to_le_bytes());
        }
        out
    }
}

/// Encodes a message.
///
/// # Errors
/// [`MailboxError::Undecodable`] if the type cannot be encoded; all types of this crate can.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, MailboxError> {
    postcard::to_allocvec(message).map_err(|_| MailboxError::Undecodable)
}

/// Decodes a message; bytes left over are an error.
///
/// # Errors
/// [`MailboxError::Undecodable`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MailboxError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(MailboxError::Undecodable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trip() {
        let header = Header {
            len: 5000,
            pages: vec![0x1000, 0xdead_b000],
        };
        assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
    }

    #[test]
    fn header_rejects_numbers_out_of_range() {
        assert_eq!(Header::parse(&[0; 4096]), Err(MailboxError::NotAHeader));
        let too_long = Header {
            len: 4097,
            pages: vec![0x1000],
        };
        assert_eq!(
            Header::parse(&too_long.to_bytes()),
            Err(MailboxError::BadSize {
                len: 4097,
                pages: 1
            })
        );
        let many = Header {
            len: 0,
            pages: vec![0; MAX_PAGES + 1],
        };
        assert!(Header::parse(&many.to_bytes()).is_err());
    }

    #[test]
    fn decode_refuses_left_over_bytes() {
        let mut bytes = encode(&7u32).unwrap();
        bytes.push(0);
        assert_eq!(decode::<u32>(&bytes), Err(MailboxError::Undecodable));
    }
}
