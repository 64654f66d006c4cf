//! Tells a vCPU that comes back to a planted trap from one that arrives there.
//!
//! A vCPU resumed from a trap enters the guest at the trap once more, where it takes a pending NMI
//! or interrupt. Then the trap stops the interrupted code again, on whichever vCPU it runs by then.
//! This stop is not a new arrival: the code is recognised by its stack pointer.

use kvm_bindings::kvm_regs;
use vmm_sys_util::errno;

use crate::vcpu::{Stop, Vcpu};
use crate::x86::RFLAGS_TRAP;

/// Code at a trap, by what stays the same while it is interrupted there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TrapContext {
    pub(crate) address: u64,
    stack: u64,
    /// The page tables, in the few instructions of an entry that run on the user's stack: two
    /// processes may have theirs at the same address.
    tables: Option<u64>,
}

impl TrapContext {
    /// That of a stopped vCPU; `None` if its registers cannot be read.
    pub(crate) fn at(vcpu: &Vcpu) -> Option<Self> {
        Self::of(vcpu, &vcpu.fd.get_regs().ok()?)
    }

    fn of(vcpu: &Vcpu, regs: &kvm_regs) -> Option<Self> {
        /// A process-context identifier.
        const PCID: u64 = 0xfff;
        let is_user_stack = regs.rsp >> 63 == 0;
        let tables = match is_user_stack {
            true => Some(vcpu.sregs().ok()?.cr3 & !PCID),
            false => None,
        };
        Some(Self {
            address: regs.rip,
            stack: regs.rsp,
            tables,
        })
    }
}

/// The code that was resumed at a trap and has not come back to it yet.
#[derive(Debug, Default)]
pub(crate) struct ExpectedReturns(Vec<ExpectedReturn>);

#[derive(Debug, Clone, Copy)]
struct ExpectedReturn {
    context: TrapContext,
    stepped: bool,
}

impl ExpectedReturns {
    /// Expects code that was resumed at a trap; `stepped` if the handler of a fault interrupted its
    /// single step, so that the flags that it comes back with contain the trap flag.
    pub(crate) fn expect(&mut self, context: TrapContext, stepped: bool) {
        self.0.push(ExpectedReturn { context, stepped });
    }

    /// The addresses of the traps that code is expected to come back to.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|it| it.context.address)
    }

    /// The trap at this address is gone: no code comes back to it.
    pub(crate) fn forget(&mut self, address: u64) {
        self.0.retain(|it| it.context.address != address);
    }

    /// No code comes back to any trap.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Replaces a stop at a trap by [`Stop::BackAtBreakpoint`] if it is an expected return.
    pub(super) fn recognise(&mut self, vcpu: &Vcpu, stop: Stop) -> Stop {
        let Stop::Breakpoint { pc } = stop else {
            return stop;
        };
        match self.is_return(vcpu) {
            Ok(true) => Stop::BackAtBreakpoint { pc },
            Ok(false) => stop,
            Err(error) => Stop::Unhandled {
                exit: format!("planted trap: failed to access the registers: {error}"),
            },
        }
    }

    fn is_return(&mut self, vcpu: &Vcpu) -> Result<bool, errno::Error> {
        if self.0.is_empty() {
            return Ok(false);
        }
        let mut regs = vcpu.fd.get_regs()?;
        let context = TrapContext::of(vcpu, &regs);
        let Some(at) = self.0.iter().position(|it| Some(it.context) == context) else {
            return Ok(false);
        };
        if self.0.swap_remove(at).stepped {
            regs.rflags &= !RFLAGS_TRAP;
            vcpu.fd.set_regs(&regs)?;
        }
        Ok(true)
    }
}
