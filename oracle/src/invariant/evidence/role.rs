//! What a perf event of the session is for, by the spec that opened it.

use unwindlab_abi::EventTarget;
use unwindlab_abi::attr::flag;
use unwindlab_abi::message::EventAnnounce;
use unwindlab_abi::plan::{EventSource, EventSpec};

use crate::invariant::limit::step;
use crate::trace::{Event, EventKind, Trace};

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

/// The number of the spec that the event which wrote a record was opened with: the same on every CPU.
pub(crate) fn spec_number(trace: &Trace, event: &Event) -> Option<u32> {
    Some(trace.session.get(event.event?)?.spec)
}

/// The spec that the event which wrote a record was opened with.
pub(crate) fn spec<'t>(trace: &'t Trace, event: &Event) -> Option<&'t EventSpec> {
    step();
    announced_spec(trace, trace.session.get(event.event?)?)
}

/// The spec of an open event.
pub(crate) fn announced_spec<'t>(trace: &'t Trace, open: &EventAnnounce) -> Option<&'t EventSpec> {
    let at = usize::try_from(open.spec).ok()?;
    trace.tracing.as_ref()?.events.get(at)
}

/// What the event that wrote a sample is for. Its other records, such as the record 22 that it asks
/// for, do not show that it fired.
pub(crate) fn role(trace: &Trace, event: &Event) -> Role {
    match event.kind {
        EventKind::Sample(_) => spec(trace, event).map_or(Role::Other, spec_role),
        _ => Role::Other,
    }
}

/// What an event opened with `spec` is for.
pub(crate) fn spec_role(spec: &EventSpec) -> Role {
    // With a filter it does not fire each time, and with a period a tracepoint does not leave a sample each time.
    if spec.filter.is_some() {
        return Role::Other;
    }
    let (system, name) = match &spec.source {
        EventSource::Tracepoint { system, name } if spec.sample_period == 1 => (system, name),
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

/// Whether an event opened with `spec` asks for every record 22 of its CPU. An event of one thread
/// or of a cgroup asks for those of its tasks.
pub(crate) fn asks_of_cpu(spec: &EventSpec) -> bool {
    spec.defer_output && spec.details.target == EventTarget::Usual
}

/// Whether an event that asks for the records 22 of its CPU asks for those of this process too.
/// Without `inherit_thread` it does. With it, it is the agent's own process's: a task inherits it
/// only if it is cloned with `CLONE_THREAD` (`inherit_task_group`, kernel/events/core.c, 7.3).
pub(crate) fn asks_of_process(trace: &Trace, spec: &EventSpec, pid: Option<u32>) -> bool {
    let of_threads = spec.details.set & flag::INHERIT_THREAD != 0;
    !of_threads || trace.threads.iter().any(|thread| Some(thread.pid) == pid)
}

/// Whether an event opened with `spec` gets every record 22 of its CPU, on a kernel with F007 too:
/// the record travels with the side-band records, and `is_sb_event` (kernel/events/core.c, 7.2) does
/// not look at `defer_output`.
pub(crate) fn receives(spec: &EventSpec) -> bool {
    asks_of_cpu(spec) && has_side_band_bit(spec)
}

/// Whether an event opened with `spec` has one of the bits that `is_sb_event` looks at.
pub(crate) fn has_side_band_bit(spec: &EventSpec) -> bool {
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
    side_band || spec.details.set & SIDE_BAND != 0
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

/// Kernel addresses that a chain of this event can have. Where the event does not say, it is
/// `perf_event_max_stack`: 127 unless the plan sets it.
pub(crate) fn kernel_limit(trace: &Trace, spec: &EventSpec) -> usize {
    let mut set = trace.sysctls.iter().rev();
    let set = set.find(|(name, _)| name == "perf_event_max_stack");
    match (spec.max_stack, set) {
        (0, None) => 127,
        // A number that cannot be read: any chain may have been cut.
        (0, Some((_, value))) => value.parse().unwrap_or(0),
        (n, _) => usize::from(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::{spec, tracepoint};

    /// With a period, the sample of one `sys_enter` and that of a later `sys_exit` may be neighbours.
    #[test]
    fn a_marker_leaves_a_sample_each_time() {
        let mut marker = spec("enter", tracepoint("raw_syscalls", "sys_enter"));
        marker.sample_period = 1;
        assert_eq!(spec_role(&marker), Role::SyscallEnter);
        marker.sample_period = 2;
        assert_eq!(spec_role(&marker), Role::Other);
        marker.sample_period = 1;
        marker.filter = Some("id == 1".to_owned());
        assert_eq!(spec_role(&marker), Role::Other);
    }
}
