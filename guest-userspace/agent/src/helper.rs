//! The thread that does to workload threads what the host says in the middle of a trial.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::thread::{Pid, sched_setaffinity};
use unwindlab_abi::command::Command;
use unwindlab_abi::mailbox::PAGE_SIZE;
use unwindlab_abi::mark;

use crate::chain::FRAME_BYTES;
use crate::ports;
use crate::shared::SharedPages;
use crate::system;
use crate::wishes::{Wanted, Wish};

/// How long it sleeps between two looks at the command words.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// What it knows of a workload thread.
#[derive(Debug, Clone, Copy)]
pub struct Known {
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
    /// Starts it on a CPU, for the threads that are known by now.
    ///
    /// # Errors
    /// It cannot be made, or the signal's handler not be set.
    pub fn start(cpu: u32, threads: Vec<Known>, shared: Arc<SharedPages>) -> io::Result<Self> {
        ignore_signal()?;
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let thread = Builder::new().name("helper".to_owned()).spawn(move || {
            // On another CPU it would still do, only not where the machine has frozen that one.
            let _ = pin(None, cpu);
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
        // A panic of it has been reported by the agent's hook.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Work {
    threads: Vec<Known>,
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
            // The host has given up, or everything is over: nobody is to wait for ever.
            let _ = blocker.release();
        }
        let Some((number, words)) = self.shared.command(self.done) else {
            return;
        };
        let known = Command::from_words(words);
        if let Some((command, thread)) = known
            && let Some(for_next) = ForNext::of(command)
        {
            if self.wish(number, thread, for_next) {
                self.done = number;
            }
            return;
        }
        self.done = number;
        let result = match known {
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
            // The thread's own: see `wish`.
            Command::Block { .. }
            | Command::Unmap { .. }
            | Command::PageOut { .. }
            | Command::Truncate { .. }
            | Command::Exec => Ok(()),
        }
    }

    /// Asks the thread; false where it is not on its stack yet.
    fn wish(&self, number: u64, thread: u32, wanted: ForNext) -> bool {
        let what = match wanted {
            ForNext::Exec => Wanted::Exec,
            ForNext::Page { frame, wanted } => {
                let Some(page) = self.page(thread, frame) else {
                    return false;
                };
                wanted(page)
            }
        };
        self.shared.wishes().make(Wish {
            number,
            thread,
            what,
        });
        true
    }

    /// The page that holds a frame of the thread's stack, once it is known where that is.
    fn page(&self, thread: u32, frame: u32) -> Option<u64> {
        let top = self.shared.stack_top(thread);
        let known = self.known(thread).filter(|_| top != 0)?;
        let above = known.frames.saturating_sub(frame.into());
        // The return address is the upper word of the frame.
        let word = top.saturating_sub(above.saturating_mul(FRAME_BYTES as u64)) + 8;
        Some(word & !(PAGE_SIZE as u64 - 1))
    }

    fn known(&self, thread: u32) -> Option<Known> {
        self.threads.get(usize::try_from(thread).ok()?).copied()
    }
}

/// What is done between two iterations, by the thread itself.
enum ForNext {
    /// To the page of a frame.
    Page {
        frame: u32,
        wanted: fn(u64) -> Wanted,
    },
    Exec,
}

impl ForNext {
    fn of(command: Command) -> Option<Self> {
        let (frame, wanted): (u32, fn(u64) -> Wanted) = match command {
            Command::Block { frame } => (frame, Wanted::Block),
            Command::Unmap { frame } => (frame, Wanted::Unmap),
            Command::PageOut { frame } => (frame, Wanted::PageOut),
            Command::Truncate { frame } => (frame, Wanted::Truncate),
            Command::Exec => return Some(Self::Exec),
            Command::Migrate { .. } | Command::Signal | Command::Release | Command::Kill => {
                return None;
            }
        };
        Some(Self::Page { frame, wanted })
    }
}

/// Tells the host that a command is done with.
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

/// An init gets no signal that it has no handler for.
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
