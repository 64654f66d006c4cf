//! What each BPF program has: its licence, and the memory of its maps.

use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// The programs' licence: some kernel functions and helpers want one that goes with the GPL.
pub(crate) const LICENSE: &[u8] = b"Dual MIT/GPL\0";

/// Maps a map's memory for as long as the agent runs.
pub(crate) fn memory_of(
    map: BorrowedFd<'_>,
    offset: u64,
    len: usize,
    access: ProtFlags,
) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a new mapping at an address the kernel chooses.
    let start = unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, map, offset) };
    NonNull::new(start?.cast()).ok_or(Errno::NOMEM)
}
