//! First page tables: 4 GiB mapped to themselves by pages of 2 MiB.

use super::PAGE_TABLES;
use crate::memory::{AccessError, Memory};

const PRESENT_WRITABLE: u64 = 0x3;
const LARGE_PAGE: u64 = 0x80;
const TABLE: u64 = 4096;
const DIRECTORIES: u64 = 4;
const ENTRIES: u64 = 512;

/// One top table, one table below it, four directories: 24 KiB at [`PAGE_TABLES`].
pub(super) fn write(memory: &Memory) -> Result<(), AccessError> {
    let pointers = PAGE_TABLES + TABLE;
    let directories = pointers + TABLE;
    memory.store_u64(PAGE_TABLES, pointers | PRESENT_WRITABLE)?;
    for index in 0..DIRECTORIES {
        memory.store_u64(
            pointers + 8 * index,
            (directories + TABLE * index) | PRESENT_WRITABLE,
        )?;
    }
    for page in 0..DIRECTORIES * ENTRIES {
        memory.store_u64(
            directories + 8 * page,
            page << 21 | PRESENT_WRITABLE | LARGE_PAGE,
        )?;
    }
    Ok(())
}
