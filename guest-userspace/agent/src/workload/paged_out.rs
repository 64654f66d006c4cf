//! `paged-out`: as `deep`, on a stack of which a page can be taken out of memory: anonymous memory
//! where the kernel can swap, else memory of a file that has to be asked for its bytes again.

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

/// Where pages go.
#[derive(Debug)]
pub(super) enum Elsewhere {
    Swap,
    File(ServedFile),
}

impl Elsewhere {
    /// Makes it, for a stack of this size.
    pub(super) fn new(thread: u32, stack_bytes: usize) -> Result<Self, WorkloadError> {
        let made = match swap::on() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let path = format!("/stack-{thread}");
                ServedFile::new(&path, stack_bytes).map(Self::File)
            }
            on => on.map(|()| Self::Swap),
        };
        made.map_err(|source| match source.kind() {
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

    fn stack(&self, stack_bytes: usize) -> Result<Pages, Errno> {
        match self {
            Self::Swap => Pages::new(stack_bytes.div_ceil(PAGE_SIZE)),
            Self::File(file) => Pages::of_file(file.file().ok_or(Errno::BADF)?),
        }
    }

    /// Has the leaf take a page out.
    fn take_out(&self, chain: &Chain, page: u64, resident: &AtomicU8) {
        let [first, second] = chain.before();
        let page_out = [page, PAGE, PAGEOUT];
        match self {
            Self::Swap => {
                let resident = resident.as_ptr().expose_provenance() as u64;
                first.set(libc::SYS_madvise, &page_out);
                second.set(libc::SYS_mincore, &[page, PAGE, resident]);
            }
            // What is not as in the file stays.
            Self::File(_) => {
                first.set(libc::SYS_msync, &[page, PAGE, SYNC]);
                second.set(libc::SYS_madvise, &page_out);
            }
        }
    }

    /// A number that is another one when a page was read again.
    fn reads(&self) -> u64 {
        match self {
            Self::Swap => 0,
            Self::File(file) => file.reads(),
        }
    }
}

/// Runs the chain, over and over.
pub(super) fn run(
    chain: Chain,
    thread: u32,
    elsewhere: &Elsewhere,
    stack_bytes: usize,
) -> Result<(), WorkloadError> {
    let stack = elsewhere.stack(stack_bytes);
    let stack = stack.map_err(failed(thread, "cannot map a stack"))?;
    unlock(&stack).map_err(failed(thread, "cannot unlock its stack"))?;
    // SAFETY: the stack was sized for this chain, and is unmapped after the last run.
    let chain = unsafe { chain.on_stack(stack.end()) };
    chain.shared().set_stack_top(thread, stack.end());
    // Written by the kernel: bit 0 says that the page is in memory.
    let resident = AtomicU8::new(1);
    while chain.goes_on() {
        let mut wanted = false;
        if let Some(request) = chain.shared().requests().take(thread) {
            let result = match request.change {
                IterationChange::PageOut(page) => {
                    elsewhere.take_out(&chain, page, &resident);
                    wanted = true;
                    Ok(())
                }
                _ => Err(Errno::NOTSUP.into()),
            };
            helper::answer(chain.shared(), request.number, &result);
        }
        let reads = elsewhere.reads();
        chain.run();
        if wanted {
            let done = chain
                .before()
                .iter()
                .try_for_each(|it| it.answer().map(drop));
            done.map_err(failed(thread, "cannot page out a page of its stack"))?;
            let gone = match elsewhere {
                Elsewhere::Swap => resident.swap(1, Ordering::Acquire) & 1 == 0,
                Elsewhere::File(file) => file.reads() != reads,
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

/// What is locked stays.
fn unlock(stack: &Pages) -> Result<(), Errno> {
    let address = |it| usize::try_from(it).map_err(|_| Errno::FAULT);
    let start = std::ptr::with_exposed_provenance_mut(address(stack.address())?);
    // SAFETY: no memory is looked at.
    unsafe { munlock(start, address(stack.end() - stack.address())?) }
}
