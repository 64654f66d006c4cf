//! Bytes of a kernel's image by virtual address, as linked.

use std::fs::File;
use std::io;
use std::path::Path;

use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadRef, elf};

/// Reads up to `length` bytes of a vmlinux at `address`: fewer if the segment ends before, `None`
/// if no segment contains the address.
pub fn read(vmlinux: &Path, address: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
    let cache = ReadCache::new(File::open(vmlinux)?);
    find(&cache, address, length).map_err(io::Error::other)
}

fn find(
    file: &ReadCache<File>,
    address: u64,
    length: usize,
) -> Result<Option<Vec<u8>>, object::Error> {
    let header = elf::FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    for segment in header.program_headers(endian, file)? {
        if segment.p_type(endian) != elf::PT_LOAD {
            continue;
        }
        let Some(into) = address.checked_sub(segment.p_vaddr(endian)) else {
            continue;
        };
        let Some(left) = segment.p_filesz(endian).checked_sub(into) else {
            continue;
        };
        let length = left.min(length as u64);
        let at = segment.p_offset(endian).saturating_add(into);
        if let (1.., Ok(bytes)) = (length, file.read_bytes_at(at, length)) {
            return Ok(Some(bytes.to_vec()));
        }
    }
    Ok(None)
}
