//! What a perf event of the session is for, by the spec that opened it.

use unwindlab_abi::EventTarget;
use unwindlab_abi::attr::flag;
use unwindlab_abi::message::EventAnnounce;
use unwindlab_abi::plan::{EventSource, EventSpec};

use crate::trace::{Event, Trace};

/// What a perf event of the session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// `nmi:nmi_handler`: fires in every NMI, once per registered handler.
    Nmi,
    /// A counter of the CPU: fires in the NMI of its overflow.
    Overflow,
    /// `raw_syscalls:sys_enter`.
    SyscallEnter,
    /// `raw_syscalls:sys_exit`: written before the exit work, in which the task work runs.
    SyscallExit,
    /// Anything else, or unknown.
    Other,
}

/// The spec that the event which wrote a record was opened with.
pub(crate) fn spec<'t>(trace: &'t Trace, event: &Event) -> Option<&'t EventSpec> {
    announced_spec(trace, trace.session.get(event.event?)?)
}

/// The spec of an open event.
pub(crate) fn announced_spec<'t>(trace: &'t Trace, open: &EventAnnounce) -> Option<&'t EventSpec> {
    let at = usize::try_from(open.spec).ok()?;
    trace.tracing.as_ref()?.events.get(at)
}

/// What the event that wrote a record is for.
pub(crate) fn role(trace: &Trace, event: &Event) -> Role {
    spec(trace, event).map_or(Role::Other, spec_role)
}

/// What an event opened with `spec` is for.
pub(crate) fn spec_role(spec: &EventSpec) -> Role {
    // With a filter it does not fire each time.
    if spec.filter.is_some() {
        return Role::Other;
    }
    let (system, name) = match &spec.source {
        EventSource::Tracepoint { system, name } => (system, name),
        EventSource::Hardware(_) => return Role::Overflow,
        _ => return Role::Other,
    };
    match (system.as_str(), name.as_str()) {
        ("nmi", "nmi_handler") => Role::Nmi,
        ("raw_syscalls", "sys_enter") => Role::SyscallEnter,
        ("raw_syscalls", "sys_exit") => Role::SyscallExit,
        _ => Role::Other,
    }
}

/// Whether an event opened with `spec` gets every record 22 of its CPU.
///
/// The record travels with the side-band records, and `is_sb_event` (kernel/events/core.c, 7.2)
/// does not look at `defer_output`. An event without any side-band bit gets none; `unwindlab setups`
/// judges that. An event of one thread or of a cgroup gets those of its tasks.
pub(crate) fn receives(spec: &EventSpec) -> bool {
    const SIDE_BAND: u64 = flag::MMAP
        | flag::MMAP2
        | flag::MMAP_DATA
        | flag::COMM
        | flag::COMM_EXEC
        | flag::TASK
        | flag::KSYMBOL
        | flag::CONTEXT_SWITCH
        | flag::TEXT_POKE
        | flag::BPF_EVENT;
    let side_band = spec.task || spec.comm || spec.mmap || spec.context_switch;
    let side_band = side_band || spec.details.set & SIDE_BAND != 0;
    spec.defer_output && side_band && spec.details.target == EventTarget::Usual
}

/// Open events that receive record 22.
pub(crate) fn receivers(trace: &Trace) -> impl Iterator<Item = (usize, &EventAnnounce)> {
    let open = trace.session.iter().enumerate();
    open.filter(|(_, open)| announced_spec(trace, open).is_some_and(receives))
}

/// Whether a record is the marker of a system call.
pub fn is_marker(trace: &Trace, event: &Event) -> bool {
    matches!(role(trace, event), Role::SyscallEnter | Role::SyscallExit)
}

/// Kernel addresses that a chain of this event can have (`sysctl_perf_event_max_stack` is 127
/// unless someone changed it, and the harness does not).
pub(crate) fn kernel_limit(spec: &unwindlab_abi::plan::EventSpec) -> usize {
    match spec.max_stack {
        0 => 127,
        n => usize::from(n),
    }
}
