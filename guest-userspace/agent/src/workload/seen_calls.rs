//! The system calls of a process that unwinds itself, or of its twin, and what it saw of them.
//!
//! Nothing here allocates while the process runs: it shares the agent's memory, and may be killed anywhere.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use unwindlab_abi::WorkloadKind;
use unwindlab_abi::behaviour::{SEEN_CALLS, SeenCall, WAITS, Wait};

use crate::chain::Chain;
use crate::processes;
use crate::user_mode::{OWN_SIGNAL, Registration};

/// How long the calls wait. The kernel reads the times.
#[derive(Debug)]
struct Lengths {
    /// Of a call with a timeout, from its begin on.
    milliseconds: u64,
    timeout: libc::timespec,
    /// When the timer expires, which is set before the call that waits for it.
    timer: libc::itimerspec,
}

impl Lengths {
    const fn new(milliseconds: u64, timer: u64) -> Self {
        Self {
            milliseconds,
            timeout: time(milliseconds),
            timer: libc::itimerspec {
                it_interval: time(0),
                it_value: time(timer),
            },
        }
    }
}

/// Where a signal ends the call: a timeout that is over when the call looks for the signal would hide it, and a guest may
/// stand still in between.
static ENDED: Lengths = Lengths::new(2_000, 2_000);
/// The same where the signal does not end the `read` of the timer.
static ENDED_BUT_FOR_READ: Lengths = Lengths::new(2_000, 500);
/// Where nothing ends the call. The timer runs before the NMI at the `read`.
static LEFT_ALONE: Lengths = Lengths::new(50, 200);

const fn time(milliseconds: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (milliseconds / 1_000).cast_signed(),
        tv_nsec: (milliseconds % 1_000).cast_signed() * 1_000_000,
    }
}

/// What the calls wait on and point to, and what was seen of them.
#[derive(Debug)]
pub(super) struct SeenCalls {
    kind: WorkloadKind,
    /// Nobody changes it: a `futex` waits for the timeout.
    word: u32,
    /// Written by the kernel.
    buffer: UnsafeCell<[u64; 2]>,
    timer: OwnedFd,
    epoll: OwnedFd,
    /// Only the process itself writes, and who waited for its end reads.
    seen: UnsafeCell<Box<[SeenCall]>>,
    used: AtomicUsize,
}

impl SeenCalls {
    pub(super) fn new(kind: WorkloadKind) -> Result<Self, Errno> {
        Ok(Self {
            kind,
            word: 0,
            buffer: UnsafeCell::new([0; 2]),
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            seen: UnsafeCell::new(vec![SeenCall::default(); SEEN_CALLS].into_boxed_slice()),
            used: AtomicUsize::new(0),
        })
    }

    /// Runs one iteration and notes what the process saw of it.
    ///
    /// # Safety
    /// It is called by one process, and `self` stays as long as that.
    pub(super) unsafe fn iterate(&self, chain: &Chain, registration: &Registration, round: u64) {
        let due = self.prepare(chain, registration, round);
        let before = registration.handled();
        registration.iterate(chain);
        let Some((number, due)) = due else {
            return;
        };
        let answer = chain.call().raw_answer();
        let is_child = self.is_fork() && answer > 0;
        self.note(
            number,
            due,
            if is_child { 1 } else { answer },
            before,
            registration,
        );
        if is_child {
            let before = registration.handled();
            let status = c_int::try_from(answer).map_or(-1, reap);
            self.note(
                libc::SYS_wait4,
                Some(0),
                status.into(),
                before,
                registration,
            );
        }
    }

    /// What was seen. The process has ended.
    pub(super) fn seen(self) -> Vec<SeenCall> {
        let used = self.used.load(Ordering::Acquire);
        self.seen.into_inner().into_iter().take(used).collect()
    }

    const fn is_fork(&self) -> bool {
        matches!(
            self.kind,
            WorkloadKind::Fork | WorkloadKind::Vfork | WorkloadKind::Clone3
        )
    }

