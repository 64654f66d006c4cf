//! `exit`: each iteration is a thread that exits at the bottom of its call chain.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;
use unwindlab_abi::mailbox::PAGE_SIZE;

use super::{WorkloadError, failed};
use crate::chain::Chain;
use crate::pages::Pages;

/// Starts the threads one after the other, all on the same stack.
pub(super) fn run(chain: &Chain, thread: u32, stack_bytes: usize) -> Result<(), WorkloadError> {
    let stack = Pages::new(stack_bytes.div_ceil(PAGE_SIZE))
        .map_err(failed(thread, "cannot map a stack"))?;
    let alive = AtomicU32::new(0);
    while chain.goes_on() {
        alive.store(1, Ordering::Relaxed);
        // SAFETY: the stack was sized for this chain; stack, chain and `alive` outlive the wait
        // below, which ends when the kernel has zeroed `alive`.
        let started = unsafe { chain.start_exiting_thread(stack.end(), alive.as_ptr()) };
        started.map_err(failed(thread, "cannot clone"))?;
        wait_until_gone(&alive);
        chain.count();
    }
    Ok(())
}

/// Sleeps until the kernel has zeroed the word (`CLONE_CHILD_CLEARTID`), after the exiting thread's
/// last access to its user stack.
fn wait_until_gone(alive: &AtomicU32) {
    while alive.load(Ordering::Acquire) != 0 {
        // The kernel wakes it as a shared futex, hence no PRIVATE flag. The word decides, not the
        // result of the wait.
        let _: Result<(), Errno> = futex::wait(alive, futex::Flags::empty(), 1, None);
    }
}
