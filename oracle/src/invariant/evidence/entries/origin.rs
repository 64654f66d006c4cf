//! In which kind of entry a sample was made, and how far in it, by the bottom of its kernel chain.
//!
//! The unwinder goes on until it finds the registers of user mode. So a chain that was not cut
//! ends in the stub by which the task came in, and the address above it says which call of the
//! dispatcher the task was in. A chain that ends anywhere else says nothing.

use super::code::{Code, EntryCode};
use crate::invariant::evidence::facts::Facts;
use crate::invariant::evidence::role::{Role, kernel_limit, role, spec};
use crate::invariant::evidence::sampled::is_syscall_enter;
use crate::invariant::limit::step;
use crate::trace::model::{CONTEXT_KERNEL, Sample};
use crate::trace::tracefs::Asker;
use crate::trace::{Event, EventKind};
use unwindlab_abi::attr::flag;
use unwindlab_abi::plan::{EventSource, EventSpec};

/// Where a sample was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// In a system call.
    SystemCall(Phase),
    /// In an interrupt or exception that hit user mode.
    Interrupt(Phase),
    /// In the first stay of a new task.
    Fork(Phase),
    /// In an NMI that hit user mode.
    UserNmi,
    /// Not known.
    Unknown,
}

/// How far the entry was. All but `Unknown` come before its exit work is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the system call's `sys_enter`, or in the writing of it.
    Before,
    /// In the system call or the handler: after `sys_enter` and before `sys_exit`.
    Body,
    /// After the system call, before the exit work.
    After,
    /// In the exit work. The kernel looks for more when this is done.
    ExitWork,
    /// Not known; it may be behind the exit work, where nothing is answered any more.
    Unknown,
}

impl Origin {
    /// Whether it may have been made behind the exit work, so that the next entry answers it.
    pub fn may_be_late(self) -> bool {
        match self {
            Self::SystemCall(phase) | Self::Interrupt(phase) | Self::Fork(phase) => {
                phase == Phase::Unknown
            }
            Self::UserNmi | Self::Unknown => true,
        }
    }

    /// Whether a `sys_exit` that came earlier is of an earlier system call for certain.
    pub fn is_before_sys_exit(self) -> bool {
        matches!(self, Self::SystemCall(Phase::Before | Phase::Body))
    }
}

impl<'t> Facts<'t> {
    /// Where a sample was made. Nothing is known of other records.
    pub fn origin(&self, event: &Event) -> Origin {
        step();
        let EventKind::Sample(sample) = &event.kind else {
            return Origin::Unknown;
        };
        match sample.asker {
            Some(Asker::SyscallEnter) => return Origin::SystemCall(Phase::Before),
            Some(Asker::SyscallExit) => return Origin::SystemCall(Phase::After),
            None => {}
        }
        let (Some(spec), Some(_)) = (spec(self.trace, event), &sample.chain) else {
            return Origin::Unknown;
        };
        let chain = sample.kernel_chain();
        if chain.is_empty() {
            // perf leaves the kernel part out where the registers are of user mode.
            return match &spec.source {
                EventSource::Tracepoint { system, name } if is_syscall_enter(system, name) => {
                    Origin::SystemCall(Phase::Before)
                }
                _ if may_lack_kernel_part(spec, sample) => self.origin_by_injection(event),
                EventSource::Hardware(_) => Origin::UserNmi,
                // The handler of the exception, or the exit work that it asked for, fires it.
                EventSource::Software(_) | EventSource::Breakpoint { .. } => {
                    Origin::Interrupt(Phase::Body)
                }
                _ => Origin::Unknown,
            };
        }
        let Some(code) = self.code else {
            return self.origin_by_injection(event);
        };
        if chain.len() >= kernel_limit(self.trace, spec) {
            return Origin::Unknown;
        }
        match of_chain(code, chain) {
            Origin::Unknown => self.origin_by_injection(event),
            known => known,
        }
    }

    /// Whether a `sys_enter` that comes later is of a later system call for certain.
    pub fn is_past_sys_enter(&self, event: &Event) -> bool {
        match self.origin(event) {
            Origin::SystemCall(phase) => {
                matches!(phase, Phase::Body | Phase::After | Phase::ExitWork)
            }
            Origin::Interrupt(_) => self.hit_user_mode(event),
            Origin::Fork(_) | Origin::UserNmi => true,
            Origin::Unknown => false,
        }
    }

