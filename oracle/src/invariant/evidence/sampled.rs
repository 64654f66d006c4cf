//! The user instruction that a sample shows by itself.
//!
//! perf's clocks, where they hit user mode, and the tracepoints at the entry of system calls sample the user registers with
//! which the task entered the kernel. perf takes the instruction pointer from them; the unwinder takes frame 0 by other code.

use unwindlab_abi::plan::{EventSource, EventSpec};

use super::replaced::enters_other_call;
use super::role::spec;
use crate::trace::model::{MISC_CPUMODE, MISC_USER};
use crate::trace::{Event, EventKind, Trace};

/// `PERF_COUNT_SW_CPU_CLOCK` and `PERF_COUNT_SW_TASK_CLOCK`: the registers are those that the interrupt of a timer saved
/// (`perf_swevent_hrtimer()`, kernel/events/core.c, 7.3).
const CLOCKS: [u64; 2] = [0, 1];
/// The system of tracepoints at the entry of system calls, with the registers of the call (`perf_syscall_enter()`,
/// kernel/trace/trace_syscalls.c, 7.3).
const SYSCALLS: &str = "syscalls";

/// The instruction to which the task of a sample returns, where the event shows it.
pub(super) fn user_instruction(trace: &Trace, event: &Event) -> Option<u64> {
    let EventKind::Sample(sample) = &event.kind else {
        return None;
    };
    let is_user = event.misc & MISC_CPUMODE == MISC_USER;
    let shows = spec(trace, event).is_some_and(shows_user_registers);
    sample.ip.filter(|_| is_user && shows)
}

fn shows_user_registers(spec: &EventSpec) -> bool {
    match &spec.source {
        EventSource::Software(number) => CLOCKS.contains(number),
        EventSource::Tracepoint { system, name } => enters_other_call(system, name),
        _ => false,
    }
}

/// Whether a tracepoint of this name is at the entry of one system call, before it.
pub(super) fn is_syscall_enter(system: &str, name: &str) -> bool {
    system == SYSCALLS && name.starts_with("sys_enter_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::{self, Kit, tracepoint};
    use crate::trace::model::{CONTEXT_USER_DEFERRED, MISC_KERNEL};

    const C: u64 = 3 << 32 | 1;
    /// In the leaf of thread 0.
    const AT: u64 = 0x1004;
    const CALLERS: [u64; 3] = [0x2000, 0x2000, 0x3000];

    /// Pieces of evidence, undecided things, and whether it is violated, where a sample of this event at [`AT`] is answered
    /// from `frame0`.
    fn judged(id: &str, source: &EventSource, misc: u16, frame0: u64) -> (usize, usize, bool) {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.spec("nmi", |spec| spec.source = source.clone());
        let asked = kit.sample(0, 1001, 1, vec![CONTEXT_USER_DEFERRED, C]);
        let chain: Vec<u64> = std::iter::once(frame0).chain(CALLERS).collect();
        kit.deferred(0, 1001, C, &chain);
        let mut trace = kit.trace();
        testkit::sampled_at(&mut trace.events[asked], misc, AT);
        testkit::judged(id, &trace)
    }

    #[test]
    fn a_clock_and_a_system_call_show_where_the_task_came_from() {
        for source in [
            EventSource::Software(0),
            EventSource::Software(1),
            tracepoint("syscalls", "sys_enter_getppid"),
        ] {
            for id in ["S1", "U6"] {
                assert_eq!(judged(id, &source, MISC_USER, AT), (1, 0, false), "{id}");
                // An earlier entry's stack, with the same callers.
                assert_eq!(judged(id, &source, MISC_USER, AT + 4), (0, 0, true), "{id}");
                assert_eq!(judged(id, &source, MISC_KERNEL, AT + 4), (0, 1, false));
            }
        }
    }

    #[test]
    fn what_may_have_other_registers_shows_nothing() {
        for source in [
            EventSource::Software(2),
            tracepoint("syscalls", "sys_enter_rt_sigreturn"),
            tracepoint("syscalls", "sys_exit_getppid"),
            tracepoint("raw_syscalls", "sys_enter"),
            tracepoint("sched", "sched_waking"),
        ] {
            for frame0 in [AT, AT + 4] {
                assert_eq!(judged("S1", &source, MISC_USER, frame0), (0, 1, false));
            }
        }
    }
}