    /// Sets the leaf's call. Returns its number, and what it returns where nothing disturbs it.
    fn prepare(
        &self,
        chain: &Chain,
        registration: &Registration,
        round: u64,
    ) -> Option<(i64, Option<i64>)> {
        let (number, arguments, due): (i64, [u64; 4], i64) = match self.kind {
            WorkloadKind::Waits => {
                let waits = WAITS.iter().cycle();
                let which = usize::try_from(round).unwrap_or(0) % WAITS.len();
                let lengths = match (registration.asks_for(round), registration.restarts()) {
                    (true, false) => &ENDED,
                    (true, true) => &ENDED_BUT_FOR_READ,
                    (false, _) => &LEFT_ALONE,
                };
                let wait = waits.copied().nth(which);
                return wait.map(|wait| self.wait(chain, wait, lengths));
            }
            WorkloadKind::Raises => {
                // To its thread: signals to the process come after all to the thread (`dequeue_signal`,
                // kernel/signal.c). The thread is the only one, so their ids are the same.
                let pid = u64::from(std::process::id());
                (
                    libc::SYS_tgkill,
                    [pid, pid, OWN_SIGNAL.unsigned_abs().into(), 0],
                    0,
                )
            }
            WorkloadKind::Fork => (libc::SYS_fork, [0; 4], 1),
            WorkloadKind::Vfork => (libc::SYS_vfork, [0; 4], 1),
            WorkloadKind::ExitGroup => (libc::SYS_exit_group, [0; 4], 0),
            _ => return None,
        };
        chain.call().set(number, &arguments);
        Some((number, Some(due)))
    }

    fn wait(&self, chain: &Chain, wait: Wait, lengths: &'static Lengths) -> (i64, Option<i64>) {
        let time = (&raw const lengths.timeout).addr() as u64;
        let buffer = self.buffer.get().addr() as u64;
        let fd = |it: &OwnedFd| u64::from(it.as_raw_fd().unsigned_abs());
        chain.before()[0].unset();
        let (number, arguments, due): (i64, [u64; 4], i64) = match wait {
            Wait::Sleep => (libc::SYS_nanosleep, [time, 0, 0, 0], 0),
            Wait::Futex => {
                let word = (&raw const self.word).addr() as u64;
                let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                let timed_out = i64::from(-libc::ETIMEDOUT);
                let operation = operation.unsigned_abs().into();
                (libc::SYS_futex, [word, operation, 0, time], timed_out)
            }
            Wait::Epoll => (
                libc::SYS_epoll_wait,
                [fd(&self.epoll), buffer, 1, lengths.milliseconds],
                0,
            ),
            Wait::Poll => (libc::SYS_poll, [buffer, 0, lengths.milliseconds, 0], 0),
            Wait::Timer => {
                let once = (&raw const lengths.timer).addr() as u64;
                let set = [fd(&self.timer), 0, once, 0];
                chain.before()[0].set(libc::SYS_timerfd_settime, &set);
                (libc::SYS_read, [fd(&self.timer), buffer, 8, 0], 8)
            }
        };
        chain.call().set(number, &arguments);
        (number, Some(due))
    }

    fn note(
        &self,
        number: i64,
        due: Option<i64>,
        answer: i64,
        before: [u32; 2],
        registration: &Registration,
    ) {
        let used = self.used.load(Ordering::Relaxed);
        let [nonces, signals] = registration.handled();
        // SAFETY: only the process itself writes, and its handlers do not.
        let seen = unsafe { &mut *self.seen.get() };
        if let Some(slot) = seen.get_mut(used) {
            *slot = SeenCall {
                number: u32::try_from(number).unwrap_or(u32::MAX),
                answer,
                due,
                signals: signals.wrapping_sub(before[1]),
                nonces: nonces.wrapping_sub(before[0]),
            };
            self.used.store(used + 1, Ordering::Release);
        }
    }
}

/// The status of a child, once it has ended; a negative errno if it cannot be had.
fn reap(child: c_int) -> c_int {
    processes::wait(child).unwrap_or_else(|error| -error.raw_os_error().unwrap_or(1))
}
