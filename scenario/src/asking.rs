//! What asks for stacks beside perf and the lab: programs of BPF, which call a function of the kernel by its id.

use unwindlab_abi::bpf::BpfStack;
use unwindlab_abi::user_mode::Asker;
use unwindlab_abi::{BpfPlan, UserModePlan};

use super::lacks::{BPF_SIGNAL, BPF_TASK_WORK};
use super::model::{Bpf, UserMode};
use super::resolve::{KernelSymbols, UnsupportedKernel};

/// Unwinding in user mode.
///
/// # Errors
/// [`UnsupportedKernel::NotCallable`].
pub(super) fn user_mode(
    it: &UserMode,
    symbols: &dyn KernelSymbols,
) -> Result<UserModePlan, UnsupportedKernel> {
    let send_signal = match *it.ask {
        Asker::Bpf => Some(called(BPF_SIGNAL, symbols)?),
        Asker::Itimer | Asker::ThreadTimer | Asker::Sigtrap => None,
    };
    Ok(UserModePlan {
        ask: *it.ask,
        send_signal,
        bystander: it.bystander,
        signal: *it.signal,
        alternate_stack: it.alternate_stack,
        blocked: *it.blocked,
        restart: it.restart,
        opts_in_after: it.opts_in_after,
        twins: *it.twins,
        handler: it.handler,
        unwinder: it.unwinder,
        instead: false,
    })
}

/// The BPF client.
///
/// # Errors
/// [`UnsupportedKernel::NotCallable`].
pub(super) fn bpf(it: &Bpf, symbols: &dyn KernelSymbols) -> Result<BpfPlan, UnsupportedKernel> {
    let schedule = match it.stack {
        BpfStack::AtOnce => None,
        BpfStack::TaskWork | BpfStack::OwnWalk => Some(called(BPF_TASK_WORK, symbols)?),
    };
    Ok(BpfPlan {
        stack: it.stack,
        schedule,
    })
}

/// The id of a function that a BPF program calls.
fn called(name: &'static str, symbols: &dyn KernelSymbols) -> Result<u32, UnsupportedKernel> {
    let id = symbols.function(name);
    id.map_err(|error| UnsupportedKernel::NotCallable(name, error))
}
