//! Stack memory, read inside of known bounds only.

/// The stacks of a thread: its own, and up to two more, such as an alternate one for signals.
#[derive(Debug, Clone, Copy)]
pub struct Stack {
    bounds: [(u64, u64); 3],
}

impl Stack {
    /// The stack from `low` up to `high`.
    ///
    /// # Safety
    /// Whatever is read by this must be readable whenever it is read; it may change at any time.
    #[must_use]
    pub const unsafe fn new(low: u64, high: u64) -> Self {
        Self {
            bounds: [(low, high), (0, 0), (0, 0)],
        }
    }

    /// With another one; the first and the last two are kept.
    ///
    /// # Safety
    /// As for [`Stack::new`].
    #[must_use]
    pub const unsafe fn and(mut self, low: u64, high: u64) -> Self {
        let [own, second, _] = self.bounds;
        self.bounds = [own, (low, high), second];
        self
    }

    /// The word at an aligned address.
    #[must_use]
    pub fn word(&self, address: u64) -> Option<u64> {
        let end = address.checked_add(8)?;
        let inside = |&(low, high): &(u64, u64)| low <= address && end <= high;
        if !address.is_multiple_of(8) || !self.bounds.iter().any(inside) {
            return None;
        }
        let pointer: *const u64 =
            core::ptr::with_exposed_provenance(usize::try_from(address).ok()?);
        // SAFETY: inside the bounds, which whoever made this promised to be readable, and aligned.
        Some(unsafe { pointer.read_volatile() })
    }

    /// Whether two addresses are on one stack. The end belongs to it: a stack pointer may be there.
    #[must_use]
    pub fn is_one(&self, first: u64, second: u64) -> bool {
        self.bounds.iter().any(|&(low, high)| {
            low < high && (low..=high).contains(&first) && (low..=high).contains(&second)
        })
    }
}
