//! Reading fields from the front of a byte slice, never past its end.

/// The order of the bytes of a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Endian {
    /// That of x86: every ring that is read live.
    #[default]
    Little,
    /// That of a file from a machine such as s390.
    Big,
}

impl Endian {
    /// A number of two bytes.
    #[must_use]
    pub const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    /// A number of four bytes.
    #[must_use]
    pub const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// A number of eight bytes.
    #[must_use]
    pub const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// The bytes of a record that are not read yet.
#[derive(Debug, Clone, Copy)]
pub(in crate::trace) struct Fields<'a> {
    bytes: &'a [u8],
    endian: Endian,
}

impl<'a> Fields<'a> {
    pub const fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { bytes, endian }
    }

    /// Bytes left.
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Everything left.
    pub const fn rest(self) -> &'a [u8] {
        self.bytes
    }

    pub fn u16(&mut self) -> Option<u16> {
        let (field, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(self.endian.u16(*field))
    }

    pub fn u32(&mut self) -> Option<u32> {
        let (field, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(self.endian.u32(*field))
    }

    pub fn u64(&mut self) -> Option<u64> {
        let (field, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(self.endian.u64(*field))
    }

    /// Two `u32` in a row, as pid and tid always come.
    pub fn pair(&mut self) -> Option<(u32, u32)> {
        Some((self.u32()?, self.u32()?))
    }

    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(field)
    }

    /// `count` words; `count` may come from the guest, so nothing is allocated for words that are
    /// not there.
    pub fn u64s(&mut self, count: u64) -> Option<Vec<u64>> {
        let len = usize::try_from(count).ok()?.checked_mul(8)?;
        self.words(len)
    }

    /// The whole words in the next `len` bytes.
    pub fn words(&mut self, len: usize) -> Option<Vec<u64>> {
        let (words, _) = self.bytes(len)?.as_chunks();
        Some(words.iter().map(|word| self.endian.u64(*word)).collect())
    }
}

/// A string field: up to its NUL (the kernel pads with more of them), lossily decoded.
pub(in crate::trace) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0);
    let text = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or(bytes);
    String::from_utf8_lossy(text).into_owned()
}
