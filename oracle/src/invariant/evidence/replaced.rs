//! Whether a task comes back from a system call with the user registers with which it made it.

use super::{Code, Evidence, Origin};
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
        self.passes_through(sample, |function| REPLACING.contains(&function))
    }

    /// Whether a sample was made in a system call that leaves the user registers alone, as its chain shows. An
    /// interrupt in `do_syscall_64()` outside of the call's own function does not show which call it is.
    pub fn registers_kept(&self, sample: &Event) -> bool {
        self.passes_through(sample, Code::is_system_call) && !self.registers_replaced(sample)
    }

    /// Whether a sample may have been made in a system call that replaces the user registers.
    pub fn registers_may_be_replaced(&self, sample: &Event) -> bool {
        match self.facts().origin(sample) {
            // No system call was made.
            Origin::Interrupt(_) | Origin::Fork(_) | Origin::UserNmi => false,
            Origin::SystemCall(_) => !self.registers_kept(sample),
            Origin::Unknown => !sample.kernel_chain().is_empty() && !self.registers_kept(sample),
        }
    }
}
