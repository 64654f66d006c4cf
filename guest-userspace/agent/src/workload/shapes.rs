//! `shapes`: the leaf calls functions of every shape, and sends itself a signal.

use std::io;
use std::mem::zeroed;
use std::ptr::null_mut;

use rustix::thread::gettid;

use super::{WorkloadError, failed, repeat};
use crate::chain::{Chain, signal_handler};

/// Runs all iterations.
pub(super) fn run(chain: &Chain, thread: u32) -> Result<(), WorkloadError> {
    handle().map_err(|source| WorkloadError::System {
        thread,
        what: "cannot handle its signal",
        source,
    })?;
    let task = gettid().as_raw_nonzero().get().unsigned_abs();
    let signal = libc::SIGUSR1.unsigned_abs();
    let arguments = [std::process::id(), task, signal].map(u64::from);
    chain.call().set(libc::SYS_tgkill, &arguments);
    repeat(chain);
    let answer = chain.call().answer();
    answer.map_err(failed(thread, "cannot signal itself"))?;
    Ok(())
}

/// Sets the handler, for the whole process: the agent uses the signal for nothing else.
fn handle() -> io::Result<()> {
    // SAFETY: all of it may be zero.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = usize::try_from(signal_handler()).map_err(io::Error::other)?;
    // SAFETY: the handler is code of `chain.s` that returns.
    match unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
