//! `missing-pages`: each iteration makes its system call with no page of its stack in the page
//! tables, or with one page that does not exist.

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use unwindlab_abi::mailbox::PAGE_SIZE;

use super::{WorkloadError, failed};
use crate::call::Call;
use crate::chain::Chain;
use crate::helper;
use crate::pages::Pages;
use crate::requests::IterationChange;

/// Drops even locked pages from the page tables (include/uapi/asm-generic/mman-common.h, since
/// 5.18).
const MADV_DONTNEED_LOCKED: u64 = 24;
/// `MREMAP_MAYMOVE | MREMAP_FIXED`.
const MOVE: u64 = 1 | 2;
const PAGE: u64 = PAGE_SIZE as u64;

/// Runs all iterations, on a stack of shared memory.
pub(super) fn run(
    chain: Chain,
    thread: u32,
    pages: usize,
    huge_pages: bool,
) -> Result<(), WorkloadError> {
    let map = if huge_pages {
        Pages::huge
    } else {
        Pages::shared_before_hole
    };
    let stack = map(pages).map_err(failed(thread, "cannot map a stack"))?;
    // Where a page of the stack is while it is moved away.
    let aside = Pages::new(1).map_err(failed(thread, "cannot map a page"))?;
    let file = one_page().map_err(failed(thread, "cannot make a file"))?;
    // SAFETY: the stack was sized for this chain, and is unmapped after the last run.
    let chain = unsafe { chain.on_stack(stack.end()) };
    chain.shared().set_stack_top(thread, stack.end());
    while chain.goes_on() {
        drop_all(&chain, &stack);
        if let Some(request) = chain.shared().requests().take(thread) {
            let result = match request.change {
                IterationChange::Block(page) => chain.shared().blocker().block(page, thread),
                IterationChange::Unmap(page) => {
                    move_aside(&chain, page, aside.address());
                    Ok(())
                }
                IterationChange::Truncate(page) => {
                    truncate(&chain, page, &file, aside.address()).map_err(Errno::into)
                }
                IterationChange::PageOut(_) | IterationChange::Exec => Err(Errno::NOTSUP.into()),
            };
            helper::answer(chain.shared(), request.number, &result);
        }
        chain.run();
        let [before, before_too] = chain.before();
        // Otherwise the pages stayed in place, and the iteration shows nothing.
        let [before, before_too] = [before, before_too].map(Call::answer);
        let gone = before.and(before_too).and(chain.after().answer());
        gone.map_err(failed(thread, "cannot drop the pages of its stack"))?;
    }
    drop((stack, aside));
    Ok(())
}

/// In the next iteration every page exists and none is in the page tables.
pub(super) fn drop_all(chain: &Chain, stack: &Pages) {
    let [before, before_too] = chain.before();
    before_too.unset();
    let (start, len) = (stack.address(), stack.end() - stack.address());
    before.set(libc::SYS_madvise, &[start, len, MADV_DONTNEED_LOCKED]);
    chain.after().unset();
}

/// In the next iteration this page is moved away during the system call, so that nothing is mapped
/// in its place. Only a new mapping of a single page could take the place meanwhile, and the agent
/// makes none.
fn move_aside(chain: &Chain, page: u64, aside: u64) {
    let [before, _] = chain.before();
    before.set(libc::SYS_mremap, &[page, PAGE, PAGE, MOVE, aside]);
    let after = chain.after();
    after.set(libc::SYS_mremap, &[aside, PAGE, PAGE, MOVE, page]);
}

/// A file of one page, in memory.
fn one_page() -> Result<File, Errno> {
    let file = File::from(memfd_create("page", MemfdFlags::CLOEXEC)?);
    ftruncate(&file, PAGE)?;
    Ok(file)
}

/// In the next iteration this page is that of the file, which is empty during the system call. The
/// page's contents are saved before and written back after.
fn truncate(chain: &Chain, page: u64, file: &File, aside: u64) -> Result<(), Errno> {
    let at = std::ptr::with_exposed_provenance_mut(usize::try_from(page).unwrap_or(0));
    let (access, flags) = (
        ProtFlags::READ | ProtFlags::WRITE,
        MapFlags::SHARED | MapFlags::FIXED,
    );
    // SAFETY: a page of the stack, which is unused between two iterations.
    unsafe { mmap(at, PAGE_SIZE, access, flags, file, 0)? };
    let fd = u64::from(file.as_raw_fd().unsigned_abs());
    let [before, before_too] = chain.before();
    before.set(libc::SYS_pread64, &[fd, aside, PAGE, 0]);
    before_too.set(libc::SYS_ftruncate, &[fd, 0]);
    chain.after().set(libc::SYS_pwrite64, &[fd, aside, PAGE, 0]);
    Ok(())
}
