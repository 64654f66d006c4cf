//! Loads the kernel image: ELF segments, or plain bytes.

use std::io::{self, Cursor, Read, Seek};

use linux_loader::loader::{Elf, Error as LoaderError, KernelLoader};
use vm_memory::{GuestAddress, ReadVolatile};

use super::{HIGH_RAM, Kernel};
use crate::memory::{LOW_END, Memory};

/// Why a kernel image cannot be booted.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum KernelError {
    /// It is not an ELF file, or cannot be loaded.
    #[error("the kernel is no ELF image that fits into guest memory: {0}")]
    Elf(#[from] LoaderError),
    /// Its file cannot be read.
    #[error("failed to read the kernel's file: {0}")]
    File(#[from] io::Error),
    /// The entry is outside of the image.
    #[error("the kernel's entry {entry:#x} does not lie in its image ({HIGH_RAM:#x} to {end:#x})")]
    Entry { entry: u64, end: u64 },
    /// It does not fit into the RAM below 4 GiB.
    #[error("the kernel ends at {end:#x}, guest memory at {memory_end:#x}: give the guest more")]
    TooBig { end: u64, memory_end: u64 },
}

/// A loaded kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Image {
    /// Guest-physical address of its first instruction.
    pub entry: u64,
    /// First address after it and its zeroed part.
    pub end: u64,
}

/// Copies the segments of an ELF file into guest memory.
fn segments(
    memory: &Memory,
    file: &mut (impl Read + ReadVolatile + Seek),
) -> Result<Image, LoaderError> {
    let result = Elf::load(memory.map(), None, file, Some(GuestAddress(HIGH_RAM)))?;
    Ok(Image {
        entry: result.kernel_load.0,
        end: result.kernel_end,
    })
}

/// Copies the kernel into guest memory.
pub(super) fn load(memory: &Memory, kernel: &Kernel<'_>) -> Result<Image, KernelError> {
    let memory_end = memory.size().min(LOW_END);
    let image = match kernel {
        Kernel::Elf(bytes) => {
            let mut file = Cursor::new(bytes.as_ref());
            segments(memory, &mut file)?
        }
        Kernel::File(file) => segments(memory, &mut file.try_clone()?)?,
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// An ELF file of one segment, these bytes at 1 MiB, entered at the first.
    fn elf(code: &[u8]) -> Vec<u8> {
        const HEADERS: u64 = 64 + 56;
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        // e_type EXEC, e_machine x86-64, e_version, e_entry, e_phoff.
        bytes.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        bytes.extend(HIGH_RAM.to_le_bytes());
        bytes.extend(64_u64.to_le_bytes());
        // e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, no sections.
        bytes.extend([0; 12]);
        bytes.extend([64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        // p_type LOAD, p_flags RX, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align.
        bytes.extend([1, 0, 0, 0, 5, 0, 0, 0]);
        let len = code.len() as u64;
        for word in [HEADERS, HIGH_RAM, HIGH_RAM, len, len, 1] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(code);
        bytes
    }

    #[test]
    fn a_file_is_loaded_as_its_bytes_are() {
        let code = [0xf4, 1, 2, 3];
        let bytes = elf(&code);
        let mut file = std::fs::File::from(memfd_create("kernel", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(&bytes).unwrap();
        // More than once, wherever the last one left the file.
        for kernel in [
            Kernel::File(&file),
            Kernel::File(&file),
            Kernel::Elf(bytes.into()),
        ] {
            let memory = Memory::new(4).unwrap();
            let image = load(&memory, &kernel).unwrap();
            assert_eq!(image.entry, HIGH_RAM);
            let mut found = [0; 4];
            memory.read(HIGH_RAM, &mut found).unwrap();
            assert_eq!(found, code);
        }
    }
}
