//! The handler: unwinds the thread that it interrupts, and writes nonce and stack for the host.
//!
//! All of it is async-signal-safe: it reads and writes memory that exists before the first signal, and
//! makes no system call but the return.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::user_mode::{
    HandlerKind, OPTED_OUT, RESULT_FRAMES, RESULT_HEAD, RESULT_SLOTS, result,
};
use unwindlab_unwinder::{Frame, Stack};

use crate::signals;
use crate::unwinders::{Unwinders, UnwindersError, Way, registers, shown};

use super::threads::{self, HANDLED_THREADS};

/// Words of a page.
const PAGE_WORDS: usize = PAGE_SIZE / 8;

/// The results; 0 until [`set_up`].
static RESULTS: AtomicUsize = AtomicUsize::new(0);
/// The pending nonces by slot; 0 until [`set_up`].
static PENDING: AtomicUsize = AtomicUsize::new(0);
/// What the handler does, a [`HandlerKind`].
static KIND: AtomicUsize = AtomicUsize::new(0);
/// Address of the stop word.
static STOP: AtomicUsize = AtomicUsize::new(0);
/// How it unwinds; set before the first signal.
static UNWINDERS: OnceLock<(Unwinders, Way)> = OnceLock::new();
/// By slot: where the thread's frames go. To clear so many on the stack would be most of what a signal costs.
static ROOMS: [Room; HANDLED_THREADS] =
    [const { Room(UnsafeCell::new([Frame::Native(0); RESULT_FRAMES])) }; HANDLED_THREADS];

struct Room(UnsafeCell<[Frame; RESULT_FRAMES]>);

// SAFETY: each is used by the handler of one thread, which does not nest: its signal is blocked in it.
unsafe impl Sync for Room {}

/// Says where the handler writes.
///
/// # Safety
/// `results` are [`unwindlab_abi::user_mode::RESULT_PAGES`] pages and `pending` is one page, all
/// writable as long as a handler may run.
pub(super) unsafe fn set_up(results: u64, pending: u64) {
    RESULTS.store(usize::try_from(results).unwrap_or(0), Ordering::Release);
    PENDING.store(usize::try_from(pending).unwrap_or(0), Ordering::Release);
    // Nobody has opted in.
    for slot in 0..HANDLED_THREADS {
        opt_out(slot);
    }
}

/// Says how the handler unwinds. The first call counts.
///
/// # Errors
/// [`UnwindersError`].
pub(super) fn unwind_by(way: Way) -> Result<(), UnwindersError> {
    let unwinders = Unwinders::new()?;
    UNWINDERS.get_or_init(|| (unwinders, way));
    Ok(())
}

/// Says what the handler does besides, until the word at `stop` is not 0.
pub(super) fn behave(kind: HandlerKind, stop: u64) {
    STOP.store(usize::try_from(stop).unwrap_or(0), Ordering::Release);
    KIND.store(kind as usize, Ordering::Release);
}

/// Whether it sends its thread another signal.
pub(super) fn raises() -> bool {
    KIND.load(Ordering::Acquire) == HandlerKind::Raises as usize
}

