//! The current processes of workload threads, and which of them the host kills.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

use unwindlab_abi::shared::MAX_THREADS;

/// The process of each thread.
#[derive(Debug)]
pub struct Processes(Vec<Process>);

/// The process of one thread.
#[derive(Debug, Default)]
pub struct Process {
    pid: AtomicI32,
    killed: AtomicI32,
}

impl Default for Processes {
    fn default() -> Self {
        Self((0..MAX_THREADS).map(|_| Process::default()).collect())
    }
}

impl Processes {
    /// The process of a thread.
    #[must_use]
    pub fn of(&self, thread: u32) -> Option<&Process> {
        self.0.get(usize::try_from(thread).ok()?)
    }
}

impl Process {
    /// Where the kernel writes the process id at its creation.
    #[must_use]
    pub const fn id(&self) -> *mut i32 {
        self.pid.as_ptr()
    }

    /// Notes that the process is gone.
    pub fn is_gone(&self) {
        self.pid.store(0, Ordering::Release);
    }

    /// Sends SIGKILL.
    ///
    /// # Errors
    /// There is no process, or the kernel's errno.
    pub fn kill(&self) -> io::Result<()> {
        let pid = self.pid.load(Ordering::Acquire);
        if pid <= 0 {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // Before its end can be noticed.
        self.killed.store(pid, Ordering::Release);
        // SAFETY: no memory is involved.
        match unsafe { libc::kill(pid, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether the process with this id has been sent SIGKILL.
    #[must_use]
    pub fn was_killed(&self, pid: i32) -> bool {
        self.killed.load(Ordering::Acquire) == pid
    }
}

/// Waits for the end of a child: its status.
///
/// # Errors
/// That of `waitpid`.
pub fn wait(child: c_int) -> io::Result<c_int> {
    let mut status = 0;
    // SAFETY: `status` is this function's.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if waited == child {
        Ok(status)
    } else {
        Err(io::Error::last_os_error())
    }
}
