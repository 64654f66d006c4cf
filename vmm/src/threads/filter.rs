//! The system calls that a vCPU's thread makes: seccomp. It executes what the guest leads it to, so it gets no others.

use std::io;
use std::sync::OnceLock;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

/// KVM's ioctls and what a thread needs to live: memory, locks, signals, timers, pipes and events that are open.
const ALLOWED: &[i64] = &[
    libc::SYS_ioctl,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_futex,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigpending,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_delete,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getrandom,
    libc::SYS_poll,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// From here on this thread makes no other system calls; they fail with `EPERM`.
///
/// # Errors
/// Where the kernel has no seccomp.
pub(super) fn restrict() -> io::Result<()> {
    static PROGRAM: OnceLock<Result<BpfProgram, String>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| prepare().map_err(|error| error.to_string()));
    let program = program
        .as_ref()
        .map_err(|error| io::Error::other(error.as_str()))?;
    apply_filter(program).map_err(io::Error::other)
}

fn prepare() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let others = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    SeccompFilter::new(rules, others, SeccompAction::Allow, TargetArch::x86_64)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restricted_thread_opens_nothing() {
        let open = || std::fs::File::open("/proc/self/status").map(drop);
        let (before, after) = std::thread::spawn(move || {
            let before = open();
            restrict().unwrap();
            (before, open())
        })
        .join()
        .unwrap();
        before.unwrap();
        assert_eq!(after.unwrap_err().raw_os_error(), Some(libc::EPERM));
        // Other threads still do.
        open().unwrap();
    }
}
