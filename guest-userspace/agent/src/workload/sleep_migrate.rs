//! `sleep-migrate`: a thread that sleeps in `read` is moved to another CPU before it is woken, so
//! that the system call ends on another CPU than it began on.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use rustix::thread::{Pid, gettid};

use super::{WorkloadError, failed, pin};
use crate::chain::Chain;

/// Time between two looks of the helper at the sleeper.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// The pipe between a sleeper and its helper.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    pub(super) fn new(thread: u32) -> Result<Self, WorkloadError> {
        let (read, write) = rustix::pipe::pipe().map_err(failed(thread, "cannot make a pipe"))?;
        Ok(Self { read, write })
    }

    pub(super) fn read_fd(&self) -> i32 {
        self.read.as_raw_fd()
    }
}

/// Runs the chain in this thread, with a helper beside it until the chain has ended.
pub(super) fn run(
    chain: &Chain,
    thread: u32,
    pipe: Pipe,
    cpu: u32,
    cpus: &[u32],
) -> Result<(), WorkloadError> {
    let Pipe { read, write } = pipe;
    let ended = AtomicBool::new(false);
    let helper = Helper {
        thread,
        sleeper: gettid(),
        read_fd: read.as_raw_fd(),
        write,
        ended: &ended,
    };
    // After the sleeper's first CPU, round and round.
    let others = cpus.iter().copied().cycle();
    let others = others.skip_while(|&c| c != cpu).skip(1);
    std::thread::scope(|scope| {
        let helper = Builder::new()
            .name(format!("migrate-{thread}"))
            .spawn_scoped(scope, move || helper.run(others))
            .map_err(|source| WorkloadError::Spawn { thread, source })?;
        if chain.goes_on() {
            chain.run();
        }
        ended.store(true, Ordering::Release);
        // An error of the helper closes the pipe, which ends the chain: it comes first.
        helper
            .join()
            .unwrap_or(Err(WorkloadError::Panicked(thread)))?;
        match chain.last_result() {
            1 => Ok(()),
            answer => Err(WorkloadError::Read { thread, answer }),
        }
    })
}

struct Helper<'a> {
    thread: u32,
    sleeper: Pid,
    read_fd: i32,
    write: OwnedFd,
    ended: &'a AtomicBool,
}

impl Helper<'_> {
    /// Moves and wakes the sleeper whenever it blocks, until its chain has ended.
    fn run(self, mut cpus: impl Iterator<Item = u32>) -> Result<(), WorkloadError> {
        while !self.ended.load(Ordering::Acquire) {
            if !self.sleeper_is_in_read()? {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            if let Some(cpu) = cpus.next() {
                pin(self.thread, Some(self.sleeper), cpu)?;
            }
            rustix::io::write(&self.write, &[0])
                .map_err(failed(self.thread, "cannot write to its pipe"))?;
        }
        Ok(())
    }

    /// `/proc/self/task/TID/syscall` is "running", or the number and arguments of the system call
    /// that the thread sleeps in; nothing else tells that it is this very read.
    fn sleeper_is_in_read(&self) -> Result<bool, WorkloadError> {
        let path = format!(
            "/proc/self/task/{}/syscall",
            self.sleeper.as_raw_nonzero().get()
        );
        let text = fs::read_to_string(path).map_err(|source| WorkloadError::System {
            thread: self.thread,
            what: "cannot see what it sleeps in",
            source,
        })?;
        Ok(text.starts_with(&format!("{} {:#x} ", libc::SYS_read, self.read_fd)))
    }
}
