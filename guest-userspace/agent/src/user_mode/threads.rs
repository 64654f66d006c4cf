//! The threads whose handlers run, and the signal of the program's own.
//!
//! A handler finds its thread by its stack: to ask for the thread's id takes a system call.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::pages::Pages;
use crate::signals;

/// Most threads that are known.
pub(super) const HANDLED_THREADS: usize = 64;
/// The signal that the program handles itself.
pub(super) const OWN_SIGNAL: c_int = libc::SIGUSR2;

static THREADS: [ThreadWords; HANDLED_THREADS] = [const { ThreadWords::new() }; HANDLED_THREADS];

/// A thread, and what its handlers counted.
#[derive(Debug)]
pub(super) struct ThreadWords {
    tid: AtomicU64,
    /// Start and end of each of its stacks: its own, the alternate one, and that of its chain.
    stacks: [[AtomicU64; 2]; 3],
    nonces: AtomicU32,
    signals: AtomicU32,
}

impl ThreadWords {
    const fn new() -> Self {
        Self {
            tid: AtomicU64::new(0),
            stacks: [const { [const { AtomicU64::new(0) }; 2] }; 3],
            nonces: AtomicU32::new(0),
            signals: AtomicU32::new(0),
        }
    }

    /// Its id.
    pub(super) fn tid(&self) -> u64 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Start and end of each of its stacks: its own, the alternate one, and that of its chain.
    pub(super) fn bounds(&self) -> [(u64, u64); 3] {
        let load = |it: &AtomicU64| it.load(Ordering::Relaxed);
        self.stacks
            .each_ref()
            .map(|[low, high]| (load(low), load(high)))
    }

    /// A signal with a nonce was handled.
    pub(super) fn count_nonce(&self) {
        self.nonces.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the stack pointer is on one of its stacks.
    fn has(&self, sp: u64) -> bool {
        let mut stacks = self.bounds().into_iter();
        self.tid.load(Ordering::Acquire) != 0
            && stacks.any(|(low, high)| (low..=high).contains(&sp))
    }
}

/// The slot and the thread with this stack pointer.
pub(super) fn on(sp: u64) -> Option<(usize, &'static ThreadWords)> {
    THREADS.iter().enumerate().find(|(_, words)| words.has(sp))
}

/// Signals with a nonce, and of the program's own, that the thread of a slot has handled.
pub(super) fn handled(slot: usize) -> [u32; 2] {
    let words = THREADS.get(slot);
    let count = |of: fn(&ThreadWords) -> &AtomicU32| {
        words.map_or(0, |words| of(words).load(Ordering::Relaxed))
    };
    [count(|it| &it.nonces), count(|it| &it.signals)]
}

/// Makes the calling thread, which has this slot, known by its stacks, and has its process handle the signal of
/// the program's own. `flags` are of its handlers.
///
/// # Errors
/// The error of the system calls.
///
/// # Safety
/// The stacks are readable within their bounds as long as the thread runs, and the alternate one stays.
pub(super) unsafe fn know(
    slot: usize,
    tid: u32,
    bounds: [(u64, u64); 3],
    alternate: Option<&Pages>,
    flags: c_int,
) -> io::Result<()> {
    let words = THREADS.get(slot).ok_or(io::ErrorKind::InvalidInput)?;
    for ([low, high], bounds) in words.stacks.iter().zip(bounds) {
        low.store(bounds.0, Ordering::Relaxed);
        high.store(bounds.1, Ordering::Relaxed);
    }
    words.tid.store(tid.into(), Ordering::Release);
    if let Some(pages) = alternate {
        let start = usize::try_from(pages.address()).unwrap_or(0);
        let end = usize::try_from(pages.end()).unwrap_or(0);
        let stack = libc::stack_t {
            ss_sp: std::ptr::with_exposed_provenance_mut(start),
            ss_flags: 0,
            ss_size: end.saturating_sub(start),
        };
        // SAFETY: the pages stay as long as the process.
        if unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let own: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = own_signal;
    // SAFETY: it counts only.
    unsafe { signals::handle(OWN_SIGNAL, own as usize, flags)? };
    Ok(())
}

/// Sends the calling process, which has one thread, the signal of the program's own.
pub(super) fn raise() {
    // SAFETY: no memory is involved.
    unsafe {
        let pid = libc::syscall(libc::SYS_getpid);
        libc::syscall(libc::SYS_kill, pid, OWN_SIGNAL);
    }
}

/// The program's own handler: counts. Where the handler of a nonce raises its signal, it makes a system call before that;
/// elsewhere it makes none, so that the system calls of an iteration are the leaf's.
extern "C" fn own_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: SA_SIGINFO: the kernel has put it on the stack; no copy of it is kept. `getppid` has no arguments.
    let sp = unsafe {
        if super::handler::raises() {
            libc::syscall(libc::SYS_getppid);
        }
        let context = &*context.cast::<libc::ucontext_t>();
        let rsp = usize::try_from(libc::REG_RSP).ok();
        rsp.and_then(|it| context.uc_mcontext.gregs.get(it).copied())
    };
    if let Some((_, words)) = on(sp.unwrap_or(0).cast_unsigned()) {
        words.signals.fetch_add(1, Ordering::Relaxed);
    }
}
