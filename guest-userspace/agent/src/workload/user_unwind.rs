//! `user-unwind`: a thread that unwinds itself, asked by a signal with the cookie of a request
//! (proposal:user-unwind).

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use unwindlab_abi::Observation;
use unwindlab_abi::user_stack::{USER_STACK_FRAMES, USER_STACK_PIECE, UserStack};
use unwindlab_unwinder::{Frame, Stack};

use super::{WorkloadError, failed, repeat};
use crate::chain::Chain;
use crate::signals;
use crate::unwinders::{Unwinders, Way, registers, shown};

/// `PR_SET_USER_UNWIND` and its flag, of the proposal (guest-kernel/patches/proposals/user-unwind.patch).
const SET: i32 = 0x5555_4e01;
const BOTH: u64 = 1;
/// A real-time signal that nothing else uses.
const SIGNAL: c_int = 40;
/// Signals that a thread has room for.
const ROOM: usize = 512;
const WAYS: [Way; 3] = [Way::FramePointers, Way::Dwarf, Way::Semantic];

/// One signal.
#[derive(Clone, Copy)]
struct Taken {
    cookie: u64,
    lost: c_int,
    found: [([Frame; USER_STACK_FRAMES], usize); 3],
}

/// Where the handler of a thread writes.
struct Book {
    unwinders: Unwinders,
    stack: Stack,
    /// Only the thread itself uses it: its handler, and after the last signal the rest of it.
    taken: UnsafeCell<Box<[Taken]>>,
    used: AtomicUsize,
}

thread_local! {
    /// The thread's book while it has opted in, else null. No destructor and no lazy start: the handler may read it.
    static BOOK: Cell<*const Book> = const { Cell::new(std::ptr::null()) };
}
/// Signals that came to a thread without a book, and those for which a book had no room.
static STRAY: AtomicUsize = AtomicUsize::new(0);
static FULL: AtomicUsize = AtomicUsize::new(0);

/// Whether the kernel can ask a thread.
pub(super) fn check() -> Result<(), WorkloadError> {
    const MISSING: WorkloadError =
        WorkloadError::Unsupported("a signal that asks for a user stack (PR_SET_USER_UNWIND)");
    prctl(0, 0).map_err(|_| MISSING)
}

fn prctl(signal: u64, flags: u64) -> Result<(), rustix::io::Errno> {
    // SAFETY: it changes what signals the thread gets, and no memory.
    match unsafe { libc::prctl(SET, signal, flags, 0_u64, 0_u64) } {
        0 => Ok(()),
        _ => Err(
            rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
                .unwrap_or(rustix::io::Errno::INVAL),
        ),
    }
}

/// Runs all iterations with the thread opted in. `pages` are bounds of a stack that the chain has besides the
/// thread's own.
pub(super) fn run(
    chain: &Chain,
    thread: u32,
    pages: Option<(u64, u64)>,
) -> Result<Vec<Observation>, WorkloadError> {
    let unwinders = Unwinders::new()?;
    let (low, high) = own_stack(thread)?;
    // SAFETY: both stay mapped as long as the thread runs its chain.
    let stack = unsafe {
        let own = Stack::new(low, high);
        pages.map_or(own, |(low, high)| own.and(low, high))
    };
    let empty = Taken {
        cookie: 0,
        lost: 0,
        found: [([Frame::Native(0); USER_STACK_FRAMES], 0); 3],
    };
    let book = Book {
        unwinders,
        stack,
        taken: UnsafeCell::new(vec![empty; ROOM].into_boxed_slice()),
        used: AtomicUsize::new(0),
    };
    handle().map_err(failed(thread, "cannot handle the signal that asks"))?;
    BOOK.set(&raw const book);
    prctl(u64::from(SIGNAL.unsigned_abs()), BOTH).map_err(failed(thread, "PR_SET_USER_UNWIND"))?;
    repeat(chain);
    let ended = prctl(0, 0).map_err(failed(thread, "PR_SET_USER_UNWIND"));
    // What was sent has come: it comes before the system call returns.
    BOOK.set(std::ptr::null());
    ended?;
    Ok(book.observations(thread))
}

impl Book {
    /// In the handler. Nothing here allocates or waits.
    fn take(&self, cookie: u64, lost: c_int, context: &libc::ucontext_t) {
        let used = self.used.load(Ordering::Relaxed);
        // SAFETY: the handler of the one thread that uses it; its signal is blocked here.
        let taken = unsafe { &mut *self.taken.get() };
        let Some(slot) = taken.get_mut(used) else {
            FULL.fetch_add(1, Ordering::Relaxed);
            return;
        };
        (slot.cookie, slot.lost) = (cookie, lost);
        for (way, (frames, found)) in WAYS.into_iter().zip(&mut slot.found) {
            let from = registers(context);
            *found = self.unwinders.walk(way, from, &self.stack, frames).frames;
        }
        self.used.store(used + 1, Ordering::Relaxed);
    }

    fn observations(self, thread: u32) -> Vec<Observation> {
        let used = self.used.load(Ordering::Relaxed);
        let taken = self.taken.into_inner();
        let stacks: Vec<UserStack> = { taken.iter().take(used) }
            .map(|it| {
                let [pointers, dwarf, semantic] = it
                    .found
                    .each_ref()
                    .map(|(frames, found)| frames.iter().take(*found).copied());
                UserStack {
                    thread,
                    cookie: it.cookie,
                    lost: it.lost.unsigned_abs(),
                    by_frame_pointers: pointers.map(Frame::word).collect(),
                    by_dwarf: dwarf.map(Frame::word).collect(),
                    semantic: semantic.map(shown).collect(),
                }
            })
            .collect();
        let pieces = stacks.chunks(USER_STACK_PIECE);
        let pieces = pieces.map(|piece| Observation::UserStacks(piece.to_vec()));
        let odd = Observation::UserSignals {
            thread,
            stray: STRAY.load(Ordering::Relaxed) as u64,
            full: FULL.load(Ordering::Relaxed) as u64,
        };
        pieces.chain([odd]).collect()
    }
}

extern "C" fn on_signal(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the book outlives the thread's chain, during which it is set.
    let Some(book) = (unsafe { BOOK.get().as_ref() }) else {
        STRAY.fetch_add(1, Ordering::Relaxed);
        return;
    };
    // SAFETY: the arguments of a handler with SA_SIGINFO.
    let (info, context) = unsafe { (&*info, &*context.cast::<libc::ucontext_t>()) };
    // SAFETY: the signal was queued with a value.
    let cookie = unsafe { info.si_value() }.sival_ptr.addr() as u64;
    book.take(cookie, info.si_errno, context);
}

fn handle() -> Result<(), rustix::io::Errno> {
    let flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler has the signature that SA_SIGINFO wants, and takes into memory that is there.
    unsafe { signals::handle(SIGNAL, on_signal as *const () as usize, flags) }
}

/// The bounds of the calling thread's stack.
fn own_stack(thread: u32) -> Result<(u64, u64), WorkloadError> {
    let lost = failed(thread, "cannot find its stack");
    // SAFETY: the attributes are initialised by the first call, and destroyed after the last.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return Err(lost(rustix::io::Errno::INVAL));
        }
        let (mut low, mut size) = (std::ptr::null_mut(), 0);
        let found = libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut size);
        libc::pthread_attr_destroy(&raw mut attributes);
        if found != 0 {
            return Err(lost(rustix::io::Errno::INVAL));
        }
        let low = low.addr() as u64;
        Ok((low, low + size as u64))
    }
}
