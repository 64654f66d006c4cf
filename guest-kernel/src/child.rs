//! Child processes that do not outlive us.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the kernel send SIGTERM to the child when we die, whatever kills us.
///
/// The kernel sends it when the *thread* that started the child ends, so that thread must wait
/// for the child.
pub fn end_with_us(command: &mut Command) {
    let parent = getpid();
    let arm = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::TERM))?;
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
