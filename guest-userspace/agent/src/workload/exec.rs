//! `exec`: each iteration is a process that executes the agent again at the bottom of its chain.
//! `exec-by-thread`: the second thread of the process does so. `c-program`: it executes a program that
//! the host compiled.

use std::ffi::OsStr;
use std::ffi::{c_char, c_int, c_void};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;

use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::{EXIT_AT_ONCE, WorkloadKind};

use super::WorkloadError;
use crate::chain::Chain;
use crate::pages::Pages;
use crate::processes;

/// The agent itself.
const PROGRAM: &std::ffi::CStr = c"/proc/self/exe";
/// The program that the host compiled, where [`store`] puts it.
pub(super) const COMPILED: &std::ffi::CStr = c"/c-program";
/// Pages of the stack of a first thread that starts the second one.
const FIRST_PAGES: usize = 16;

/// Writes a program to where it is executed from.
pub(super) fn store(elf: &[u8]) -> io::Result<()> {
    let path = OsStr::from_bytes(COMPILED.to_bytes());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o700);
    options.open(path)?.write_all(elf)
}

/// Starts the processes one after the other, all on the same stack.
pub(super) fn run(
    chain: Chain,
    thread: u32,
    kind: WorkloadKind,
    stack_bytes: usize,
) -> Result<(), WorkloadError> {
    let failed = |source| WorkloadError::System {
        thread,
        what: "cannot execute a program",
        source,
    };
    let program = match kind {
        WorkloadKind::CProgram => COMPILED,
        _ => PROGRAM,
    };
    let arguments: [*const c_char; 3] = [program.as_ptr(), EXIT_AT_ONCE.as_ptr(), std::ptr::null()];
    let chain = chain.executing(
        program.as_ptr().addr() as u64,
        arguments.as_ptr().addr() as u64,
    );
    let map = |pages| Pages::new(pages).map_err(|e| failed(e.into()));
    let stack = map(stack_bytes.div_ceil(PAGE_SIZE))?;
    let first_stack = map(FIRST_PAGES)?;
    let second = Second {
        chain: &raw const chain,
        stack_top: stack.end(),
    };
    while chain.goes_on() {
        match kind {
            WorkloadKind::ExecByThread => {
                become_another(first, (&raw const second).cast(), &first_stack)
            }
            _ => become_another(alone, (&raw const chain).cast(), &stack),
        }
        .map_err(failed)?;
        chain.count();
    }
    drop((stack, first_stack));
    Ok(())
}

/// What the first thread of a process passes to the second.
#[repr(C)]
struct Second {
    chain: *const Chain,
    stack_top: u64,
}

/// Calls down the chain on the calling thread's stack.
extern "C" fn alone(chain: *mut c_void) -> c_int {
    // SAFETY: the parent waits with the chain until the process has its own memory.
    unsafe { (*chain.cast::<Chain>()).run() }
    1
}

/// Starts a second thread that does so, and waits for it inside the system call (as after `vfork`),
/// where exec ends the first thread.
extern "C" fn first(second: *mut c_void) -> c_int {
    // SAFETY: the parent keeps it, and the chain, until the process has its own memory.
    let second = unsafe { &*second.cast::<Second>() };
    let top = std::ptr::with_exposed_provenance_mut(usize::try_from(second.stack_top).unwrap_or(0));
    let flags = libc::CLONE_VM
        | libc::CLONE_VFORK
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    let chain = second.chain.cast_mut().cast();
    // SAFETY: the stack has room for the chain, which the thread only reads, but for words of its
    // own.
    unsafe { libc::clone(alone, top, flags, chain) };
    1
}

/// Starts one process, which shares this one's memory until it executes the other program, and
/// waits for its end.
fn become_another(
    child: extern "C" fn(*mut c_void) -> c_int,
    argument: *const c_void,
    stack: &Pages,
) -> io::Result<()> {
    let top = std::ptr::with_exposed_provenance_mut(usize::try_from(stack.end()).unwrap_or(0));
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack has room for what the child does, which only reads what the argument leads
    // to, but for words of its own that the parent does not look at.
    let child = unsafe { libc::clone(child, top, flags, argument.cast_mut()) };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    let status = processes::wait(child)?;
    if status != 0 {
        return Err(io::Error::other(format!(
            "it ended with status {status:#x}"
        )));
    }
    Ok(())
}
