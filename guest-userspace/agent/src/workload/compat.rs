//! `compat`, `compat-int80`, `compat-syscall`, `compat-sysenter`: the chain is 32-bit code.

use unwindlab_abi::WorkloadKind;
use unwindlab_abi::mailbox::PAGE_SIZE;

use super::{WorkloadError, failed};
use crate::chain::{Chain, Entry};
use crate::pages::Pages;

/// Runs all iterations, on a stack that 32 bits can address.
pub(super) fn run(
    chain: Chain,
    thread: u32,
    kind: WorkloadKind,
    stack_bytes: usize,
) -> Result<(), WorkloadError> {
    let chain = match kind {
        WorkloadKind::CompatInt80 => chain.entering(Entry::Int80),
        _ => chain,
    };
    let stack = Pages::low(stack_bytes.div_ceil(PAGE_SIZE))
        .map_err(failed(thread, "cannot map a stack below 2 GiB"))?;
    // SAFETY: the stack was sized for this chain, and is unmapped after the last run.
    let chain = unsafe { chain.on_stack(stack.end()) };
    while chain.goes_on() {
        chain.run();
        chain.count();
    }
    drop(stack);
    Ok(())
}
