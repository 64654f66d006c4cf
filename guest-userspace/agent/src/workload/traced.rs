//! `traced`: another process stops the thread at entry to and return from every system call.

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

/// What the tracer writes when the thread is traced.
const READY: u8 = 1;

/// Stack of the tracer: system calls only.
const STACK_PAGES: usize = 16;

/// What the tracer is told.
#[derive(Debug)]
struct Order {
    /// Whom to trace.
    tid: i32,
    /// Where to write [`READY`].
    ready: i32,
}

/// Runs the chain, over and over, once a tracer is attached. The tracer ends with the thread.
pub(super) fn run(chain: &Chain, thread: u32) -> Result<Observation, WorkloadError> {
    let no_tracer = |source: std::io::Error| WorkloadError::System {
        thread,
        what: "cannot be traced",
        source,
    };
    let (mut from_tracer, to_thread) = std::io::pipe().map_err(no_tracer)?;
    let stack = Pages::new(STACK_PAGES).map_err(failed(thread, "cannot map a stack"))?;
    let order = Box::new(Order {
        tid: gettid().as_raw_nonzero().get(),
        ready: to_thread.as_raw_fd(),
    });
    start(&stack, Box::into_raw(order)).map_err(no_tracer)?;
    // It lasts longer than this thread.
    std::mem::forget(stack);
    drop(to_thread);
    let mut answer = [0];
    // The end of the pipe without a byte is a tracer that could not attach.
    from_tracer.read_exact(&mut answer).map_err(no_tracer)?;
    if answer != [READY] {
        return Err(failed(thread, "cannot be traced")(Errno::IO));
    }
    repeat(chain);
    Ok(Observation::Traced { thread })
}

/// Starts the tracer: a process of its own, for a thread cannot trace those of its process. It
/// shares the memory: after a `fork` the next write to a page would move the page, and with it
/// what the host looks at.
fn start(stack: &Pages, order: *mut Order) -> std::io::Result<()> {
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
        let Order { tid, ready } = *order.cast::<Order>();
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
