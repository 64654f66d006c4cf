//! The thread that carries out the host's commands on workload threads during a trial.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{Pid, sched_setaffinity};
use unwindlab_abi::command::Command;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::mark;

use crate::chain::FRAME_BYTES;
use crate::pinned;
use crate::ports;
use crate::requests::{IterationChange, IterationRequest};
use crate::shared::SharedPages;
use crate::system;

/// Time between two looks at the command words.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// What the helper knows about a workload thread.
#[derive(Debug, Clone, Copy)]
pub struct KnownThread {
    /// Its thread id.
    pub tid: u32,
    /// Frames of its chain.
    pub frames: u64,
}

/// The helper, until it is dropped.
#[derive(Debug)]
pub struct Helper {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// Starts the helper on a CPU, for these workload threads.
    ///
    /// # Errors
    /// The thread cannot be started, or the signal handler cannot be set.
    pub fn start(
        cpu: u32,
        threads: Vec<KnownThread>,
        shared: Arc<SharedPages>,
    ) -> io::Result<Self> {
        ignore_signal()?;
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let thread = pinned::spawn("helper", cpu, move || {
            let mut work = Work {
                threads,
                shared,
                done: 0,
            };
            while !until.load(Ordering::Relaxed) {
                work.look();
                std::thread::sleep(LOOK_EVERY);
            }
        })?;
        Ok(Self {
            over,
            thread: Some(thread),
        })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // The agent's hook has reported a panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Work {
    threads: Vec<KnownThread>,
    shared: Arc<SharedPages>,
    /// Number of the last command.
    done: u64,
}

impl Work {
    fn look(&mut self) {
        let blocker = self.shared.blocker();
        if let Some(thread) = blocker.has_blocked() {
            ring(mark::BLOCKED, thread);
        }
        if self.shared.stopped() {
            // The trial is over: nobody may wait for the page any longer.
            let _ = blocker.release();
        }
        let Some((number, words)) = self.shared.command(self.done) else {
            return;
        };
        let command = Command::from_words(words);
        if let Some((command, thread)) = command
            && let Some(command) = ThreadCommand::of(command)
        {
            if self.request(number, thread, command) {
                self.done = number;
            }
            return;
        }
        self.done = number;
        let result = match command {
            Some((command, thread)) => self.carry_out(command, thread),
            None => Err(io::ErrorKind::InvalidInput.into()),
        };
        answer(&self.shared, number, &result);
    }

    fn carry_out(&self, command: Command, thread: u32) -> io::Result<()> {
        let known = self.known(thread).ok_or(io::ErrorKind::InvalidInput)?;
        match command {
            Command::Migrate { cpu } => pin(Some(known.tid), cpu),
            Command::Signal => signal(known.tid),
            Command::Release => self.shared.blocker().release(),
            Command::Kill => {
                let process = self.shared.processes().of(thread);
                process.ok_or(io::ErrorKind::InvalidInput)?.kill()
            }
            // The thread carries these out itself: see `request`.
            Command::Block { .. }
            | Command::Unmap { .. }
            | Command::PageOut { .. }
            | Command::Truncate { .. }
            | Command::Exec => Ok(()),
        }
    }

    /// Asks the thread; false if its stack is not known yet.
    fn request(&self, number: u64, thread: u32, command: ThreadCommand) -> bool {
        let change = match command {
            ThreadCommand::Exec => IterationChange::Exec,
            ThreadCommand::Page { frame, change } => {
                let Some(page) = self.page(thread, frame) else {
                    return false;
                };
                change(page)
            }
        };
        self.shared.requests().make(IterationRequest {
            number,
            thread,
            change,
        });
        true
    }

    /// The page that contains a frame of the thread's stack, once the stack is known.
    fn page(&self, thread: u32, frame: u32) -> Option<u64> {
        let top = self.shared.stack_top(thread);
        let known = self.known(thread).filter(|_| top != 0)?;
        let above = known.frames.saturating_sub(frame.into());
        // The return address is the upper word of the frame.
        let word = top.saturating_sub(above.saturating_mul(FRAME_BYTES as u64)) + 8;
        Some(word & !(PAGE_SIZE as u64 - 1))
    }

    fn known(&self, thread: u32) -> Option<KnownThread> {
        self.threads.get(usize::try_from(thread).ok()?).copied()
    }
}

/// A command that the thread carries out itself, between two iterations.
enum ThreadCommand {
    /// On the page of a frame.
    Page {
        frame: u32,
        change: fn(u64) -> IterationChange,
    },
    Exec,
}

impl ThreadCommand {
    fn of(command: Command) -> Option<Self> {
        let (frame, change): (u32, fn(u64) -> IterationChange) = match command {
            Command::Block { frame } => (frame, IterationChange::Block),
            Command::Unmap { frame } => (frame, IterationChange::Unmap),
            Command::PageOut { frame } => (frame, IterationChange::PageOut),
            Command::Truncate { frame } => (frame, IterationChange::Truncate),
            Command::Exec => return Some(Self::Exec),
            Command::Migrate { .. } | Command::Signal | Command::Release | Command::Kill => {
                return None;
            }
        };
        Some(Self::Page { frame, change })
    }
}

/// Reports the result of a command to the host.
pub fn answer(shared: &SharedPages, number: u64, result: &io::Result<()>) {
    let errno = match result {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
    };
    shared.answer(number, errno.unsigned_abs().into());
    ring(mark::COMMANDED, 0);
}

fn ring(what: u8, thread: u32) {
    // SAFETY: the agent's main thread has allowed the port before it made any other.
    unsafe { ports::ring_mark(mark::pack(what, thread)) }
}

fn pin(tid: Option<u32>, cpu: u32) -> io::Result<()> {
    let tid = tid.and_then(|tid| Pid::from_raw(tid.cast_signed()));
    Ok(sched_setaffinity(tid, &system::only(cpu))?)
}

fn signal(tid: u32) -> io::Result<()> {
    let pid = std::process::id();
    // SAFETY: no memory is involved; the handler does nothing.
    let answer = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGUSR1) };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kernel delivers a signal to init only if init has a handler for it.
fn ignore_signal() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: the handler touches nothing, so it can run at any time, in any thread.
    let before = unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    match before {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
