//! What asks for a stack without a BPF program: timers of CPU time, and perf's `sigtrap`.

use std::ffi::{c_int, c_void};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use unwindlab_abi::user_mode::Asker;

use crate::pages::Pages;
use crate::perf::attr::{PerfEventAttr, TYPE_TRACEPOINT};
use crate::perf::{FD_CLOEXEC, perf_event_open};
use crate::system;

/// CPU time between two signals of a timer, in microseconds.
const INTERVAL_US: i64 = 10_000;
/// What a timer's signal, or an event's, has as its value: as much as fits, and the same in each.
const VALUE: u64 = 0x0123_4567_89ab_cdef;
/// Bits of the flag word of `struct perf_event_attr`: `remove_on_exec`, which `sigtrap` needs.
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER7`, with `sig_data`.
#[repr(C)]
struct SignalAttr {
    head: PerfEventAttr,
    aux: u64,
    sig_data: u64,
}

/// Has the kernel send a thread SIGTRAP at each of its NMIs, as long as the descriptor is open.
pub(super) fn sigtrap(tid: u32) -> io::Result<OwnedFd> {
    let id = Path::new(system::TRACEFS).join("events/nmi/nmi_handler/id");
    let id = fs::read_to_string(id)?;
    let id = id.trim().parse::<u64>().map_err(io::Error::other)?;
    let mut attr = SignalAttr {
        head: PerfEventAttr::quiet(TYPE_TRACEPOINT, id),
        aux: 0,
        sig_data: VALUE,
    };
    attr.head.size = u32::try_from(size_of::<SignalAttr>()).unwrap_or(0);
    attr.head.sample_period = 1;
    // On from the start.
    attr.head.flags = REMOVE_ON_EXEC | SIGTRAP;
    attr.head.wakeup_watermark = 0;
    let tid = c_int::try_from(tid).map_err(io::Error::other)?;
    let (any_cpu, no_group) = (-1, -1);
    let all = (&raw const attr).cast();
    // SAFETY: the size is that of the whole struct.
    let event = unsafe { perf_event_open(all, tid, any_cpu, no_group, FD_CLOEXEC) };
    event.map_err(io::Error::from)
}

/// Starts the calling process's timer, or stops it.
pub(super) fn set_timer(asker: Asker, signal: c_int, on: bool) -> io::Result<()> {
    let interval = if on { INTERVAL_US } else { 0 };
    match asker {
        Asker::Bpf | Asker::Sigtrap => Ok(()),
        Asker::Itimer => {
            let every = libc::timeval {
                tv_sec: 0,
                tv_usec: interval,
            };
            let timer = libc::itimerval {
                it_interval: every,
                it_value: every,
            };
            // SAFETY: it changes no memory.
            done(unsafe {
                libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut())
            })
        }
        // It ends with its process.
        Asker::ThreadTimer if !on => Ok(()),
        Asker::ThreadTimer => thread_timer(signal, interval),
    }
}

/// A timer of the calling thread's CPU time, with its signal to the thread.
fn thread_timer(signal: c_int, interval: i64) -> io::Result<()> {
    let every = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1000 * interval,
    };
    let spec = libc::itimerspec {
        it_interval: every,
        it_value: every,
    };
    let mut timer: libc::timer_t = std::ptr::null_mut();
    // SAFETY: a zeroed event is valid; the calls write to the timer's id alone.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_value.sival_ptr =
            std::ptr::without_provenance_mut(usize::try_from(VALUE).unwrap_or(0));
        event.sigev_notify_thread_id =
            c_int::try_from(libc::syscall(libc::SYS_gettid)).unwrap_or(0);
        let clock = libc::CLOCK_THREAD_CPUTIME_ID;
        done(libc::timer_create(clock, &raw mut event, &raw mut timer))?;
        done(libc::timer_settime(
            timer,
            0,
            &raw const spec,
            std::ptr::null_mut(),
        ))
    }
}

fn done(answer: c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Starts another thread in the calling process, which sleeps: its id. It ends with the process.
///
/// # Safety
/// The stack stays as long as the process.
pub(super) unsafe fn bystander(stack: &Pages) -> io::Result<u32> {
    extern "C" fn sleep(_: *mut c_void) -> c_int {
        loop {
            // SAFETY: it waits for a signal.
            unsafe { libc::syscall(libc::SYS_pause) };
        }
    }
    let top = usize::try_from(stack.end()).unwrap_or(0);
    let top = std::ptr::with_exposed_provenance_mut(top);
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    // SAFETY: the stack is the thread's own, and it is given nothing.
    let tid = unsafe { libc::clone(sleep, top, flags, std::ptr::null_mut()) };
    match u32::try_from(tid) {
        Ok(tid) if tid > 0 => Ok(tid),
        _ => Err(io::Error::last_os_error()),
    }
}
