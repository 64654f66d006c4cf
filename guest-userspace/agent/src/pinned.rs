//! Threads beside the workload, each on one CPU.

use std::io;
use std::thread::{Builder, JoinHandle};

use rustix::thread::{sched_getaffinity, sched_setaffinity};

use crate::system;

/// Starts a thread on a CPU. It is never on another one, for it inherits the CPU (sched(7)): one
/// that had to go there first could be left behind on a CPU that the host makes stand still.
///
/// # Errors
/// The CPU cannot be set, or the thread cannot be started.
pub fn spawn<T: Send + 'static>(
    name: &str,
    cpu: u32,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let before = sched_getaffinity(None)?;
    sched_setaffinity(None, &system::only(cpu))?;
    let thread = Builder::new().name(name.to_owned()).spawn(body);
    sched_setaffinity(None, &before)?;
    thread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_its_cpu_from_the_start_and_the_others_keep_theirs() {
        let before = sched_getaffinity(None).unwrap();
        let cpu = (0..1024).rfind(|&cpu| before.is_set(cpu)).unwrap();
        let cpu = u32::try_from(cpu).unwrap();
        let its = spawn("pinned", cpu, || sched_getaffinity(None)).unwrap();
        assert_eq!(its.join().unwrap().unwrap(), system::only(cpu));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
