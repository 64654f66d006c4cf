//! Guest memory for readers that take any.

use std::cell::RefCell;

use unwindlab_oracle::trace::ring::{GuestRead, NotGuestMemory};

/// Memory from address 0 on.
pub(crate) struct Pages(RefCell<Vec<u8>>);

impl Pages {
    pub(crate) fn new(size: usize) -> Self {
        Self(RefCell::new(vec![0; size]))
    }

    /// Writes what has room.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        let mut all = self.0.borrow_mut();
        let room = all.get_mut(at..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = *from;
        }
    }

    fn with<T>(
        &self,
        at: u64,
        len: usize,
        take: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, NotGuestMemory> {
        let outside = NotGuestMemory(at);
        let start = usize::try_from(at).map_err(|_| outside)?;
        let end = start.checked_add(len).ok_or(outside)?;
        let mut all = self.0.borrow_mut();
        all.get_mut(start..end).map(take).ok_or(outside)
    }
}

impl GuestRead for Pages {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), NotGuestMemory> {
        self.with(gpa, into.len(), |bytes| into.copy_from_slice(bytes))
    }

    fn load(&self, gpa: u64) -> Result<u64, NotGuestMemory> {
        let mut word = [0; 8];
        self.read(gpa, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn store(&self, gpa: u64, word: u64) -> Result<(), NotGuestMemory> {
        self.with(gpa, 8, |bytes| bytes.copy_from_slice(&word.to_le_bytes()))
    }
}
