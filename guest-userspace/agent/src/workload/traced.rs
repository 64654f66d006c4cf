//! `traced`: another process stops the thread at the entry to and the return from every system
//! call.

use std::ffi::{c_int, c_void};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use rustix::io::Errno;
use rustix::thread::gettid;
use unwindlab_abi::Observation;

use super::{WorkloadError, failed, repeat};
use crate::chain::Chain;
use crate::pages::Pages;

/// What the tracer writes once it traces the thread.
const READY: u8 = 1;

/// Pages of the tracer's stack; it makes system calls only.
const STACK_PAGES: usize = 16;

/// The parameters of the tracer.
#[derive(Debug)]
struct TracerPlan {
    /// The thread to trace.
    tid: i32,
    /// Where to write [`READY`].
    ready: i32,
}

/// Runs all iterations once a tracer is attached. The tracer ends with the thread.
pub(super) fn run(chain: &Chain, thread: u32) -> Result<Observation, WorkloadError> {
    let no_tracer = |source: std::io::Error| WorkloadError::System {
        thread,
        what: "cannot be traced",
        source,
    };
    let (mut from_tracer, to_thread) = std::io::pipe().map_err(no_tracer)?;
    let stack = Pages::new(STACK_PAGES).map_err(failed(thread, "cannot map a stack"))?;
    let order = Box::new(TracerPlan {
        tid: gettid().as_raw_nonzero().get(),
        ready: to_thread.as_raw_fd(),
    });
    start(&stack, Box::into_raw(order)).map_err(no_tracer)?;
    // The tracer outlives this thread.
    std::mem::forget(stack);
    drop(to_thread);
    let mut answer = [0];
    // If the pipe ends without a byte, the tracer could not attach.
    from_tracer.read_exact(&mut answer).map_err(no_tracer)?;
    if answer != [READY] {
        return Err(failed(thread, "cannot be traced")(Errno::IO));
    }
    repeat(chain);
    Ok(Observation::Traced { thread })
}

/// Starts the tracer. It is a process, because a thread cannot trace threads of its own process. It
/// shares the memory, because after a `fork` the next write would move a page that the host reads.
fn start(stack: &Pages, order: *mut TracerPlan) -> std::io::Result<()> {
    let top = std::ptr::with_exposed_provenance_mut(usize::try_from(stack.end()).unwrap_or(0));
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: `trace` runs on its own stack, makes system calls only, and `order` is never freed.
    match unsafe { libc::clone(trace, top, flags, order.cast()) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The tracer: lets the thread run from stop to stop until it is gone.
extern "C" fn trace(order: *mut c_void) -> c_int {
    // SAFETY: system calls on a thread of another process and on memory that stays.
    unsafe {
        let TracerPlan { tid, ready } = *order.cast::<TracerPlan>();
        let nothing = null_mut::<u8>();
        let go_on = || libc::ptrace(libc::PTRACE_SYSCALL, tid, nothing, nothing);
        let seized = libc::ptrace(libc::PTRACE_SEIZE, tid, nothing, nothing) == 0
            && libc::ptrace(libc::PTRACE_INTERRUPT, tid, nothing, nothing) == 0
            && stopped(tid)
            && go_on() == 0;
        if seized && libc::write(ready, std::slice::from_ref(&READY).as_ptr().cast(), 1) == 1 {
            while stopped(tid) && go_on() == 0 {}
        }
        libc::_exit(0)
    }
}

/// Waits for the next stop; false when the thread is gone.
fn stopped(tid: i32) -> bool {
    let mut status = 0;
    // SAFETY: `status` is this function's.
    let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
    waited == tid && libc::WIFSTOPPED(status)
}
