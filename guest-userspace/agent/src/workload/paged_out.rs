//! `paged-out`: as `deep`, on a stack whose pages can be paged out: anonymous memory if the kernel
//! can swap, otherwise memory of a file from which the kernel must read the page again.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;
use rustix::mm::munlock;
use unwindlab_abi::mailbox::PAGE_SIZE;

use super::{WorkloadError, failed};
use crate::call::Call;
use crate::chain::Chain;
use crate::fuse::ServedFile;
use crate::helper;
use crate::pages::Pages;
use crate::requests::IterationChange;
use crate::swap;

/// `MADV_PAGEOUT` (include/uapi/asm-generic/mman-common.h).
const PAGEOUT: u64 = 21;
const SYNC: u64 = libc::MS_SYNC.unsigned_abs() as u64;
const PAGE: u64 = PAGE_SIZE as u64;

/// Where pages are paged out to.
#[derive(Debug)]
pub(super) enum PageStore {
    Swap,
    File(ServedFile),
}

impl PageStore {
    /// Opens it, for a stack of this size.
    pub(super) fn new(thread: u32, stack_bytes: usize) -> Result<Self, WorkloadError> {
        let opened = match swap::on() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let path = format!("/stack-{thread}");
                ServedFile::new(&path, stack_bytes).map(Self::File)
            }
            on => on.map(|()| Self::Swap),
        };
        opened.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => WorkloadError::Unsupported(
                "a disk to swap to, or FUSE (no /dev/ram0, no /dev/fuse)",
            ),
            _ => WorkloadError::System {
                thread,
                what: "has nowhere to page out to",
                source,
            },
        })
    }

    pub(super) fn stack(&self, stack_bytes: usize) -> Result<Pages, Errno> {
        match self {
            Self::Swap => Pages::new(stack_bytes.div_ceil(PAGE_SIZE)),
            Self::File(file) => Pages::of_file(file.file().ok_or(Errno::BADF)?),
        }
    }

    /// Has the leaf page out a page.
    pub(super) fn take_out(&self, chain: &Chain, page: u64, resident: &AtomicU8) {
        let [first, second] = chain.before();
        let page_out = [page, PAGE, PAGEOUT];
        match self {
            Self::Swap => {
                let resident = resident.as_ptr().expose_provenance() as u64;
                first.set(libc::SYS_madvise, &page_out);
                second.set(libc::SYS_mincore, &[page, PAGE, resident]);
            }
            // A dirty page would stay in memory.
            Self::File(_) => {
                first.set(libc::SYS_msync, &[page, PAGE, SYNC]);
                second.set(libc::SYS_madvise, &page_out);
            }
        }
    }

    /// A number that changes when a page is read again.
    pub(super) fn reads(&self) -> u64 {
        match self {
            Self::Swap => 0,
            Self::File(file) => file.reads(),
        }
    }
}

/// Runs all iterations.
pub(super) fn run(
    chain: Chain,
    thread: u32,
    store: &PageStore,
    stack_bytes: usize,
) -> Result<(), WorkloadError> {
    let stack = store.stack(stack_bytes);
    let stack = stack.map_err(failed(thread, "cannot map a stack"))?;
    unlock(&stack).map_err(failed(thread, "cannot unlock its stack"))?;
    // SAFETY: the stack was sized for this chain, and is unmapped after the last run.
    let chain = unsafe { chain.on_stack(stack.end()) };
    chain.shared().set_stack_top(thread, stack.end());
    // Written by the kernel; bit 0 means that the page is in memory.
    let resident = AtomicU8::new(1);
    while chain.goes_on() {
        let mut paged_out = false;
        if let Some(request) = chain.shared().requests().take(thread) {
            let result = match request.change {
                IterationChange::PageOut(page) => {
                    store.take_out(&chain, page, &resident);
                    paged_out = true;
                    Ok(())
                }
                _ => Err(Errno::NOTSUP.into()),
            };
            helper::answer(chain.shared(), request.number, &result);
        }
        let reads = store.reads();
        chain.run();
        if paged_out {
            let done = chain
                .before()
                .iter()
                .try_for_each(|it| it.answer().map(drop));
            done.map_err(failed(thread, "cannot page out a page of its stack"))?;
            let gone = match store {
                PageStore::Swap => resident.swap(1, Ordering::Acquire) & 1 == 0,
                PageStore::File(file) => file.reads() != reads,
            };
            if !gone {
                return Err(failed(thread, "its stack was not paged out")(Errno::AGAIN));
            }
            chain.before().into_iter().for_each(Call::unset);
        }
    }
    drop(stack);
    Ok(())
}

/// Locked pages cannot be paged out.
pub(super) fn unlock(stack: &Pages) -> Result<(), Errno> {
    let address = |it| usize::try_from(it).map_err(|_| Errno::FAULT);
    let start = std::ptr::with_exposed_provenance_mut(address(stack.address())?);
    // SAFETY: no memory is accessed.
    unsafe { munlock(start, address(stack.end() - stack.address())?) }
}
