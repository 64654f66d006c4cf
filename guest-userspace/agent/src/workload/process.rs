//! `process`: each iteration is a process that makes its system call at the bottom of its chain. It
//! may be killed there, or execute another program instead. `exit-group`, `killed`: that system call
//! ends it.

use std::ffi::{c_char, c_int, c_void};
use std::io;

use rustix::io::Errno;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::{EXIT_AT_ONCE, WorkloadKind, mark};

use super::{WorkloadError, missing_pages};
use crate::chain::{Chain, PLAIN_END};
use crate::helper;
use crate::pages::Pages;
use crate::ports;
use crate::processes::{self, Process};
use crate::requests::IterationChange;

/// Pages of the stack on which a process begins.
const FIRST_PAGES: usize = 16;
/// The agent itself.
const PROGRAM: &std::ffi::CStr = c"/proc/self/exe";

/// Starts the processes one after the other, all on the same stack of shared memory.
pub(super) fn run(
    chain: Chain,
    thread: u32,
    kind: WorkloadKind,
    stack_bytes: usize,
) -> Result<(), WorkloadError> {
    let failed = |source| WorkloadError::System {
        thread,
        what: "a process of its own",
        source,
    };
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let arguments: [*const c_char; 3] = [PROGRAM.as_ptr(), EXIT_AT_ONCE.as_ptr(), std::ptr::null()];
    let execute = [
        PROGRAM.as_ptr().addr() as u64,
        arguments.as_ptr().addr() as u64,
    ];
    let map = |map: fn(usize) -> Result<Pages, Errno>, pages| {
        map(pages).map_err(|errno| failed(errno.into()))
    };
    let stack = map(Pages::shared, stack_bytes.div_ceil(PAGE_SIZE))?;
    let first_stack = map(Pages::new, FIRST_PAGES)?;
    // SAFETY: the stack was sized for this chain, and is unmapped after the last process.
    let chain = unsafe { chain.on_stack(stack.end()) };
    chain.shared().set_stack_top(thread, stack.end());
    let shared = chain.shared();
    let processes = shared.processes();
    let process = processes.of(thread).ok_or_else(invalid).map_err(failed)?;
    while chain.goes_on() {
        let request = shared.requests().take(thread);
        let executes = request.is_some_and(|request| request.change == IterationChange::Exec);
        if executes {
            chain.call().set(libc::SYS_execve, &execute);
        } else {
            let (number, arguments) = own_call(kind);
            chain.call().set(number, &arguments);
        }
        let [before, _] = chain.before();
        match kind {
            // A group of its own: it kills its whole group.
            WorkloadKind::Killed => before.set(libc::SYS_setpgid, &[]),
            _ => before.unset(),
        }
        if let Some(request) = request {
            let result = match request.change {
                IterationChange::Exec => Ok(()),
                IterationChange::Block(page) => {
                    missing_pages::drop_all(&chain, &stack);
                    shared.blocker().block(page, thread)
                }
                IterationChange::Unmap(_)
                | IterationChange::PageOut(_)
                | IterationChange::Truncate(_) => Err(invalid()),
            };
            helper::answer(shared, request.number, &result);
        }
        let pid = start(&chain, &first_stack, process).map_err(failed)?;
        let status = processes::wait(pid).map_err(failed)?;
        process.is_gone();
        let killed = process.was_killed(pid) || kind == WorkloadKind::Killed;
        let expected = match (killed, executes) {
            (true, _) => libc::SIGKILL,
            (_, true) => 0,
            (_, false) => libc::W_EXITCODE(PLAIN_END, 0),
        };
        if status != expected {
            let what = format!("it ended with status {status:#x}, not {expected:#x}");
            return Err(failed(io::Error::other(what)));
        }
        // The process may have ended before it could send the mark.
        // SAFETY: the agent's main thread has allowed the port before it made any other.
        unsafe { ports::ring_mark(mark::pack(mark::DONE, thread)) }
        chain.count();
    }
    drop((stack, first_stack));
    Ok(())
}

/// The system call of a process that does not execute another program.
fn own_call(kind: WorkloadKind) -> (i64, [u64; 2]) {
    match kind {
        WorkloadKind::ExitGroup => (libc::SYS_exit_group, [PLAIN_END.unsigned_abs().into(), 0]),
        WorkloadKind::Killed => (libc::SYS_kill, [0, libc::SIGKILL.unsigned_abs().into()]),
        _ => (libc::SYS_getppid, [0, 0]),
    }
}

/// Starts one process, which shares this one's memory.
fn start(chain: &Chain, stack: &Pages, process: &Process) -> io::Result<c_int> {
    extern "C" fn child(chain: *mut c_void) -> c_int {
        // SAFETY: the parent keeps the chain until this process has ended.
        unsafe { (*chain.cast::<Chain>()).run() }
        1
    }
    let top = std::ptr::with_exposed_provenance_mut(usize::try_from(stack.end()).unwrap_or(0));
    let flags = libc::CLONE_VM | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
    let chain = std::ptr::from_ref(chain).cast_mut().cast();
    // SAFETY: the stack has room to begin on, and the chain, which has one of its own, is only
    // read, but for words of the child's own that the parent does not look at; the kernel writes
    // the id into an atomic.
    match unsafe { libc::clone(child, top, flags, chain, process.id()) } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}
