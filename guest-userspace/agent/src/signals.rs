//! Handlers of signals.

use std::ffi::c_int;

use rustix::io::Errno;

/// Sets the address of a handler for the whole process.
///
/// # Errors
/// The errno of `sigaction`.
///
/// # Safety
/// The handler keeps to what a handler may do, and takes what these `SA_*` flags give it.
pub(crate) unsafe fn handle(signal: c_int, handler: usize, flags: c_int) -> Result<(), Errno> {
    // SAFETY: a zeroed action is valid, and the caller promises the rest.
    let answer = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
    };
    match answer {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