fn dally() {
    let kind = KIND.load(Ordering::Acquire);
    if kind == HandlerKind::Calls as usize {
        // SAFETY: it has no arguments.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
    if raises() {
        threads::raise();
    }
    if kind == HandlerKind::Faults as usize {
        // SAFETY: nothing is mapped there: it faults, which is what it is for.
        unsafe { std::arch::asm!("mov {0}, qword ptr [0]", out(reg) _) }
    }
    let stop = STOP.load(Ordering::Acquire);
    if kind == HandlerKind::Hangs as usize && stop != 0 {
        // SAFETY: the shared words stay as long as the workload.
        while unsafe { word(stop, 0) }.load(Ordering::Acquire) == 0 {
            std::hint::spin_loop();
        }
    }
}

/// Has the calling process answer the signal, and the program send it: its thread has this slot.
///
/// # Errors
/// The error of the system calls.
pub(super) fn opt_in(slot: usize, signal: c_int, flags: c_int) -> io::Result<()> {
    if KIND.load(Ordering::Acquire) == HandlerKind::Faults as usize {
        // The standard library has a handler for it, which the process has inherited.
        // SAFETY: there is no handler.
        unsafe { signals::handle(libc::SIGSEGV, libc::SIG_DFL, 0) }?;
    }
    // SAFETY: as the module says; the flags have SA_SIGINFO.
    unsafe { signals::handle(signal, entry(), flags) }?;
    set_pending(slot, 0);
    Ok(())
}

/// Ends that. The thread has no nonce pending where it runs its own code, unless it blocks the signal.
pub(super) fn opt_out(slot: usize) {
    set_pending(slot, OPTED_OUT);
}

fn set_pending(slot: usize, to: u64) {
    let pending = PENDING.load(Ordering::Acquire);
    if pending != 0 && slot < HANDLED_THREADS {
        // SAFETY: `set_up` promised a page of words, and the slot is below their number.
        unsafe { word(pending, slot) }.store(to, Ordering::SeqCst);
    }
}

/// Where the handler begins.
pub(super) fn entry() -> usize {
    let start: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
    start as usize
}

extern "C" fn handle(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: SA_SIGINFO: the kernel has put both on the stack; no copy of them is kept.
    let (nonce, code, context) = unsafe {
        // Of `sigtrap`, `si_perf_data` is at the same place.
        let value = (*info).si_value();
        (
            value.sival_ptr.addr() as u64,
            code(&*info),
            &*context.cast::<libc::ucontext_t>(),
        )
    };
    let registers = registers(context);
    let sp = registers.sp();
    dally();
    let pending = PENDING.load(Ordering::Acquire);
    let Some((slot, words)) = threads::on(sp) else {
        return;
    };
    let [own, alternate, chain] = words.bounds();
    // SAFETY: as the thread said when it made itself known.
    let stack = unsafe {
        Stack::new(own.0, own.1)
            .and(alternate.0, alternate.1)
            .and(chain.0, chain.1)
    };
    let Some((unwinders, way)) = UNWINDERS.get() else {
        return;
    };
    let Some(Room(room)) = ROOMS.get(slot) else {
        return;
    };
    // SAFETY: of the handler of one thread, during which its signal is blocked.
    let frames = unsafe { &mut *room.get() };
    let walked = unwinders.walk(*way, registers, &stack, frames);
    let head = [
        (result::NONCE, nonce),
        (result::TID, words.tid()),
        (result::IP, registers.ip()),
        (result::SP, sp),
        (result::FRAMES, walked.frames as u64),
        (result::STOP, walked.stop.number().into()),
        (result::CODE, code),
    ];
    publish(&head, frames.get(..walked.frames).unwrap_or_default());
    words.count_nonce();
    // Last, so that a nonce that a sample used again has its answer.
    fence(Ordering::SeqCst);
    if pending != 0 {
        // SAFETY: `set_up` promised a page of words, and the slot is below their number.
        let word = unsafe { word(pending, slot) };
        let _ = word.compare_exchange(nonce, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// The word [`result::CODE`] of a signal. Offsets: `siginfo_t` of include/uapi/asm-generic/siginfo.h.
fn code(info: &libc::siginfo_t) -> u64 {
    /// Of `si_overrun` and of `si_perf_flags`, in words of 4 bytes.
    const OVERRUN: usize = 5;
    const PERF_FLAGS: usize = 9;
    const TRAP_PERF: c_int = 6;
    let at = match (info.si_signo, info.si_code) {
        (_, libc::SI_TIMER) => Some(OVERRUN),
        (libc::SIGTRAP, TRAP_PERF) => Some(PERF_FLAGS),
        _ => None,
    };
    let words = std::ptr::from_ref(info).cast::<u32>();
    // SAFETY: both are inside of the 128 bytes of it.
    let more = at.map_or(0, |at| unsafe { words.add(at).read() });
    u64::from(more) << 32 | u64::from(info.si_code.cast_unsigned())
}

/// Writes a result into a slot of its own, if there is one left.
fn publish(head: &[(usize, u64)], frames: &[Frame]) {
    let results = RESULTS.load(Ordering::Acquire);
    if results == 0 {
        return;
    }
    // SAFETY: the first word of the control page.
    let taken = unsafe { word(results, 0) }.fetch_add(1, Ordering::SeqCst);
    let Some(slot) = usize::try_from(taken).ok().filter(|it| *it < RESULT_SLOTS) else {
        return;
    };
    let first = (1 + slot) * PAGE_WORDS;
    for &(index, value) in head {
        // SAFETY: inside the slot's page, which `set_up` promised.
        unsafe { word(results, first + index) }.store(value, Ordering::Relaxed);
    }
    for (index, frame) in frames.iter().take(RESULT_FRAMES).enumerate() {
        // SAFETY: as above.
        unsafe { word(results, first + RESULT_HEAD + index) }
            .store(shown(*frame).word(), Ordering::Relaxed);
    }
    // SAFETY: as above.
    unsafe { word(results, first + result::DONE) }.store(1, Ordering::Release);
}

/// A word of an area.
///
/// # Safety
/// The area has that many words, and stays.
unsafe fn word(area: usize, index: usize) -> &'static AtomicU64 {
    let start: *const AtomicU64 = std::ptr::with_exposed_provenance(area);
    // SAFETY: as the caller promises; the words are aligned, and are only used atomically.
    unsafe { &*start.add(index) }
}
