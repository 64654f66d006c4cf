//! Events that the kernel must refuse, each with the error.

use unwindlab_abi::attr::flag;
use unwindlab_abi::plan::EventSpec;
use unwindlab_abi::{EventTarget, Observation, RingUse};

use super::judge::{Failure, Judged};
use super::session::{event, reference, syscalls};
use unwindlab_engine::plan::TrialPlan;
use unwindlab_oracle::trace::Trace;

const EINVAL: i32 = 22;
const EOVERFLOW: i32 = 75;
const EOPNOTSUPP: i32 = 95;

const FREQ: u64 = 1 << 10;
const CALLCHAIN: u64 = 1 << 5;

/// An event that the kernel must refuse.
#[derive(Debug)]
pub struct Refusal {
    /// What is wrong with it.
    pub name: &'static str,
    /// The error.
    pub errno: i32,
    /// The function of Linux 7.3 that refuses it (kernel/events/ and arch/x86/kernel/).
    pub by: &'static str,
    /// Makes an event that asks for and receives deferred chains such a one.
    change: fn(&mut EventSpec),
}

macro_rules! refusals {
    ($($name:literal, $errno:ident, $by:literal, $change:expr;)*) => {
        &[$(Refusal { name: $name, errno: $errno, by: $by, change: $change }),*]
    };
}

/// All of them.
pub const REFUSALS: &[Refusal] = refusals![
    "an unknown bit of the flag word", EINVAL, "perf_copy_attr", |it| it.details.set |= 1 << 40;
    "an unknown bit of sample_type", EINVAL, "perf_copy_attr", |it| it.sample_type |= 1 << 25;
    "an unknown bit of read_format", EINVAL, "perf_copy_attr",
        |it| it.details.read_format = 1 << 5;
    "BRANCH_STACK without a kind of branch", EINVAL, "perf_copy_attr",
        |it| it.sample_type |= 1 << 11;
    "BRANCH_STACK of a tracepoint", EOPNOTSUPP, "perf_tp_event_init",
        |it| {
            it.sample_type |= 1 << 11;
            it.details.branch_sample_type = 1 << 3;
        };
    "REGS_USER without a register", EINVAL, "perf_reg_validate", |it| it.sample_type |= 1 << 12;
    "REGS_USER with a segment register", EINVAL, "perf_reg_validate",
        |it| {
            it.sample_type |= 1 << 12;
            it.details.regs_user = 1 << 12;
        };
    "REGS_INTR without a register", EINVAL, "perf_reg_validate", |it| it.sample_type |= 1 << 18;
    "STACK_USER of 65535 bytes", EINVAL, "perf_copy_attr",
        |it| {
            it.sample_type |= 1 << 13;
            it.details.stack_user = 65535;
        };
    "STACK_USER of 12 bytes", EINVAL, "perf_copy_attr",
        |it| {
            it.sample_type |= 1 << 13;
            it.details.stack_user = 12;
        };
    "WEIGHT and WEIGHT_STRUCT", EINVAL, "perf_copy_attr",
        |it| it.sample_type |= 1 << 14 | 1 << 24;
    "inherit_thread without inherit", EINVAL, "perf_copy_attr",
        |it| it.details.set |= flag::INHERIT_THREAD;
    "remove_on_exec and enable_on_exec", EINVAL, "perf_copy_attr",
        |it| it.details.set |= flag::REMOVE_ON_EXEC | flag::ENABLE_ON_EXEC;
    "sigtrap without remove_on_exec", EINVAL, "perf_copy_attr",
        |it| {
            it.details.set |= flag::SIGTRAP;
            it.details.target = EventTarget::Thread(0);
        };
    "sigtrap of all tasks", EINVAL, "perf_event_alloc",
        |it| it.details.set |= flag::SIGTRAP | flag::REMOVE_ON_EXEC;
    "inherit with READ and without TID", EINVAL, "perf_event_alloc",
        |it| {
            it.inherit = true;
            it.sample_type = CALLCHAIN | 1 << 4;
        };
    "a period with bit 63", EINVAL, "perf_event_open", |it| it.sample_period = 1 << 63;
    "a frequency above perf_event_max_sample_rate", EINVAL, "perf_event_open",
        |it| {
            it.details.set |= FREQ;
            it.sample_period = 2_000_000_000;
        };
    "a max_stack above perf_event_max_stack", EOVERFLOW, "get_callchain_buffers",
        |it| it.max_stack = 128;
    "a clock that is not safe in NMIs", EINVAL, "perf_event_set_clock",
        |it| {
            it.details.set |= flag::USE_CLOCKID;
            it.details.clockid = 7;
        };
    "an unknown clock", EINVAL, "perf_event_set_clock",
        |it| {
            it.details.set |= flag::USE_CLOCKID;
            it.details.clockid = 99;
        };
    "the ring of an event of another clock", EINVAL, "perf_event_set_output",
        |it| {
            it.details.set |= flag::USE_CLOCKID;
            it.details.clockid = 1;
            it.output_to = Some(0);
            it.details.ring = RingUse::SharedAtOpen;
        };
    "the ring of an event that writes forwards, for one that writes backwards", EINVAL,
        "perf_event_set_output",
        |it| {
            it.details.set |= flag::WRITE_BACKWARD;
            it.output_to = Some(0);
            it.details.ring = RingUse::SharedAtOpen;
        };
];

/// The trial of a refusal; `base` is as for a set-up.
#[must_use]
pub fn trial(base: &TrialPlan, refusal: &Refusal) -> TrialPlan {
    let mut plan = base.clone();
    let mut refused = event("refused", syscalls("sys_enter"));
    refused.sample_period = 1;
    refused.sample_type |= CALLCHAIN;
    (refused.defer_callchain, refused.defer_output) = (true, true);
    refused.task = true;
    refused.details.may_be_refused = true;
    (refusal.change)(&mut refused);
    plan.guest.tracing.events = reference();
    plan.guest.tracing.events.push(refused);
    plan.guest.workload.iterations = 1;
    plan
}

/// Judges the trace of a refusal.
#[must_use]
pub fn judge(refusal: &Refusal, trace: &Trace) -> Judged {
    let mut judged = Judged::default();
    let refused = trace.observations.iter().find_map(|seen| match seen {
        Observation::Refused { errno, .. } => Some(*errno),
        _ => None,
    });
    if refused == Some(refusal.errno) {
        judged.held = 1;
        return judged;
    }
    let Refusal {
        name, errno, by, ..
    } = refusal;
    let came = match refused {
        Some(other) => format!("fails with errno {other}"),
        None => "succeeds".to_owned(),
    };
    let what = format!("perf_event_open with {name} {came}, not with errno {errno} ({by})");
    judged.failures.push(Failure::new(what, String::new()));
    judged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(errno: Option<i32>) -> Trace {
        let seen = errno.map(|errno| Observation::Refused {
            spec: 3,
            cpu: 0,
            errno,
        });
        Trace {
            observations: seen.into_iter().collect(),
            ..Trace::default()
        }
    }

    #[test]
    fn only_the_right_error_holds() {
        for refusal in REFUSALS {
            assert_eq!(judge(refusal, &trace(Some(refusal.errno))).held, 1);
            for other in [None, Some(1)] {
                let judged = judge(refusal, &trace(other));
                assert_eq!((judged.held, judged.failures.len()), (0, 1));
            }
        }
    }
}
