//! The kernel image: ELF segments, or plain bytes, to where they belong.

use std::io::Cursor;

use linux_loader::loader::{Elf, Error as LoaderError, KernelLoader};
use vm_memory::GuestAddress;

use super::{HIGH_RAM, Kernel};
use crate::memory::{LOW_END, Memory};

/// Why a kernel image cannot be booted.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Not an ELF file that can be loaded.
    #[error("the kernel is no ELF image that fits into guest memory: {0}")]
    Elf(#[from] LoaderError),
    /// The entry is not in what was loaded.
    #[error("the kernel's entry {entry:#x} does not lie in its image ({HIGH_RAM:#x} to {end:#x})")]
    Entry {
        /// Where the image says it starts.
        entry: u64,
        /// Where it ends.
        end: u64,
    },
    /// It does not fit.
    #[error("the kernel ends at {end:#x}, guest memory at {memory_end:#x}: give the guest more")]
    TooBig {
        /// Where it ends.
        end: u64,
        /// Where RAM below 4 GiB ends.
        memory_end: u64,
    },
}

/// A loaded kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Image {
    /// Guest-physical address of its first instruction.
    pub entry: u64,
    /// First address after it, its zeroed part included.
    pub end: u64,
}

/// Copies the kernel into guest memory.
pub(super) fn load(memory: &Memory, kernel: &Kernel<'_>) -> Result<Image, KernelError> {
    let memory_end = memory.size().min(LOW_END);
    let image = match kernel {
        Kernel::Elf(bytes) => {
            let mut file = Cursor::new(bytes.as_ref());
            let lowest = Some(GuestAddress(HIGH_RAM));
            let result = Elf::load(memory.map(), None, &mut file, lowest)?;
            Image {
                entry: result.kernel_load.0,
                end: result.kernel_end,
            }
        }
        Kernel::Flat { address, code } => {
            let end = address.saturating_add(code.len() as u64);
            if end > memory_end || memory.write(*address, code).is_err() {
                return Err(KernelError::TooBig { end, memory_end });
            }
            Image {
                entry: *address,
                end,
            }
        }
    };
    let Image { entry, end } = image;
    if end > memory_end {
        return Err(KernelError::TooBig { end, memory_end });
    }
    if !(HIGH_RAM..end).contains(&entry) {
        return Err(KernelError::Entry { entry, end });
    }
    Ok(image)
}
