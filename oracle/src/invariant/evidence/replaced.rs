//! System calls from which a task comes back with other user registers.

use super::Evidence;
use crate::trace::Event;

/// They set them themselves (arch/x86/kernel/signal_64.c and signal_32.c, fs/exec.c, 7.3).
const REPLACING: [&str; 5] = [
    "__x64_sys_rt_sigreturn",
    "__ia32_compat_sys_rt_sigreturn",
    "__ia32_sys_sigreturn",
    "__x64_sys_execve",
    "__x64_sys_execveat",
];

/// The tracepoints at their entry, of the system `syscalls`.
const REPLACING_TRACED: [&str; 3] = [
    "sys_enter_rt_sigreturn",
    "sys_enter_execve",
    "sys_enter_execveat",
];

/// Whether a tracepoint of this name is at the entry of such a system call.
pub(super) fn replaces_registers(tracepoint: &str) -> bool {
    REPLACING_TRACED.contains(&tracepoint)
}

impl Evidence<'_> {
    /// Whether a sample was made in a system call that replaces the user registers, as far as the
    /// kernel's symbols are known.
    pub fn registers_replaced(&self, sample: &Event) -> bool {
        self.passes_through(sample, &REPLACING)
    }
}
