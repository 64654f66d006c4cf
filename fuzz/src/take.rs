//! Numbers and pieces from the front of an input.

/// What is left of an input. Behind its end there are zeros.
pub(crate) struct Input<'d>(pub &'d [u8]);

impl<'d> Input<'d> {
    /// The next bytes, fewer at the end.
    pub(crate) fn bytes(&mut self, count: usize) -> &'d [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// A little-endian number of so many bytes.
    fn number(&mut self, bytes: usize) -> u64 {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(self.bytes(bytes)) {
            *to = *from;
        }
        u64::from_le_bytes(word)
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.number(1).to_le_bytes()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        let [low, high, ..] = self.number(2).to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.number(8)
    }

    /// A piece behind its length, which takes two bytes.
    pub(crate) fn piece(&mut self) -> &'d [u8] {
        let length = usize::from(self.u16());
        self.bytes(length)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
