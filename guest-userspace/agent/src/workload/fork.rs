//! `fork`, `vfork`, `clone3`: the system call at the bottom of the chain starts a process, which
//! exits at once.

use std::io;

use unwindlab_abi::WorkloadKind;

use super::{WorkloadError, failed};
use crate::chain::Chain;
use crate::processes;

/// Bytes of the first version of `struct clone_args` (`CLONE_ARGS_SIZE_VER0`).
const ARGS_BYTES: u64 = 64;

/// Runs all iterations.
pub(super) fn run(chain: &Chain, thread: u32, kind: WorkloadKind) -> Result<(), WorkloadError> {
    // `struct clone_args`: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size,
    // tls.
    let arguments: [u64; 8] = [0, 0, 0, 0, libc::SIGCHLD.unsigned_abs().into(), 0, 0, 0];
    match kind {
        WorkloadKind::Vfork => chain.call().set(libc::SYS_vfork, &[]),
        WorkloadKind::Clone3 => {
            let arguments = arguments.as_ptr().addr() as u64;
            chain.call().set(libc::SYS_clone3, &[arguments, ARGS_BYTES]);
        }
        _ => chain.call().set(libc::SYS_fork, &[]),
    }
    while chain.goes_on() {
        chain.run();
        let answer = chain.call().answer();
        let child = answer.map_err(failed(thread, "cannot fork"))?;
        reap(child).map_err(|source| WorkloadError::System {
            thread,
            what: "its child",
            source,
        })?;
    }
    Ok(())
}

fn reap(child: u64) -> io::Result<()> {
    let child = i32::try_from(child).map_err(io::Error::other)?;
    match processes::wait(child)? {
        0 => Ok(()),
        status => Err(io::Error::other(format!("status {status:#x}"))),
    }
}
