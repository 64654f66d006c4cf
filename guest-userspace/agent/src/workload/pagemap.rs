//! Which pages of a stack are in the page tables: a leaf drops all of them, and looks later.

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use unwindlab_abi::mailbox::PAGE_SIZE;

use crate::call::Call;
use crate::pages::Pages;

/// Drops even locked pages from the page tables (include/uapi/asm-generic/mman-common.h).
const MADV_DONTNEED_LOCKED: u64 = 24;
const PAGE: u64 = PAGE_SIZE as u64;

/// Has a call of the leaf drop pages from the page tables.
pub(super) fn drop_pages(call: &Call, pages: &Pages) {
    let (start, bytes) = (pages.address(), pages.end() - pages.address());
    call.set(libc::SYS_madvise, &[start, bytes, MADV_DONTNEED_LOCKED]);
}

/// How a leaf looks which pages of its stack are in the page tables: by a `pread` of `/proc/self/pagemap`, which
/// touches none of them (Documentation/admin-guide/mm/pagemap.rst).
pub(super) struct Look {
    pagemap: Option<File>,
    /// What was read; of pages of its own.
    entries: Pages,
    /// Where in the file, and how many bytes.
    range: (u64, usize),
}

impl Look {
    /// For the innermost pages of a stack that fit a page of entries: the chain is at the stack's end.
    pub(super) fn new(stack: &Pages) -> Result<Self, Errno> {
        const ENTRY: usize = size_of::<u64>();
        let pages = usize::try_from((stack.end() - stack.address()) / PAGE).unwrap_or(usize::MAX);
        let pages = pages.min(PAGE_SIZE / ENTRY);
        let first = stack.end() / PAGE - pages as u64;
        Ok(Self {
            pagemap: File::open("/proc/self/pagemap").ok(),
            entries: Pages::new(1)?,
            range: (first * ENTRY as u64, pages * ENTRY),
        })
    }

    /// Sets the call of the leaf that looks.
    pub(super) fn set(&self, call: &Call) {
        let (offset, bytes) = self.range;
        if let Some(pagemap) = &self.pagemap {
            let fd = u64::from(pagemap.as_raw_fd().unsigned_abs());
            let arguments = [fd, self.entries.address(), bytes as u64, offset];
            call.set(libc::SYS_pread64, &arguments);
        }
    }

    /// Whether that call saw a page; `None` if it did not read all entries.
    pub(super) fn found(&self, call: &Call) -> Option<bool> {
        /// The page is present.
        const PRESENT: u64 = 1 << 63;
        let bytes = self.range.1;
        let read = call.answer().ok()?;
        let entries = self.entries.read(0, bytes)?;
        let mut entries = entries.chunks_exact(size_of::<u64>());
        let is_present = |it: &[u8]| {
            it.try_into()
                .is_ok_and(|it| u64::from_le_bytes(it) & PRESENT != 0)
        };
        (read == bytes as u64).then(|| entries.any(is_present))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system call as the leaf makes it.
    fn make(call: &Call) {
        let [number, a, b, c, d, _] = call.set_to();
        // SAFETY: what `Look` and `drop_pages` set, with memory of the test's.
        let answer = unsafe { libc::syscall(number.cast_signed(), a, b, c, d) };
        call.answered(answer);
    }

    #[test]
    fn a_touched_page_of_the_stack_is_seen() {
        let mut stack = Pages::shared(1000).unwrap();
        let [dropping, looking] = [Call::none(), Call::none()];
        let look = Look::new(&stack).unwrap();
        assert_eq!(look.found(&looking), None);
        drop_pages(&dropping, &stack);
        look.set(&looking);
        for touched in [None, Some(999), Some(999 - 511)] {
            make(&dropping);
            assert_eq!(dropping.answer(), Ok(0));
            if let Some(page) = touched {
                stack.write(page * PAGE_SIZE, &[1]).unwrap();
            }
            make(&looking);
            assert_eq!(look.found(&looking), Some(touched.is_some()), "{touched:?}");
        }
    }
}
