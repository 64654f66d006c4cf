//! Guest memory for tests.

use super::ring::{GuestRead, NotGuestMemory};

/// Guest memory from address 0 on.
#[derive(Debug)]
pub(super) struct Flat(pub Vec<u8>);

impl GuestRead for Flat {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), NotGuestMemory> {
        let start = usize::try_from(gpa).map_err(|_| NotGuestMemory(gpa))?;
        let end = start.checked_add(into.len()).ok_or(NotGuestMemory(gpa))?;
        into.copy_from_slice(self.0.get(start..end).ok_or(NotGuestMemory(gpa))?);
        Ok(())
    }

    fn load(&self, gpa: u64) -> Result<u64, NotGuestMemory> {
        let mut word = [0; 8];
        self.read(gpa, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn store(&self, gpa: u64, _: u64) -> Result<(), NotGuestMemory> {
        Err(NotGuestMemory(gpa))
    }
}
