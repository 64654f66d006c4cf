//! Guest RAM as the harness sees it.

pub use unwindlab_vmm::{Memory as GuestMemory, MemoryError};
