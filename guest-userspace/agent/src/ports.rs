//! The two I/O ports to the host.

use std::arch::asm;
use std::ffi::{c_int, c_ulong};

use unwindlab_abi::{MAILBOX_PORT, MARK_PORT};

/// Allows this thread, and every thread that it starts later, to use the ports.
///
/// # Errors
/// The errno of `ioperm`: `EPERM` without `CAP_SYS_RAWIO`, `ENOSYS` in a kernel without
/// `CONFIG_X86_IOPL_IOPERM`.
pub fn allow() -> Result<(), std::io::Error> {
    for port in [MAILBOX_PORT, MARK_PORT] {
        // SAFETY: no memory is involved; the ports are the host's.
        let answer = unsafe { libc::ioperm(c_ulong::from(port), 4, c_int::from(true)) };
        if answer != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Sends the host the page frame number of a mailbox header. The host reads and writes the
/// mailbox's memory before this returns.
///
/// # Safety
/// [`allow`] must have been called in this thread or the one that made it, and `frame` must be
/// that of a header whose pages the caller owns.
pub unsafe fn ring_mailbox(frame: u32) {
    // SAFETY: the port is allowed, as promised; without `nomem` the compiler takes all memory
    // that the host may write as changed.
    unsafe {
        asm!("out dx, eax", in("dx") MAILBOX_PORT, in("eax") frame, options(nostack, preserves_flags));
    }
}

/// Sends a mark to the host, as the workload threads do.
///
/// # Safety
/// [`allow`] must have been called in this thread or the one that made it.
pub unsafe fn ring_mark(value: u32) {
    // SAFETY: the port is allowed, as promised; no memory of this program is involved, but earlier
    // writes must be visible to the host.
    unsafe {
        asm!("out dx, eax", in("dx") MARK_PORT, in("eax") value, options(nostack, preserves_flags));
    }
}
