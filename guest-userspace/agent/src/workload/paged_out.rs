//! `paged-out`: as `deep`, on a stack of a file, of which a page can be taken out of memory.

use std::io;

use rustix::io::Errno;
use rustix::mm::munlock;
use unwindlab_abi::mailbox::PAGE_SIZE;

use super::{WorkloadError, failed};
use crate::chain::Chain;
use crate::fuse::ServedFile;
use crate::helper;
use crate::pages::Pages;
use crate::wishes::Wanted;

/// `MADV_PAGEOUT` (include/uapi/asm-generic/mman-common.h).
const PAGEOUT: u64 = 21;
const SYNC: u64 = libc::MS_SYNC.unsigned_abs() as u64;
const PAGE: u64 = PAGE_SIZE as u64;

/// The file of a thread's stack.
pub(super) fn file(thread: u32, stack_bytes: usize) -> Result<ServedFile, WorkloadError> {
    let served = ServedFile::new(&format!("/stack-{thread}"), stack_bytes);
    served.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => WorkloadError::Unsupported("FUSE (no /dev/fuse)"),
        _ => WorkloadError::System {
            thread,
            what: "cannot serve a file for its stack",
            source,
        },
    })
}

/// Runs the chain, over and over.
pub(super) fn run(chain: Chain, thread: u32, file: &ServedFile) -> Result<(), WorkloadError> {
    let no_stack = failed(thread, "cannot map a stack");
    let open = file.file().ok_or_else(|| no_stack(Errno::BADF))?;
    let stack = Pages::of_file(open).map_err(no_stack)?;
    let bytes = usize::try_from(stack.end() - stack.address()).unwrap_or(0);
    let start =
        std::ptr::with_exposed_provenance_mut(usize::try_from(stack.address()).unwrap_or(0));
    // What is locked stays. SAFETY: no memory is looked at.
    unsafe { munlock(start, bytes) }.map_err(failed(thread, "cannot unlock its stack"))?;
    // SAFETY: the stack was sized for this chain, and is unmapped after the last run.
    let chain = unsafe { chain.on_stack(stack.end()) };
    chain.shared().set_stack_top(thread, stack.end());
    while chain.goes_on() {
        let [write_out, take_out] = chain.before();
        let mut wanted = false;
        if let Some(wish) = chain.shared().wishes().take(thread) {
            let result = match wish.what {
                Wanted::PageOut(page) => {
                    write_out.set(libc::SYS_msync, &[page, PAGE, SYNC]);
                    take_out.set(libc::SYS_madvise, &[page, PAGE, PAGEOUT]);
                    wanted = true;
                    Ok(())
                }
                _ => Err(Errno::NOTSUP.into()),
            };
            helper::answer(chain.shared(), wish.number, &result);
        }
        let reads = file.reads();
        chain.run();
        if wanted {
            let done = write_out.answer().and(take_out.answer());
            done.map_err(failed(thread, "cannot page out a page of its stack"))?;
            if file.reads() == reads {
                return Err(failed(thread, "its stack was not paged out")(Errno::AGAIN));
            }
            write_out.unset();
            take_out.unset();
        }
    }
    drop(stack);
    Ok(())
}
