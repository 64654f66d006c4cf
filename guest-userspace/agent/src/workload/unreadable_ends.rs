//! `unreadable-ends`: the frame pointer at the end of the chain leads to unreadable memory.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use rustix::io::Errno;
use unwindlab_abi::Observation;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::observation::UnreadableMemory;

use super::{WorkloadError, failed, repeat};
use crate::chain::Chain;
use crate::pages::Pages;
use crate::signals;

/// Bytes between the chain's stack and the page, so that a frame that begins a word below the page is above each stack pointer.
const GAP: usize = 64;
/// Bytes of a saved frame pointer, and of a return address.
const WORD: u64 = 8;

/// Most signals of a thread: one that faults again and again in user mode would never end.
const ENOUGH_SIGNALS: u64 = 1000;

thread_local! {
    /// SIGSEGV and SIGBUS of the thread.
    static SIGNALS: Cell<u64> = const { Cell::new(0) };
}

/// Runs all iterations and counts the signals.
pub(super) fn run(
    chain: Chain,
    thread: u32,
    stack_bytes: usize,
) -> Result<Observation, WorkloadError> {
    let kinds = [
        UnreadableMemory::Unmapped,
        UnreadableMemory::Protected,
        UnreadableMemory::BeyondFile,
        UnreadableMemory::UnmappedReturnAddress,
        UnreadableMemory::UnmappedFramePointer,
    ];
    let which = kinds.iter().cycle().nth(thread as usize).copied();
    let memory = which.unwrap_or(UnreadableMemory::Unmapped);
    // The page lies above the stack: a walk goes only upwards and would not read a page below. What is beside it can be read, on
    // both sides: a frame across its beginning has the return address in the page, one across its end the frame pointer.
    let bytes = stack_bytes + GAP;
    let stack =
        Pages::new(bytes.div_ceil(PAGE_SIZE) + 2).map_err(failed(thread, "cannot map a stack"))?;
    let page = stack.end() - 2 * PAGE_SIZE as u64;
    make_unreadable(&stack, page, memory).map_err(failed(thread, "cannot spoil a page"))?;
    count_signals().map_err(failed(thread, "cannot catch signals"))?;
    // SAFETY: the stack was sized for this chain and the gap, and is unmapped after the last run.
    let chain = unsafe { chain.on_stack(page - GAP as u64) };
    let end = match memory {
        UnreadableMemory::UnmappedReturnAddress => page - WORD,
        UnreadableMemory::UnmappedFramePointer => page + PAGE_SIZE as u64 - WORD,
        _ => page,
    };
    repeat(&chain.with_end(end));
    drop(stack);
    Ok(Observation::Unreadable {
        thread,
        memory,
        signals: SIGNALS.get(),
    })
}

/// Takes the page at an address in a mapping away. A hole of one page is too small for any mapping that is
/// made while the workload runs.
fn make_unreadable(stack: &Pages, page: u64, memory: UnreadableMemory) -> Result<(), Errno> {
    let offset = usize::try_from(page - stack.address()).map_err(|_| Errno::INVAL)?;
    let page = stack.at(offset, PAGE_SIZE);
    let page = page.ok_or(Errno::INVAL)?.as_ptr().cast::<c_void>();
    // SAFETY: nobody else knows of the page, and nothing of the agent's reads or writes it.
    let answer = unsafe {
        match memory {
            UnreadableMemory::Unmapped
            | UnreadableMemory::UnmappedReturnAddress
            | UnreadableMemory::UnmappedFramePointer => libc::munmap(page, PAGE_SIZE),
            UnreadableMemory::Protected => libc::mprotect(page, PAGE_SIZE, libc::PROT_NONE),
            UnreadableMemory::BeyondFile => map_beyond_file(page),
        }
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// Maps the first page of a file without bytes over `page`; 0, or -1 and `errno`.
///
/// # Safety
/// Nothing may use the page.
unsafe fn map_beyond_file(page: *mut c_void) -> c_int {
    // SAFETY: the name is a C string; the page may be mapped over, as the caller says; the mapping
    // keeps the file.
    unsafe {
        let file = libc::memfd_create(c"empty".as_ptr(), 0);
        if file < 0 {
            return -1;
        }
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let mapped = libc::mmap(page, PAGE_SIZE, libc::PROT_READ, flags, file, 0);
        let answer = if mapped == libc::MAP_FAILED { -1 } else { 0 };
        libc::close(file);
        answer
    }
}

fn count_signals() -> Result<(), Errno> {
    extern "C" fn count(_: c_int) {
        let signals = SIGNALS.get() + 1;
        SIGNALS.set(signals);
        if signals >= ENOUGH_SIGNALS {
            // SAFETY: allowed in a signal handler. The end of an init is a panic of the guest.
            unsafe { libc::_exit(1) }
        }
    }
    let handler: extern "C" fn(c_int) = count;
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the handler touches a cell of its thread.
        unsafe { signals::handle(signal, handler as *const () as usize, 0) }?;
    }
    Ok(())
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
