//! Whether a thread sleeps at the gate: nothing that the kernel does there, such as a tick, is its doing then.

use std::fs;
use std::io;
use std::thread;

use super::WorkloadError;

/// That of a thread that has ended, and has no stack any more.
const ENDED: &str = "-1 0x0 0x0";

/// Waits until all these threads sleep, by index.
///
/// # Errors
/// [`WorkloadError::System`].
pub(super) fn wait_until_asleep(tids: &[u32]) -> Result<(), WorkloadError> {
    for (thread, &tid) in (0..).zip(tids) {
        sleeps(tid).map_err(|source| WorkloadError::System {
            thread,
            what: "cannot see whether it sleeps",
            source,
        })?;
    }
    Ok(())
}

/// Waits until a thread sleeps in `futex`, or has ended.
///
/// /proc/TID/syscall says "running" unless the thread is off its CPU (`task_current_syscall`, lib/syscall.c), else
/// the number of its system call first.
fn sleeps(tid: u32) -> io::Result<()> {
    let path = format!("/proc/{tid}/syscall");
    loop {
        let line = match fs::read_to_string(&path) {
            Err(error) if is_gone(&error) => return Ok(()),
            line => line?,
        };
        let number = line.split_whitespace().next().map(str::parse);
        if number == Some(Ok(libc::SYS_futex)) || line.trim_end() == ENDED {
            return Ok(());
        }
        thread::yield_now();
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::thread::gettid;

    use super::*;

    #[test]
    fn a_thread_that_is_on_its_way_is_waited_for_and_one_that_has_ended_is_not() {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let there = Arc::new(AtomicBool::new(false));
        let arrives = Arc::clone(&there);
        let thread = thread::spawn(move || {
            tell.send(gettid()).unwrap();
            thread::sleep(Duration::from_millis(50));
            arrives.store(true, Ordering::Release);
            let _ = ended.recv();
        });
        let tid = told.recv().unwrap().as_raw_nonzero().get().unsigned_abs();
        sleeps(tid).unwrap();
        assert!(there.load(Ordering::Acquire));
        drop(end);
        thread.join().unwrap();
        sleeps(tid).unwrap();
    }
}
