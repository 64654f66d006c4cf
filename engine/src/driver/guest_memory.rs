//! Guest RAM as ring readers see it.

use unwindlab_vmm::Memory;

use unwindlab_oracle::trace::ring::{GuestRead, NotGuestMemory};

/// The machine's RAM, by guest-physical address.
#[derive(Debug)]
pub(crate) struct Ram<'a>(pub &'a Memory);

impl GuestRead for Ram<'_> {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), NotGuestMemory> {
        self.0.read(gpa, into).map_err(|_| NotGuestMemory(gpa))
    }

    fn load(&self, gpa: u64) -> Result<u64, NotGuestMemory> {
        self.0.load_u64(gpa).map_err(|_| NotGuestMemory(gpa))
    }

    fn store(&self, gpa: u64, word: u64) -> Result<(), NotGuestMemory> {
        self.0.store_u64(gpa, word).map_err(|_| NotGuestMemory(gpa))
    }
}
