//! Whole pages of the agent's memory, populated from the start.

use std::ffi::c_void;
use std::fs::File;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};
use unwindlab_abi::mailbox::PAGE_SIZE;

/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Zeroed, page-aligned, populated and locked memory; freed when dropped.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    len: usize,
    /// Bytes behind them that nobody may access.
    guard: usize,
}

// SAFETY: the memory belongs to the value and can be used from any thread.
unsafe impl Send for Pages {}
// SAFETY: `&self` gives out addresses only; their use is up to the caller.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `count` pages.
    ///
    /// # Errors
    /// The errno of `mmap`.
    pub fn new(count: usize) -> Result<Self, rustix::io::Errno> {
        Self::map(count, MapFlags::PRIVATE)
    }

    /// Maps `count` pages that keep their place in memory when the agent forks, because the child
    /// does not get them. Otherwise the agent's next write would move a page.
    ///
    /// # Errors
    /// The errno of `mmap` and `madvise`.
    pub fn staying(count: usize) -> Result<Self, rustix::io::Errno> {
        let pages = Self::new(count)?;
        // SAFETY: the mapping is new, and no child uses it.
        unsafe {
            madvise(
                pages.start.as_ptr().cast(),
                pages.len,
                Advice::LinuxDontFork,
            )?;
        }
        Ok(pages)
    }

    /// Maps `count` pages of shared memory, whose contents survive when a page is dropped from the
    /// page tables.
    ///
    /// # Errors
    /// The errno of `mmap`.
    pub fn shared(count: usize) -> Result<Self, rustix::io::Errno> {
        Self::map(count, MapFlags::SHARED)
    }

    /// Maps `count` pages of shared memory, and one behind them that nobody may access: their last word is
    /// the last that can be read there.
    ///
    /// # Errors
    /// The errno of `mmap` and `mprotect`.
    pub fn shared_before_hole(count: usize) -> Result<Self, rustix::io::Errno> {
        let mut pages = Self::shared(count.saturating_add(1))?;
        pages.len -= PAGE_SIZE;
        pages.guard = PAGE_SIZE;
        // SAFETY: the mapping is new, and its last page is given to no one.
        unsafe {
            let hole = pages.start.as_ptr().add(pages.len);
            mprotect(hole.cast(), pages.guard, MprotectFlags::empty())?;
        }
        Ok(pages)
    }

    /// Maps `count` pages below 2 GiB.
    ///
    /// # Errors
    /// The errno of `mmap`.
    pub fn low(count: usize) -> Result<Self, rustix::io::Errno> {
        let low = MapFlags::from_bits_retain(libc::MAP_32BIT.unsigned_abs());
        Self::map(count, MapFlags::PRIVATE | low)
    }

    /// Maps `count` pages of shared memory below 2 GiB.
    ///
    /// # Errors
    /// The errno of `mmap`.
    pub fn low_shared(count: usize) -> Result<Self, rustix::io::Errno> {
        let low = MapFlags::from_bits_retain(libc::MAP_32BIT.unsigned_abs());
        Self::map(count, MapFlags::SHARED | low)
    }

    /// Maps as many whole pages as a file has, shared with it.
    ///
    /// # Errors
    /// The errno of `fstat` or `mmap`.
    pub fn of_file(file: &File) -> Result<Self, rustix::io::Errno> {
        let len = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        let len = len / PAGE_SIZE * PAGE_SIZE;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address the kernel chooses.
        let start = unsafe { mmap(null_mut(), len, access, flags, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self {
            start,
            len,
            guard: 0,
        })
    }

    /// Maps `count` pages of a buffer that a tracer fills. They can only be read.
    ///
    /// # Errors
    /// The errno of `mmap`.
    pub fn of_tracer(file: &File, count: usize) -> Result<Self, rustix::io::Errno> {
        let len = count * PAGE_SIZE;
        // SAFETY: a new mapping at an address the kernel chooses.
        let start = unsafe { mmap(null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self {
            start,
            len,
            guard: 0,
        })
    }

    /// Maps at least `count` pages of shared memory, backed by huge pages of 2 MiB that the kernel
    /// has reserved. Their contents survive when they are dropped from the page tables.
    ///
    /// # Errors
    /// The errno of `mmap`: `ENOMEM` if too few huge pages are free.
    pub fn huge(count: usize) -> Result<Self, rustix::io::Errno> {
        let huge = MapFlags::from_bits_retain(libc::MAP_HUGETLB.unsigned_abs());
        let whole = count.next_multiple_of(HUGE_PAGE / PAGE_SIZE);
        Self::map(whole, MapFlags::SHARED | huge)
    }

    fn map(count: usize, sharing: MapFlags) -> Result<Self, rustix::io::Errno> {
        let len = count
            .checked_mul(PAGE_SIZE)
            .ok_or(rustix::io::Errno::NOMEM)?;
        let flags = sharing | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address the kernel chooses.
        let start =
            unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self {
            start,
            len,
            guard: 0,
        })
    }

    /// Virtual address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// Virtual address after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address() + self.len as u64
    }

    /// Copies bytes in; returns `None` without copying if they do not fit.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Option<()> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: in bounds, and `bytes` cannot overlap what `self` is borrowed for.
        unsafe {
            to.as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        Some(())
    }

    /// Copies bytes out; `None` if the range is outside.
    #[must_use]
    pub fn read(&self, offset: usize, len: usize) -> Option<Vec<u8>> {
        let from = self.at(offset, len)?;
        let mut bytes = vec![0; len];
        // SAFETY: in bounds, initialised (zeroed by `mmap`), and `bytes` is new.
        unsafe {
            from.as_ptr()
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), len)
        };
        Some(bytes)
    }

    /// Pointer to the byte at `offset` if `len` bytes from there are inside.
    #[must_use]
    pub fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: inside the mapping, as just checked.
        (end <= self.len).then(|| unsafe { self.start.add(offset) })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length. After a failure the pages stay mapped, which
        // does no harm.
        let _ = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.len + self.guard) };
    }
}