    /// Whether a sample was made in no system call for certain.
    pub fn is_of_no_system_call(&self, event: &Event) -> bool {
        match self.origin(event) {
            Origin::Interrupt(_) => self.hit_user_mode(event),
            origin => origin == Origin::UserNmi,
        }
    }

    /// Whether the interrupt of a sample hit user mode for certain. On a machine of which not all is known, the registers must be
    /// of user mode: a kernel chain that ends in the interrupt's stub may as well have met code that has no symbol, where the
    /// unwinder stops (`__kernel_text_address`, kernel/extable.c). That is a filter of seccomp, which runs before `sys_enter`, or
    /// of a socket: a classic BPF program (`bpf_prog_kallsyms_candidate`, kernel/bpf/core.c, 7.3). A guest of ours has
    /// them in workload `seccomp` alone: what a user's scenario samples in interrupts there may be told apart wrongly.
    fn hit_user_mode(&self, event: &Event) -> bool {
        let of_user_mode =
            || matches!(&event.kind, EventKind::Sample(it) if it.kernel_chain().is_empty());
        self.trace.recorded.is_none() || of_user_mode()
    }

    /// Whether a sample may be of an NMI that hit user mode.
    pub fn may_be_user_nmi(&self, event: &Event) -> bool {
        matches!(role(self.trace, event), Role::Nmi | Role::Overflow)
            && matches!(self.origin(event), Origin::UserNmi | Origin::Unknown)
    }

    /// Where the NMI of a sample hit user mode, the injection log says so.
    fn origin_by_injection(&self, event: &Event) -> Origin {
        let nmi = matches!(role(self.trace, event), Role::Nmi | Role::Overflow);
        match self.user_ip(event) {
            Some(_) if nmi => Origin::UserNmi,
            _ => Origin::Unknown,
        }
    }
}

/// Whether a sample without a kernel address may have been made in the kernel all the same: its event leaves that part
/// out, or the part has its context alone.
fn may_lack_kernel_part(spec: &EventSpec, sample: &Sample) -> bool {
    let chain = sample.chain.as_deref().unwrap_or_default();
    spec.details.set & flag::EXCLUDE_CALLCHAIN_KERNEL != 0 || chain.contains(&CONTEXT_KERNEL)
}

/// By a kernel chain that was not cut, innermost address first.
fn of_chain(code: &EntryCode<'_>, chain: &[u64]) -> Origin {
    let [inner @ .., bottom] = chain else {
        return Origin::Unknown;
    };
    match code.frame(*bottom).holds {
        Code::SystemCallStub if is_call(code, inner) => Origin::SystemCall(phase(code, inner)),
        Code::SystemCallStub if code.is_before_dispatch(*bottom) => {
            Origin::SystemCall(Phase::Before)
        }
        Code::SystemCallStub => Origin::SystemCall(Phase::Unknown),
        // An NMI in the stub itself says nothing: the stub of an exception calls `error_entry`, which leaves the
        // registers on the stack, and up to `movq %rax, %rsp` behind that call the unwinder looks for an `iret` frame
        // there (`idtentry_body`, arch/x86/entry/entry_64.S). So the chain of a fault in the kernel may end here, too.
        Code::InterruptStub if is_call(code, inner) => Origin::Interrupt(phase(code, inner)),
        Code::Fork => Origin::Fork(phase(code, inner)),
        Code::UserNmiStub => Origin::UserNmi,
        _ => Origin::Unknown,
    }
}

/// Whether the innermost of these was called, and not interrupted, by what lies outside of them.
fn is_call(code: &EntryCode<'_>, inner: &[u64]) -> bool {
    let last = inner.last();
    last.is_some_and(|&frame| !code.frame(frame).holds.interrupts())
}

/// By the addresses inside the stub's.
fn phase(code: &EntryCode<'_>, mut inner: &[u64]) -> Phase {
    while let [rest @ .., frame] = inner {
        let Some(&next) = rest.last().filter(|_| is_call(code, rest)) else {
            break;
        };
        // What it called; where that cannot be read, what that has become by tail calls.
        let called = match code.frame(*frame).calls {
            Code::Other => code.frame(next).holds,
            known => known,
        };
        match called {
            Code::Enter => return Phase::Before,
            Code::SystemCall | Code::Handler => return Phase::Body,
            Code::Leave => return Phase::After,
            Code::ExitWork => return Phase::ExitWork,
            Code::Dispatch | Code::InterruptExit | Code::ExitLoop => inner = rest,
            _ => break,
        }
    }
    Phase::Unknown
}

#[cfg(test)]
mod tests;
