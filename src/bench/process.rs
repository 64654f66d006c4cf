//! A VMM as a process: from its start to the first word of its guest, and to its certain end.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::AsRawFd as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::io::Errno;
use unwindlab_guest_kernel::child::end_with_us;

use super::resident::{self, Resident};

/// Lines of what a VMM said that are told when it fails.
const LAST_LINES: usize = 3;

/// A running VMM. It is killed and waited for when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// What the guest says by its port, then whatever else the VMM has to say.
    pub words: ChildStdout,
    errors: File,
    started: Instant,
}

impl Process {
    /// Starts it. Its standard output is where the guest's first word comes from.
    ///
    /// # Errors
    /// Why it cannot be started, in one line.
    pub fn start(mut command: Command) -> Result<Self, String> {
        let cannot = |error: io::Error| format!("cannot be started: {error}");
        let errors = memory_file("bench-errors").map_err(cannot)?;
        let console = errors.try_clone().map_err(cannot)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(console);
        end_with_us(&mut command);
        let started = Instant::now();
        let mut child = command.spawn().map_err(cannot)?;
        match child.stdout.take() {
            Some(words) => Ok(Self {
                child,
                words,
                errors,
                started,
            }),
            None => Err("has no standard output".to_owned()),
        }
    }

    /// Waits for the guest's first word; the time since the process was started.
    ///
    /// # Errors
    /// Where it ends instead, or does not come for so long: with the last it said.
    pub fn ready(&mut self, limit: Duration, go_on: &dyn Fn() -> bool) -> Result<Duration, String> {
        self.wait(limit, go_on)?;
        let after = self.started.elapsed();
        match self.words.read(&mut [0]) {
            Ok(1) => Ok(after),
            _ => Err(self.ended()),
        }
    }

    /// Waits until there is a word, or the end.
    pub(super) fn wait(&mut self, limit: Duration, go_on: &dyn Fn() -> bool) -> Result<(), String> {
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
                Err(error) => return Err(format!("cannot be waited for: {error}")),
            }
            if !go_on() {
                return Err("interrupted".to_owned());
            }
            if begin.elapsed() > limit {
                let seconds = limit.as_secs();
                return Err(format!("said nothing for {seconds} s{}", self.last_words()));
            }
        }
    }

    /// Its resident memory; its guest has so many MiB of RAM.
    ///
    /// # Errors
    /// Why it cannot be told, in one line.
    pub fn resident(&self, guest_mib: u32) -> Result<Resident, String> {
        resident::of(self.child.id(), guest_mib)
            .map_err(|error| format!("its memory cannot be looked at: {error}"))
    }

    /// How it ended, which it did or is about to.
    pub(super) fn ended(&mut self) -> String {
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => format!("ended ({status}){}", self.last_words()),
            Err(error) => format!("ended ({error}){}", self.last_words()),
        }
    }

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

/// A file in memory, to be written at its end by whoever writes.
pub(super) fn memory_file(name: &str) -> io::Result<File> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

/// By which path a process that is started from here can open a file of ours.
pub(super) fn path_of(file: &File) -> String {
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
        let ended = ended.unwrap_err();
        assert!(
            ended.contains("no such machine") && ended.contains('3'),
            "{ended}"
        );
        let silent = shell("echo thinking >&2; sleep 60").ready(Duration::ZERO, &always);
        assert!(silent.unwrap_err().contains("said nothing for 0 s"));
        let stopped = shell("sleep 60").ready(limit, &|| false);
        assert_eq!(stopped.unwrap_err(), "interrupted");
        let missing = Process::start(Command::new("/nonexistent/vmm"));
        assert!(missing.unwrap_err().contains("cannot be started"));
    }
}
