//! `shapes`: the leaf calls functions of every shape, and sends itself a signal.

use std::io;

use rustix::thread::gettid;

use super::{WorkloadError, failed, repeat};
use crate::chain::{Chain, signal_handler};
use crate::signals;

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
    let handler = usize::try_from(signal_handler()).map_err(io::Error::other)?;
    // SAFETY: the handler is code of `chain.s` that returns.
    unsafe { signals::handle(libc::SIGUSR1, handler, 0)? };
    Ok(())
}
