//! Child processes that do not outlive us.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, kill_process, set_parent_process_death_signal,
    setrlimit,
};

use crate::progress::Progress;

/// From one look at a child to the next.
const LOOK: Duration = Duration::from_millis(50);

/// Has the kernel send SIGTERM to the child when we die, whatever kills us.
///
/// The kernel sends it when the *thread* that started the child ends, so that thread must wait
/// for the child.
pub fn end_with_us(command: &mut Command) {
    on_our_death(command, Signal::TERM);
}

/// As [`end_with_us`], by SIGKILL, for a child that has no children: it dies even if it is stopped.
pub fn die_with_us(command: &mut Command) {
    on_our_death(command, Signal::KILL);
}

/// Has the child inherit these descriptors under their numbers. Nothing else that is started meanwhile inherits them: they stay
/// close-on-exec here. The caller keeps them open until the child is started.
pub fn inherit(command: &mut Command, descriptors: &[BorrowedFd<'_>]) {
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let keep = move || -> io::Result<()> {
        for number in &numbers {
            // SAFETY: the caller keeps it open, and the child has a copy of each open descriptor.
            let descriptor = unsafe { BorrowedFd::borrow_raw(*number) };
            fcntl_setfd(descriptor, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe code may run. `keep` makes system calls (fcntl), allocates
    // nothing and takes no lock.
    unsafe {
        command.pre_exec(keep);
    }
}

/// Has the child, and what it starts, write no file of more than so many bytes.
pub fn limit_files(command: &mut Command, most: u64) {
    let limit = move || -> io::Result<()> {
        let most = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        Ok(setrlimit(Resource::Fsize, most)?)
    };
    // SAFETY: between fork and exec only async-signal-safe code may run. `limit` makes a system call (prlimit64), allocates
    // nothing and takes no lock.
    unsafe {
        command.pre_exec(limit);
    }
}

fn on_our_death(command: &mut Command, signal: Signal) {
    let parent = getpid();
    let arm = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(signal))?;
        // The parent died before the line above took effect, so no signal will come.
        if getppid() != Some(parent) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe code may run. `arm` makes two system
    // calls (prctl, getppid), allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(arm);
    }
}

/// Waits for a child. Sends it SIGTERM once `progress` says to stop, so that it can end its own
/// children, and reports that as [`io::ErrorKind::Interrupted`] when it has ended.
pub fn wait(child: &mut Child, progress: &dyn Progress) -> io::Result<ExitStatus> {
    let mut stopped = false;
    loop {
        match child.try_wait()? {
            Some(_) if stopped => return Err(io::ErrorKind::Interrupted.into()),
            Some(status) => return Ok(status),
            None if !stopped && progress.stopped() => {
                stopped = true;
                kill_process(Pid::from_child(child), Signal::TERM)?;
            }
            None => thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Stopped;
    use std::process::Stdio;

    #[test]
    fn a_child_ends_when_the_work_is_stopped() {
        let mut cat = Command::new("cat");
        // It waits for input that never comes.
        let mut child = cat.stdin(Stdio::piped()).spawn().unwrap();
        let error = wait(&mut child, &Stopped).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn a_child_that_ends_by_itself_tells_its_status() {
        let mut child = Command::new("false").spawn().unwrap();
        let status = wait(&mut child, &crate::progress::Silent).unwrap();
        assert_eq!(status.code(), Some(1));
    }
}
