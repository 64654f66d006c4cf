//! Guest RAM: one memfd, mapped once, read and written by guest-physical address.

mod address_space;

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, madvise};
use vm_memory::bitmap::{AtomicBitmap, BS, Bitmap as _};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    MmapRegion, VolatileSlice,
};

use crate::x86::PAGE;

pub use address_space::AddressSpace;
pub(crate) use address_space::{Translation, translate};

/// End of the RAM below 4 GiB. Above it lie the I/O APIC, the local APICs and the pages that KVM
/// itself needs.
pub(crate) const LOW_END: u64 = 0xc000_0000;
/// Start of the RAM that does not fit below [`LOW_END`].
pub(crate) const HIGH_START: u64 = 1 << 32;
/// Minimum RAM of a machine in MiB: the first MiB, and a small guest.
pub(crate) const MIN_MEMORY_MIB: u32 = 4;
/// Maximum RAM of a machine in MiB.
const MAX_MEMORY_MIB: u32 = 64 * 1024;

/// Why guest RAM could not be allocated.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum MemoryError {
    /// The size is out of range.
    #[error("{mib} MiB of guest memory requested: choose {MIN_MEMORY_MIB} to {MAX_MEMORY_MIB} MiB")]
    Size { mib: u32 },
    /// The kernel did not create the memory file.
    #[error("failed to create a memory file of {mib} MiB for the guest: {source}")]
    File { mib: u32, source: io::Error },
    /// The memory file could not be mapped.
    #[error("failed to map {mib} MiB of guest memory, choose less: {source}")]
    Map {
        mib: u32,
        source: vm_memory::mmap::FromRangesError,
    },
}

/// An access outside of guest RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at guest-physical {address:#x} are not guest memory")]
pub struct AccessError {
    /// First guest-physical address of the access.
    pub address: u64,
    /// Its length in bytes.
    pub len: usize,
}

/// Guest RAM. Cheap to clone; all clones are the same memory.
///
/// The guest may run and write at the same time: each access is a plain, unordered copy.
/// [`load_u64`](Self::load_u64) and [`store_u64`](Self::store_u64) are atomic.
#[derive(Debug, Clone)]
pub struct Memory {
    map: GuestMemoryMmap<AtomicBitmap>,
    size: u64,
}

/// A contiguous range of guest-physical addresses that is RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RamRange {
    /// First guest-physical address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Address of its mapping in this process.
    pub host: u64,
}

impl RamRange {
    /// Its guest-physical addresses.
    pub(crate) fn addresses(&self) -> std::ops::Range<u64> {
        self.start..self.start + self.len
    }
}

