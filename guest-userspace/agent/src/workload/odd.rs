//! `frameless-shapes`: calls of each form, a section that comes and goes, and a signal.

use std::io;

use rustix::thread::gettid;

use super::{WorkloadError, failed, repeat};
use crate::chain::Chain;
use crate::chain::odd::Shapes;

/// `SA_RESTORER` (arch/x86/include/uapi/asm/signal.h).
const RESTORER: u64 = 0x0400_0000;

/// `struct sigaction` of the kernel (arch/x86/include/uapi/asm/signal.h).
#[repr(C)]
struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

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
    let [register, raise] = chain.before();
    raise.set(libc::SYS_tgkill, &arguments);
    repeat(chain);
    let calls = [
        (register, "cannot register the section of its page"),
        (raise, "cannot signal itself"),
        (chain.after(), "cannot take the section of its page away"),
    ];
    for (call, what) in calls {
        call.answer().map_err(failed(thread, what))?;
    }
    Ok(())
}

/// Sets the handler, for the whole process, with a restorer that a section describes: the agent uses
/// the signal for nothing else.
fn handle() -> io::Result<()> {
    let [handler, restorer] = Shapes::handler();
    let action = Action {
        handler,
        flags: RESTORER,
        restorer,
        mask: 0,
    };
    let none: *mut Action = std::ptr::null_mut();
    // SAFETY: the handler is code of `odd.s` that returns to the restorer.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            libc::SIGUSR1,
            &raw const action,
            none,
            size_of::<u64>(),
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
