//! A row of the table of lines, and its format in the file.

/// Where the instructions from this address up to the next row's come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub address: u64,
    pub file: u32,
    /// 0 if they come from no line.
    pub line: u32,
    /// The copy of the function: one for each place where it is inlined.
    pub copy: u32,
    pub flags: u32,
}

/// A debugger would stop here.
pub(super) const STATEMENT: u32 = 1;
/// Nothing is known from here on.
pub(super) const END: u32 = 2;

/// Size of a row in the file, in bytes.
pub(super) const ROW: usize = 24;

impl Row {
    pub fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.address.to_le_bytes());
        for word in [self.file, self.line, self.copy, self.flags] {
            to.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Reads what [`Row::write`] wrote.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Self {
            address: u64::from_le_bytes(*bytes.first_chunk()?),
            file: word(8)?,
            line: word(12)?,
            copy: word(16)?,
            flags: word(20)?,
        })
    }
}