impl Memory {
    /// Maps `mib` MiB of zeroed RAM, from guest-physical 0 up, with a gap from 3 to 4 GiB.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn new(mib: u32) -> Result<Self, MemoryError> {
        if !(MIN_MEMORY_MIB..=MAX_MEMORY_MIB).contains(&mib) {
            return Err(MemoryError::Size { mib });
        }
        let size = u64::from(mib) << 20;
        let file = memory_file(size).map_err(|source| MemoryError::File { mib, source })?;
        let file = Arc::new(file);
        let low = size.min(LOW_END);
        let mut ranges = vec![(0, low, 0)];
        if size > low {
            ranges.push((HIGH_START, size - low, low));
        }
        let ranges = ranges.into_iter().map(|(start, len, offset)| {
            let file = FileOffset::from_arc(Arc::clone(&file), offset);
            (GuestAddress(start), as_usize(len), Some(file))
        });
        let map = GuestMemoryMmap::from_ranges_with_files(ranges)
            .map_err(|source| MemoryError::Map { mib, source })?;
        let memory = Self { map, size };
        memory.prefer_huge_pages();
        Ok(memory)
    }

    /// Asks for huge pages, which the kernel may have for memory files (`advise` in
    /// /sys/kernel/mm/transparent_hugepage/shmem_enabled). With slow page faults, as under
    /// nested paging in an emulated host, a guest then touches its memory in half the time.
    fn prefer_huge_pages(&self) {
        for region in self.map.iter() {
            let (start, len) = (region.as_ptr().cast(), as_usize(region.len()));
            // SAFETY: the range is a mapping of ours; the advice changes no contents.
            let advised = unsafe { madvise(start, len, Advice::LinuxHugepage) };
            if let Err(error) = advised {
                tracing::debug!("no huge pages for guest memory: {error}");
            }
        }
    }

    /// Bytes of RAM.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Fills `into` from guest-physical `address` on.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let len = into.len();
        self.map
            .read_slice(into, GuestAddress(address))
            .map_err(|_| AccessError { address, len })
    }

    /// Writes `bytes` from guest-physical `address` on.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.map
            .write_slice(bytes, GuestAddress(address))
            .map_err(|_| AccessError {
                address,
                len: bytes.len(),
            })
    }

    /// The same, but the pages do not count as written.
    pub(crate) fn put_back(&self, address: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let len = bytes.len();
        let slice = self.slice(address, len)?;
        let guard = slice.ptr_guard_mut();
        // SAFETY: the slice's `len` bytes are mapped while the guard lives, and no `bytes` of ours are guest memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), guard.as_ptr(), len) };
        Ok(())
    }

    /// Loads the aligned word at guest-physical `address`. Later reads see what the guest wrote
    /// before it stored that word.
    pub fn load_u64(&self, address: u64) -> Result<u64, AccessError> {
        self.map
            .load(GuestAddress(address), Ordering::Acquire)
            .map_err(|_| AccessError { address, len: 8 })
    }

    /// Stores the aligned word at guest-physical `address`. A guest that sees it also sees what
    /// was written before.
    pub fn store_u64(&self, address: u64, value: u64) -> Result<(), AccessError> {
        self.map
            .store(value, GuestAddress(address), Ordering::Release)
            .map_err(|_| AccessError { address, len: 8 })
    }

    /// The memory as other rust-vmm crates take it.
    pub(crate) fn map(&self) -> &GuestMemoryMmap<AtomicBitmap> {
        &self.map
    }

    /// Whether RAM from guest-physical `address` on equals `bytes`, within one range.
    pub(crate) fn holds(&self, address: u64, bytes: &[u8]) -> Result<bool, AccessError> {
        let len = bytes.len();
        let slice = self.slice(address, len)?;
        let guard = slice.ptr_guard();
        // SAFETY: the slice's `len` bytes are mapped while the guard lives. A concurrent write
        // can only make the answer wrong: `memcmp` has no other effect.
        let order = unsafe { libc::memcmp(guard.as_ptr().cast(), bytes.as_ptr().cast(), len) };
        Ok(order == 0)
    }

    /// `len` bytes of RAM within one range.
    fn slice(
        &self,
        address: u64,
        len: usize,
    ) -> Result<VolatileSlice<'_, BS<'_, AtomicBitmap>>, AccessError> {
        let slice = self.map.get_slice(GuestAddress(address), len);
        slice.map_err(|_| AccessError { address, len })
    }

    /// The pages written through this type (by any clone) since the last call, as guest-physical
    /// addresses.
    pub(crate) fn take_written(&self) -> Vec<u64> {
        let written = |region: &MmapRegion<AtomicBitmap>| region.bitmap().get_and_reset();
        self.map
            .iter()
            .flat_map(|region| {
                let words = written(region);
                pages_of(&words, region.start_addr().0).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Adds `pages` to those that [`take_written`](Self::take_written) returns next.
    pub(crate) fn mark_written(&self, pages: &[u64]) {
        for page in pages {
            if let Some((region, at)) = self.map.to_region_addr(GuestAddress(*page)) {
                region.bitmap().mark_dirty(as_usize(at.0), 1);
            }
        }
    }

    /// The ranges of RAM, in order of their guest-physical addresses.
    pub(crate) fn ranges(&self) -> Vec<RamRange> {
        self.map
            .iter()
            .map(|region| RamRange {
                start: region.start_addr().0,
                len: region.len(),
                host: region.as_ptr() as u64,
            })
            .collect()
    }
}

fn memory_file(size: u64) -> io::Result<File> {
    let file = File::from(memfd_create("guest-memory", MemfdFlags::CLOEXEC)?);
    ftruncate(&file, size)?;
    Ok(file)
}

/// Addresses of the pages whose bits are set in `words`, a bitmap with a bit for each page from
/// guest-physical `start` on.
pub(crate) fn pages_of(words: &[u64], start: u64) -> impl Iterator<Item = u64> {
    (0_u64..)
        .zip(words)
        .filter(|(_, word)| **word != 0)
        .flat_map(move |(at, &word)| {
            (0..u64::from(u64::BITS))
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| start + (at * u64::from(u64::BITS) + bit) * PAGE)
        })
}

/// Sizes here are at most 64 GiB and this crate is for 64-bit hosts only.
#[expect(
    clippy::cast_possible_truncation,
    reason = "usize has 64 bits on x86-64"
)]
pub(crate) const fn as_usize(value: u64) -> usize {
    value as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_checked() {
        let memory = Memory::new(4).unwrap();
        let end = 4 << 20;
        memory.write(end - 2, b"ab").unwrap();
        let mut two = [0; 2];
        memory.read(end - 2, &mut two).unwrap();
        assert_eq!(&two, b"ab");
        for address in [end - 1, end, u64::MAX - 1, u64::MAX] {
            assert_eq!(
                memory.read(address, &mut two),
                Err(AccessError { address, len: 2 })
            );
            assert_eq!(
                memory.write(address, &two),
                Err(AccessError { address, len: 2 })
            );
        }
        memory.store_u64(8, 7).unwrap();
        assert_eq!(memory.load_u64(8), Ok(7));
        assert!(memory.load_u64(9).is_err(), "not aligned");
        assert!(memory.load_u64(end - 4).is_err());
    }

    #[test]
    fn what_does_not_fit_below_three_gib_goes_above_four() {
        let memory = Memory::new(3072 + 16).unwrap();
        let ranges = memory.ranges();
        assert_eq!(ranges.len(), 2);
        assert_eq!((ranges[1].start, ranges[1].len), (HIGH_START, 16 << 20));
        assert!(memory.write(LOW_END, &[1]).is_err());
        memory.write(HIGH_START + (16 << 20) - 1, &[1]).unwrap();
    }

    #[test]
    fn bits_are_pages() {
        let found: Vec<u64> = pages_of(&[1 << 63 | 1, 0, 2], 0x10_0000).collect();
        assert_eq!(
            found,
            [0x10_0000, 0x10_0000 + 63 * 4096, 0x10_0000 + 129 * 4096]
        );
    }

    #[test]
    fn sizes_are_checked() {
        assert!(matches!(Memory::new(0), Err(MemoryError::Size { mib: 0 })));
        assert!(matches!(
            Memory::new(u32::MAX),
            Err(MemoryError::Size { .. })
        ));
    }
}
