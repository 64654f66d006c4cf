//! Reading little-endian fields from the front of a byte slice, never past its end.

/// The bytes of a record that are not read yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Bytes left.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Everything left.
    pub(super) const fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*field))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*field))
    }

    /// Two `u32` in a row, as pid and tid always come.
    pub(super) fn pair(&mut self) -> Option<(u32, u32)> {
        Some((self.u32()?, self.u32()?))
    }

    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(field)
    }

    /// `count` words; `count` may come from the guest, so nothing is allocated for words that are
    /// not there.
    pub(super) fn u64s(&mut self, count: u64) -> Option<Vec<u64>> {
        let len = usize::try_from(count).ok()?.checked_mul(8)?;
        Some(words(self.bytes(len)?))
    }
}

/// The whole words in `bytes`.
pub(super) fn words(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// A string field: up to its NUL (the kernel pads with more of them), lossily decoded.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0);
    let text = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or(bytes);
    String::from_utf8_lossy(text).into_owned()
}
