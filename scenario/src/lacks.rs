//! What a kernel lacks for a scenario, told by its symbols before anything boots: the guest's word for it is worth less
//! (docs/outcomes.md, `guest-skip`).

use unwindlab_abi::WorkloadKind;
use unwindlab_abi::bpf::BpfStack;
use unwindlab_abi::lab::SYMBOL as LAB_CLIENT;
use unwindlab_abi::plan::SframeSection;
use unwindlab_abi::user_mode::Asker;
use unwindlab_guest_kernel::reproducer;

use super::model::Scenario;
use super::resolve::{KernelSymbols, UnsupportedKernel};

/// A kernel without this symbol has nothing to test.
pub(super) const FEATURE: &str = "unwind_deferred_request";
/// What a kernel with the option of tracefs has (guest-kernel/patches/proposals/tracefs-stack.patch).
pub(super) const TRACEFS_CLIENT: &str = "__trace_unwind_request";
/// What a kernel with the system call for BPF programs has (kernel/bpf/syscall.c, `CONFIG_BPF_SYSCALL`).
pub(super) const BPF: &str = "bpf_prog_put";
/// What a kernel with BTF has (include/asm-generic/vmlinux.lds.h, `CONFIG_DEBUG_INFO_BTF`).
pub(super) const BTF: &str = "__start_BTF";
/// The function that the BPF client calls (kernel/bpf/helpers.c).
pub(super) const BPF_TASK_WORK: &str = "bpf_task_work_schedule_resume";
/// The function that the BPF program of unwinding in user mode calls (kernel/trace/bpf_trace.c).
pub(super) const BPF_SIGNAL: &str = "bpf_send_signal_task";
/// What a kernel with SFrame sections has (guest-kernel/patches/proposals/sframe.patch).
pub(super) const SFRAME: &str = "unwind_sframe_next";
/// What a kernel with `PR_SET_USER_UNWIND` has (guest-kernel/patches/proposals/user-unwind.patch).
pub(super) const USER_UNWIND: &str = "unwind_user_signal_prctl";
/// The system call `unwind_self` (guest-kernel/patches/proposals/own-stack.patch).
pub(super) const OWN_STACK: &str = "__x64_sys_unwind_self";

/// Whether the kernel has what the scenario needs.
///
/// # Errors
/// The first thing that it lacks.
pub(super) fn check(
    scenario: &Scenario,
    symbols: &dyn KernelSymbols,
) -> Result<(), UnsupportedKernel> {
    let needs = needs(scenario);
    let lacking = |symbol: &str| symbols.addresses(symbol).is_empty();
    match { needs.into_iter() }.find(|(needed, symbol, _)| *needed && lacking(symbol)) {
        Some((.., lack)) => Err(lack),
        None => Ok(()),
    }
}

/// Whether a scenario needs something, the symbol of a kernel that has it, and what is said of one that has not.
fn needs(scenario: &Scenario) -> [(bool, &'static str, UnsupportedKernel); 10] {
    use UnsupportedKernel as Lack;
    let kind = *scenario.workload.kind;
    let asks_by_bpf = { scenario.user_mode.as_deref() }.is_some_and(|it| *it.ask == Asker::Bpf);
    let bpf = scenario.bpf.as_deref();
    let bpf_schedules = bpf.is_some_and(|it| it.stack != BpfStack::AtOnce);
    let asks_itself = matches!(
        kind,
        WorkloadKind::OwnStack | WorkloadKind::OwnStackFrameless
    );
    let section = scenario.workload.sframe.unwrap_or_default();
    [
        (true, FEATURE, Lack::DeferredUnwinding),
        (
            scenario.lab.is_some() || program_needs_client(scenario),
            LAB_CLIENT,
            Lack::LabClient,
        ),
        (
            scenario.tracefs.is_some(),
            TRACEFS_CLIENT,
            Lack::TracefsClient,
        ),
        (bpf.is_some() || asks_by_bpf, BPF, Lack::Bpf),
        (bpf_schedules || asks_by_bpf, BTF, Lack::Btf),
        (
            bpf_schedules,
            BPF_TASK_WORK,
            Lack::BpfFunction(BPF_TASK_WORK),
        ),
        (asks_by_bpf, BPF_SIGNAL, Lack::BpfFunction(BPF_SIGNAL)),
        (reads_sections(kind, section), SFRAME, Lack::Sframe),
        (asks_itself, OWN_STACK, Lack::OwnStack),
        (kind.unwinds_itself(), USER_UNWIND, Lack::UserUnwind),
    ]
}

/// Whether the program of a scenario tells the lab client what to do.
fn program_needs_client(scenario: &Scenario) -> bool {
    let program = scenario.workload.program.as_deref();
    program.is_some_and(|name| reproducer::needs_client(name))
}

/// Whether a workload registers SFrame sections.
fn reads_sections(kind: WorkloadKind, section: SframeSection) -> bool {
    match kind {
        _ if kind.takes_section() => section != SframeSection::None,
        WorkloadKind::CompatSframe | WorkloadKind::FramelessShapes | WorkloadKind::CProgram => true,
        _ => kind.has_many_sections(),
    }
}
