//! The first page tables: 4 GiB, identity-mapped by pages of 2 MiB.

use super::PAGE_TABLES;
use crate::memory::{AccessError, Memory};
use crate::x86::{ENTRY_LARGE, ENTRY_PRESENT, PAGE};

const PRESENT_WRITABLE: u64 = ENTRY_PRESENT | 2;
const DIRECTORIES: u64 = 4;
const ENTRIES: u64 = 512;

/// One top table, one table below it, four directories: 24 KiB at [`PAGE_TABLES`].
pub(super) fn write(memory: &Memory) -> Result<(), AccessError> {
    let pointers = PAGE_TABLES + PAGE;
    let directories = pointers + PAGE;
    memory.store_u64(PAGE_TABLES, pointers | PRESENT_WRITABLE)?;
    for index in 0..DIRECTORIES {
        memory.store_u64(
            pointers + 8 * index,
            (directories + PAGE * index) | PRESENT_WRITABLE,
        )?;
    }
    for page in 0..DIRECTORIES * ENTRIES {
        memory.store_u64(
            directories + 8 * page,
            page << 21 | PRESENT_WRITABLE | ENTRY_LARGE,
        )?;
    }
    Ok(())
}
