//! A timer of the calling thread that interrupts `KVM_RUN`.

use std::cell::OnceCell;
use std::io;
use std::time::Duration;

use vmm_sys_util::signal::unblock_signal;

use crate::vcpu::kick::kick_signal;

/// Period after the first tick: a signal right before `KVM_RUN` does not interrupt it, so another
/// one follows.
const PERIOD: Duration = Duration::from_millis(10);

/// A POSIX timer (`timer_create(2)`) that sends the kick signal to the thread that created it.
struct Timer(libc::timer_t);

impl Timer {
    fn new() -> io::Result<Self> {
        // The thread's signal mask may block it.
        unblock_signal(kick_signal()).map_err(|error| io::Error::other(format!("{error:?}")))?;
        // SAFETY: the structure is plain data, for which all zeros is a valid value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = kick_signal();
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both pointers are to values that outlive the call; the result is checked.
        match unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) } {
            0 => Ok(Self(timer)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Starts it: first tick after `first`, then one every `period`. Zero for `first` stops it.
    fn set(&self, first: Duration, period: Duration) -> io::Result<()> {
        let spec = libc::itimerspec {
            it_interval: timespec(period),
            it_value: timespec(first),
        };
        // SAFETY: the timer exists as long as `self`, and the new value outlives the call.
        match unsafe { libc::timer_settime(self.0, 0, &spec, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer created in `new`, deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(time.subsec_nanos().cast_signed()),
    }
}

thread_local! {
    static TIMER: OnceCell<Timer> = const { OnceCell::new() };
}

/// The timer ticks until this is dropped.
#[derive(Debug)]
pub(crate) struct Ticks(());

/// Interrupts the calling thread after this time, and periodically from then on.
pub(crate) fn start(after: Duration) -> io::Result<Ticks> {
    // Zero would stop the timer.
    let after = after.max(Duration::from_nanos(1));
    TIMER.with(|timer| {
        if timer.get().is_none() {
            // It is empty: no other thread can have filled it.
            let _ = timer.set(Timer::new()?);
        }
        timer.get().map_or(Ok(()), |timer| timer.set(after, PERIOD))
    })?;
    Ok(Ticks(()))
}

impl Drop for Ticks {
    fn drop(&mut self) {
        // Setting an existing timer cannot fail.
        let stop = |timer: &Timer| timer.set(Duration::ZERO, Duration::ZERO);
        let _ = TIMER.try_with(|timer| timer.get().map(stop));
    }
}
