//! Whether a task comes back from a system call with the user registers with which it made it.

use unwindlab_abi::plan::EventSource;

use super::role::spec;
use super::sampled::is_syscall_enter;
use super::{Code, Evidence};
use crate::trace::Event;

/// They set them themselves (arch/x86/kernel/signal_64.c and signal_32.c, fs/exec.c, 7.3).
const REPLACING: [&str; 4] = ["rt_sigreturn", "sigreturn", "execve", "execveat"];

/// Their numbers (arch/x86/entry/syscalls/syscall_64.tbl and, of those that a 32-bit task makes, syscall_32.tbl).
const REPLACING_NUMBERS: [u64; 7] = [15, 59, 322, 119, 173, 11, 358];

fn replaces_registers(call: &str) -> bool {
    REPLACING.contains(&call)
}

/// Whether a tracepoint is at the entry of one system call, and of one that leaves the user registers alone.
pub(super) fn enters_other_call(system: &str, name: &str) -> bool {
    let call = name.strip_prefix("sys_enter_");
    is_syscall_enter(system, name) && call.is_some_and(|it| !replaces_registers(it))
}

/// The one system call that a filter of `raw_syscalls:sys_enter` lets pass.
fn call_of_filter(filter: &str) -> Option<u64> {
    filter.strip_prefix("id == ")?.parse().ok()
}

impl Evidence<'_> {
    /// Whether a sample was made in a system call that replaces the user registers, as far as the
    /// kernel's symbols are known.
    pub fn registers_replaced(&self, sample: &Event) -> bool {
        self.system_calls(sample).any(|it| replaces_registers(&it))
    }

    /// Whether a sample was made in a system call that leaves the user registers alone, as its chain or its
    /// tracepoint shows. An interrupt in `do_syscall_64()` outside of the call's own function does not show which call
    /// it is.
    pub fn registers_kept(&self, sample: &Event) -> bool {
        let mut calls = self.system_calls(sample).peekable();
        let in_other_call = calls.peek().is_some() && calls.all(|it| !replaces_registers(&it));
        in_other_call || self.is_traced_at_other_call(sample)
    }

    /// The system calls whose functions are in a sample's kernel chain.
    fn system_calls(&self, sample: &Event) -> impl Iterator<Item = String> {
        let functions = self.functions(sample);
        functions.filter_map(|it| Code::system_call(&it).map(str::to_owned))
    }

    /// Whether the sample's event is a tracepoint at the entry of a system call that leaves them alone, and of no other.
    fn is_traced_at_other_call(&self, sample: &Event) -> bool {
        let Some(spec) = spec(self.trace(), sample) else {
            return false;
        };
        let EventSource::Tracepoint { system, name } = &spec.source else {
            return false;
        };
        match (system.as_str(), name.as_str()) {
            ("raw_syscalls", "sys_enter") => { spec.filter.as_deref().and_then(call_of_filter) }
                .is_some_and(|number| !REPLACING_NUMBERS.contains(&number)),
            _ => enters_other_call(system, name),
        }
    }
}
