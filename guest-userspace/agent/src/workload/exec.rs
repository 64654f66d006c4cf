//! `exec`: every iteration is a process that executes the agent anew at the bottom of its chain.

use std::ffi::{c_char, c_int, c_void};
use std::io;

use unwindlab_abi::EXIT_AT_ONCE;
use unwindlab_abi::mailbox::PAGE_SIZE;

use super::WorkloadError;
use crate::chain::Chain;
use crate::pages::Pages;

/// The agent itself.
const PROGRAM: &std::ffi::CStr = c"/proc/self/exe";

/// Starts the processes one after the other, all on the same stack.
pub(super) fn run(chain: Chain, thread: u32, stack_bytes: usize) -> Result<(), WorkloadError> {
    let failed = |source| WorkloadError::System {
        thread,
        what: "cannot execute a program",
        source,
    };
    let arguments: [*const c_char; 3] = [PROGRAM.as_ptr(), EXIT_AT_ONCE.as_ptr(), std::ptr::null()];
    let chain = chain.executing(
        PROGRAM.as_ptr().addr() as u64,
        arguments.as_ptr().addr() as u64,
    );
    let stack = Pages::new(stack_bytes.div_ceil(PAGE_SIZE)).map_err(|e| failed(e.into()))?;
    while chain.goes_on() {
        become_another(&chain, &stack).map_err(failed)?;
        chain.count();
    }
    drop(stack);
    Ok(())
}

/// Starts one process, in the memory of this one until it has become another program, and waits for
/// its end.
fn become_another(chain: &Chain, stack: &Pages) -> io::Result<()> {
    extern "C" fn child(chain: *mut c_void) -> c_int {
        // SAFETY: the parent waits with the chain until this process has its own memory.
        unsafe { (*chain.cast::<Chain>()).run() }
        1
    }
    let top = std::ptr::with_exposed_provenance_mut(usize::try_from(stack.end()).unwrap_or(0));
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let chain = std::ptr::from_ref(chain).cast_mut().cast();
    // SAFETY: the stack has room for the chain, which the child only reads, but for words of its
    // own that the parent does not look at.
    let child = unsafe { libc::clone(child, top, flags, chain) };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut status = 0;
    // SAFETY: `status` is this function's.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if waited != child {
        return Err(io::Error::last_os_error());
    }
    if status != 0 {
        return Err(io::Error::other(format!(
            "it ended with status {status:#x}"
        )));
    }
    Ok(())
}
