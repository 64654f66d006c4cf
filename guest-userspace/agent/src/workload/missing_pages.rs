//! `missing-pages`: every iteration makes its system call with no page of its stack mapped.

use unwindlab_abi::mailbox::PAGE_SIZE;

use super::{WorkloadError, failed};
use crate::chain::Chain;
use crate::helper;
use crate::pages::Pages;

/// Runs the chain, over and over, on a stack of shared memory.
pub(super) fn run(chain: Chain, thread: u32, stack_bytes: usize) -> Result<(), WorkloadError> {
    let stack = Pages::shared(stack_bytes.div_ceil(PAGE_SIZE))
        .map_err(failed(thread, "cannot map a stack"))?;
    // SAFETY: the stack was sized for this chain, and is unmapped after the last run.
    let chain = unsafe { chain.on_stack(stack.address(), stack.end()) };
    chain.shared().set_stack_top(thread, stack.end());
    while chain.goes_on() {
        if let Some((number, result)) = chain.shared().blocker().set_up(thread) {
            helper::answer(chain.shared(), number, &result);
        }
        chain.run();
        // What the leaf's madvise returned: 0, or the pages were there and nothing was shown.
        if let Ok(negative @ ..0) = i32::try_from(chain.last_result()) {
            let errno = rustix::io::Errno::from_raw_os_error(-negative);
            return Err(failed(thread, "cannot drop the pages of its stack")(errno));
        }
    }
    drop(stack);
    Ok(())
}
