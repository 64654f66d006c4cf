//! The memory that the kernel uses for itself.

use std::io;
use std::time::Duration;

use unwindlab_abi::KernelMemory;

/// Time for RCU callbacks, which free the memory of ended tasks after the grace period.
const CALLBACKS: Duration = Duration::from_millis(200);

/// Reads `/proc/meminfo`.
///
/// # Errors
/// If it cannot be read or lacks a line.
pub fn kernel_memory() -> io::Result<KernelMemory> {
    parse(&std::fs::read_to_string("/proc/meminfo")?)
        .ok_or_else(|| io::Error::other("/proc/meminfo has no SUnreclaim or KernelStack"))
}

/// Reads it after RCU has freed the memory of ended tasks.
///
/// # Errors
/// As [`kernel_memory`], and those of `membarrier`.
pub fn settled_kernel_memory() -> io::Result<KernelMemory> {
    /// `MEMBARRIER_CMD_GLOBAL` waits for a grace period (`synchronize_rcu`, kernel/sched/
    /// membarrier.c).
    const GLOBAL: i32 = 1;
    // SAFETY: takes numbers only.
    if unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    std::thread::sleep(CALLBACKS);
    kernel_memory()
}

fn parse(text: &str) -> Option<KernelMemory> {
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(KernelMemory {
        slab_kib: kib("SUnreclaim:")?,
        stack_kib: kib("KernelStack:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_two_lines() {
        let text = "MemTotal: 7 kB\nSUnreclaim:      10324 kB\nKernelStack:  1200 kB\n";
        let memory = parse(text).unwrap();
        assert_eq!((memory.slab_kib, memory.stack_kib), (10_324, 1200));
        assert_eq!(memory.kib(), 11_524);
        assert_eq!(parse("SUnreclaim: 1 kB\n"), None);
        assert!(kernel_memory().unwrap().kib() > 0);
    }
}
