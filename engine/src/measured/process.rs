//! A VMM as a process: from its start to the first word of its guest, and to its certain end.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::AsRawFd as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::io::Errno;
use unwindlab_guest_kernel::child::die_with_us;

use super::resident::{self, Resident};

/// Limit from a process's start to its guest's first word; an emulated KVM host beside other work
/// takes ten times what it does alone.
pub const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// Lines of a VMM's output that are shown when it fails.
const LAST_LINES: usize = 3;

/// Why a VMM's process could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It cannot be started.
    #[error("cannot be started: {0}")]
    Start(#[source] io::Error),
    /// It was started without a pipe for its output.
    #[error("has no standard output")]
    NoOutput,
    /// Its output or its end cannot be waited for.
    #[error("cannot be waited for: {0}")]
    Wait(#[source] io::Error),
    /// The user wants to stop.
    #[error("interrupted")]
    Interrupted,
    /// It printed nothing in time.
    #[error("said nothing for {seconds} s{last_words}")]
    Silent { seconds: u64, last_words: String },
    /// It ended.
    #[error("ended ({status}){last_words}")]
    Ended {
        status: ExitStatus,
        last_words: String,
    },
    /// The memory that it uses cannot be determined.
    #[error("its memory cannot be read: {0}")]
    Memory(#[source] io::Error),
}

/// A running VMM. It is killed and waited for when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The guest's first word, then whatever else the VMM prints.
    pub words: ChildStdout,
    errors: File,
    started: Instant,
}

impl Process {
    /// Starts it. Its standard output is where the guest's first word comes from.
    ///
    /// # Errors
    /// [`ProcessError`] where it cannot be started.
    pub fn start(mut command: Command) -> Result<Self, ProcessError> {
        let errors = memory_file("bench-errors").map_err(ProcessError::Start)?;
        let console = errors.try_clone().map_err(ProcessError::Start)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(console);
        die_with_us(&mut command);
        let started = Instant::now();
        let mut child = command.spawn().map_err(ProcessError::Start)?;
        match child.stdout.take() {
            Some(words) => Ok(Self {
                child,
                words,
                errors,
                started,
            }),
            None => Err(ProcessError::NoOutput),
        }
    }

    /// Waits for the guest's first word; the time since the process was started.
    ///
    /// # Errors
    /// [`ProcessError`] where the process ends instead, or the word does not come in time.
    pub fn ready(
        &mut self,
        limit: Duration,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Duration, ProcessError> {
        self.wait(limit, go_on)?;
        let after = self.started.elapsed();
        match self.words.read(&mut [0]) {
            Ok(1) => Ok(after),
            _ => Err(self.ended()),
        }
    }

    /// Waits until there is output, or the process's end.
    pub fn wait(&mut self, limit: Duration, go_on: &dyn Fn() -> bool) -> Result<(), ProcessError> {
        let begin = Instant::now();
        loop {
            let look_up = Timespec {
                tv_sec: 0,
                tv_nsec: 50_000_000,
            };
            match poll(
                &mut [PollFd::new(&self.words, PollFlags::IN)],
                Some(&look_up),
            ) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(ProcessError::Wait(error.into())),
            }
            if !go_on() {
                return Err(ProcessError::Interrupted);
            }
            if begin.elapsed() > limit {
                return Err(ProcessError::Silent {
                    seconds: limit.as_secs(),
                    last_words: self.last_words(),
                });
            }
        }
    }

    /// Its resident memory; its guest has so many MiB of RAM.
    ///
    /// # Errors
    /// [`ProcessError::Memory`].
    pub fn resident(&self, guest_mib: u32) -> Result<Resident, ProcessError> {
        resident::of(self.child.id(), guest_mib).map_err(ProcessError::Memory)
    }

    /// How it ended, which it did or is about to.
    pub fn ended(&mut self) -> ProcessError {
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => ProcessError::Ended {
                status,
                last_words: self.last_words(),
            },
            Err(error) => ProcessError::Wait(error),
        }
    }

    /// The last lines of what it printed, to be added to a message.
    fn last_words(&mut self) -> String {
        let mut bytes = Vec::new();
        let read = self.errors.rewind();
        if read
            .and_then(|()| self.errors.read_to_end(&mut bytes))
            .is_err()
        {
            return String::new();
        }
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().rev().filter(|line| !line.trim().is_empty());
        let last: Vec<String> = lines.take(LAST_LINES).map(crate::text::printable).collect();
        match last.is_empty() {
            true => String::new(),
            false => {
                let last: Vec<&str> = last.iter().rev().map(String::as_str).collect();
                format!(": {}", last.join("; "))
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only where it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file in memory, to which every writer appends.
pub fn memory_file(name: &str) -> io::Result<File> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

/// The path by which a process that is started from here can open a file of ours.
pub fn path_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start(command).unwrap()
    }

    #[test]
    fn the_first_word_is_waited_for() {
        let mut process = shell("sleep 0.05; echo x; sleep 60");
        let after = process.ready(Duration::from_secs(30), &|| true).unwrap();
        assert!(after >= Duration::from_millis(50));
        let pid = process.child.id();
        drop(process);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn an_end_and_a_silence_are_no_word() {
        let always = || true;
        let limit = Duration::from_secs(30);
        let ended = shell("echo no such machine >&2; exit 3").ready(limit, &always);
        let ended = ended.unwrap_err().to_string();
        assert!(
            ended.contains("no such machine") && ended.contains('3'),
            "{ended}"
        );
        let silent = shell("echo thinking >&2; sleep 60").ready(Duration::ZERO, &always);
        let silent = silent.unwrap_err().to_string();
        assert!(silent.contains("said nothing for 0 s"));
        let stopped = shell("sleep 60").ready(limit, &|| false);
        assert_eq!(stopped.unwrap_err().to_string(), "interrupted");
        let missing = Process::start(Command::new("/nonexistent/vmm"));
        let missing = missing.unwrap_err().to_string();
        assert!(missing.contains("cannot be started"));
    }
}
