//! A timer of the calling thread that gets it out of `KVM_RUN`.

use std::cell::OnceCell;
use std::io;
use std::time::Duration;

use vmm_sys_util::signal::unblock_signal;

use crate::kick::kick_signal;

/// A signal that comes right before `KVM_RUN` does not end it: another comes so much later.
const AGAIN: Duration = Duration::from_millis(10);

/// A POSIX timer (`timer_create(2)`) that sends the kick signal to the thread that made it.
struct Timer(libc::timer_t);

impl Timer {
    fn new() -> io::Result<Self> {
        // A mask inherited from the caller must not keep the signal out.
        unblock_signal(kick_signal()).map_err(|error| io::Error::other(format!("{error:?}")))?;
        // SAFETY: the structure is plain data, of which all zeros is a valid value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = kick_signal();
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: both point to values that live through the call, and the result is checked.
        match unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) } {
            0 => Ok(Self(timer)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Lets it tick first after `first`, then every `then`; never where `first` is nothing.
    fn set(&self, first: Duration, then: Duration) -> io::Result<()> {
        let spec = libc::itimerspec {
            it_interval: timespec(then),
            it_value: timespec(first),
        };
        // SAFETY: the timer is there as long as `self`, and the new value lives through the call.
        match unsafe { libc::timer_settime(self.0, 0, &spec, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: exactly the timer made in `new`, once.
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

/// Ticks, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticks(());

/// Has the calling thread interrupted when the time is over, and again and again from then on.
pub(crate) fn start(after: Duration) -> io::Result<Ticks> {
    // A value of zero would be no timer at all.
    let after = after.max(Duration::from_nanos(1));
    TIMER.with(|timer| {
        if timer.get().is_none() {
            // Nobody else is in this thread.
            let _ = timer.set(Timer::new()?);
        }
        timer.get().map_or(Ok(()), |timer| timer.set(after, AGAIN))
    })?;
    Ok(Ticks(()))
}

impl Drop for Ticks {
    fn drop(&mut self) {
        // It was set a moment ago: only a timer that is not there cannot be.
        let stop = |timer: &Timer| timer.set(Duration::ZERO, Duration::ZERO);
        let _ = TIMER.try_with(|timer| timer.get().map(stop));
    }
}
