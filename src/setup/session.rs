//! A set-up as a trial: the events, the operation, the sysctls.
//!
//! Beside the events of the set-up there is a *reference*: a receiver and markers of system calls
//! that have every field by which records are told apart, in a ring of their own. It requests
//! nothing. What the events of the set-up get is compared with it.

use unwindlab_abi::attr::flag;
use unwindlab_abi::plan::{EventSource, EventSpec};
use unwindlab_abi::{
    AttrDetails, EventTarget, PerfOperation, PerfOperationKind, RingUse, WorkloadKind,
};

use super::factors::{Factor, Setup};
use unwindlab_engine::plan::TrialPlan;

/// Iterations of the workload.
pub const ITERATIONS: u64 = 6;
/// The iteration in which the operation is done.
const OPERATION_IN: u64 = 3;

// `enum perf_event_sample_format`, include/uapi/linux/perf_event.h.
const IP: u64 = 1 << 0;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const CALLCHAIN: u64 = 1 << 5;
const CPU: u64 = 1 << 7;
const RAW: u64 = 1 << 10;
const IDENTIFIER: u64 = 1 << 16;
/// Fields of every record of the reference.
const ALWAYS: u64 = TID | TIME | CPU | IDENTIFIER;

/// Register 8 is IP and 7 is SP; 12 to 15 are segments, which x86-64 refuses
/// (arch/x86/include/uapi/asm/perf_regs.h).
const IP_SP: u64 = 1 << 8 | 1 << 7;
const ALL_REGISTERS: u64 = 0xff_0fff;

/// `CLOCK_MONOTONIC` and `CLOCK_MONOTONIC_RAW`.
const CLOCK_MONOTONIC: i32 = 1;
const CLOCK_MONOTONIC_RAW: i32 = 4;

/// Names of the events.
pub mod name {
    #![allow(missing_docs, reason = "see the module")]
    pub const REFERENCE: &str = "reference";
    pub const ENTER: &str = "enter";
    pub const EXIT: &str = "exit";
    pub const UNASKED: &str = "unasked";
    pub const ASKER: &str = "asker";
    pub const RECEIVER: &str = "receiver";
    pub const SECOND: &str = "second";
    pub const THIRD: &str = "third";
    pub const BYSTANDER: &str = "bystander";
}

/// What the workload does, and the function that the source `kprobe` is at: each iteration calls it
/// once.
fn workload(setup: &Setup) -> (WorkloadKind, &'static str) {
    match setup.level(Factor::Workload) {
        "fork" => (WorkloadKind::Fork, "__x64_sys_fork"),
        "exec" => (WorkloadKind::Exec, "__x64_sys_execve"),
        "moved" => (WorkloadKind::SleepMigrate, "__x64_sys_read"),
        _ => (WorkloadKind::PerfCalls, "__x64_sys_getppid"),
    }
}

/// vCPUs of the machine.
#[must_use]
pub fn vcpus(setup: &Setup) -> u8 {
    match setup.is(Factor::Workload, "moved") {
        true => 2,
        false => 1,
    }
}

/// The trial of a set-up; `base` is one of the workload without events.
#[must_use]
pub fn trial(base: &TrialPlan, setup: &Setup) -> TrialPlan {
    let mut plan = base.clone();
    let events = events(setup);
    plan.guest.operation = operation(setup, &events);
    plan.guest.tracing.events = events;
    plan.guest.workload.frames = setup.level(Factor::Frames).parse().unwrap_or(13);
    plan.guest.workload.iterations = ITERATIONS;
    plan.guest.workload.kind = workload(setup).0;
    plan.vcpus = vcpus(setup);
    plan.guest.sysctls = sysctls(setup);
    plan
}

/// The reference's events: those of every set-up. One gets side-band records and does not ask for
/// record 22.
#[must_use]
pub fn reference() -> Vec<EventSpec> {
    let reference = EventSpec {
        defer_output: true,
        task: true,
        ..event(name::REFERENCE, EventSource::Dummy)
    };
    let marker = |name: &str, tracepoint: &str| EventSpec {
        sample_period: 1,
        sample_type: ALWAYS | RAW,
        output_to: Some(0),
        ..event(name, syscalls(tracepoint))
    };
    let unasked = EventSpec {
        task: true,
        output_to: Some(0),
        ..event(name::UNASKED, EventSource::Dummy)
    };
    vec![
        reference,
        marker(name::ENTER, "sys_enter"),
        marker(name::EXIT, "sys_exit"),
        unasked,
    ]
}

/// An event that takes no samples and writes to a ring of its own.
#[must_use]
pub fn event(name: &str, source: EventSource) -> EventSpec {
    EventSpec {
        sample_type: ALWAYS,
        ..EventSpec::blank(name, source)
    }
}

/// The tracepoint `raw_syscalls:NAME`.
#[must_use]
pub fn syscalls(name: &str) -> EventSource {
    EventSource::Tracepoint {
        system: "raw_syscalls".to_owned(),
        name: name.to_owned(),
    }
}

pub(super) fn events(setup: &Setup) -> Vec<EventSpec> {
    let mut events = reference();
    let receives = !setup.is(Factor::Receiver, "another");
    events.push(asker(setup, receives));
    if !setup.is(Factor::Receiver, "itself") {
        events.push(receiver(setup));
    }
    // Sessions of other tracers, as perf makes them.
    let session = |name: &str, tracepoint: &str, target: EventTarget| EventSpec {
        sample_period: 1,
        sample_type: ALWAYS | IP | CALLCHAIN,
        defer_callchain: true,
        defer_output: true,
        task: true,
        details: AttrDetails {
            target,
            ..AttrDetails::default()
        },
        ..event(name, syscalls(tracepoint))
    };
    if !setup.is(Factor::Sessions, "1") {
        events.push(session(name::SECOND, "sys_enter", EventTarget::Usual));
    }
    if setup.is(Factor::Sessions, "3") {
        events.push(session(name::THIRD, "sys_exit", EventTarget::Thread(0)));
    }
    if setup.is(Factor::Operation, "unmap-bystander") {
        // It only receives: nobody would see the cookies of its requests.
        let mut bystander = EventSpec {
            defer_output: true,
            task: true,
            ..event(name::BYSTANDER, EventSource::Dummy)
        };
        bystander.details.ring = RingUse::Unread;
        events.push(bystander);
    }
    events
}

fn asker(setup: &Setup, receives: bool) -> EventSpec {
    let source = match setup.level(Factor::Source) {
        "sys-enter" => syscalls("sys_enter"),
        "sys-exit" => syscalls("sys_exit"),
        _ => EventSource::Kprobe {
            function: workload(setup).1.to_owned(),
            offset: 0,
            at_return: false,
            optimized: false,
        },
    };
    let mut spec = EventSpec {
        sample_period: 1,
        defer_callchain: true,
        defer_output: receives,
        max_stack: setup.level(Factor::MaxStack).parse().unwrap_or(0),
        exclude_callchain_user: setup.is(Factor::ExcludeCallchainUser, "yes"),
        ..event(name::ASKER, source)
    };
    common(setup, &mut spec, setup.level(Factor::AskerOf));
    spec.sample_type |= CALLCHAIN;
    for (factor, bit) in [
        (Factor::ExcludeUser, flag::EXCLUDE_USER),
        (Factor::ExcludeKernel, flag::EXCLUDE_KERNEL),
        (Factor::ExcludeHv, flag::EXCLUDE_HV),
        (Factor::ExcludeIdle, flag::EXCLUDE_IDLE),
        (
            Factor::ExcludeCallchainKernel,
            flag::EXCLUDE_CALLCHAIN_KERNEL,
        ),
        (Factor::Pinned, flag::PINNED),
        (Factor::Exclusive, flag::EXCLUSIVE),
        (Factor::RemoveOnExec, flag::REMOVE_ON_EXEC),
        (Factor::EnableOnExec, flag::ENABLE_ON_EXEC),
    ] {
        if setup.is(factor, "yes") {
            spec.details.set |= bit;
        }
    }
    let precise: u64 = setup.level(Factor::Precise).parse().unwrap_or(0);
    spec.details.set |= precise << flag::PRECISE_IP_SHIFT;
    if receives {
        side_band(setup, &mut spec);
    }
    spec
}

fn receiver(setup: &Setup) -> EventSpec {
    let mut spec = EventSpec {
        defer_output: true,
        ..event(name::RECEIVER, EventSource::Dummy)
    };
    common(setup, &mut spec, setup.level(Factor::ReceiverOf));
    side_band(setup, &mut spec);
    spec
}

/// What asker and receiver share: fields, clock, wake-ups, ring; and whose event it is.
fn common(setup: &Setup, spec: &mut EventSpec, target: &str) {
    spec.sample_type = sample_type(setup);
    let details = &mut spec.details;
    details.may_be_refused = true;
    details.ring_pages = setup.level(Factor::Pages).parse().ok();
    details.read_format = match setup.level(Factor::Read) {
        "all" => 0b1_0111,
        "group" => 0b1_1111,
        _ => 0,
    };
    details.regs_user = match setup.level(Factor::RegsUser) {
        "ip-sp" => IP_SP,
        "all" => ALL_REGISTERS,
        _ => 0,
    };
    if setup.is(Factor::RegsIntr, "yes") {
        details.regs_intr = ALL_REGISTERS;
    }
    details.stack_user = setup.level(Factor::StackUser).parse().unwrap_or(0);
    if setup.is(Factor::SampleIdAll, "no") {
        details.clear |= flag::SAMPLE_ID_ALL;
    }
    match setup.level(Factor::Wakeup) {
        "each-event" => {
            details.clear |= flag::WATERMARK;
            details.wakeup = Some(1);
        }
        "each-byte" => details.wakeup = Some(1),
        _ => {}
    }
    if !setup.is(Factor::Clock, "perf") {
        details.set |= flag::USE_CLOCKID;
        details.clockid = match setup.is(Factor::Clock, "monotonic") {
            true => CLOCK_MONOTONIC,
            false => CLOCK_MONOTONIC_RAW,
        };
    }
    (details.target, spec.inherit) = match target {
        "thread" => (EventTarget::Thread(0), false),
        "inherit" | "inherit-thread" => (EventTarget::Usual, true),
        "cgroup" => (EventTarget::RootCgroup, false),
        "empty-cgroup" => (EventTarget::EmptyCgroup, false),
        _ => (EventTarget::Usual, false),
    };
    if target == "inherit-thread" {
        details.set |= flag::INHERIT_THREAD;
    }
    (details.ring, spec.output_to) = match setup.level(Factor::Ring) {
        "shared" => (RingUse::Kept, Some(0)),
        "shared-at-open" => (RingUse::SharedAtOpen, Some(0)),
        "overwritten" | "backward-overwritten" => (RingUse::Overwritten, None),
        _ => (RingUse::Kept, None),
    };
    if setup.level(Factor::Ring).starts_with("backward") {
        details.set |= flag::WRITE_BACKWARD;
    }
}

fn sample_type(setup: &Setup) -> u64 {
    let fields = [
        (Factor::Ip, IP),
        (Factor::Tid, TID),
        (Factor::Time, TIME),
        (Factor::Addr, 1 << 3),
        (Factor::Id, 1 << 6),
        (Factor::Cpu, CPU),
        (Factor::Period, 1 << 8),
        (Factor::StreamId, 1 << 9),
        (Factor::Raw, RAW),
        (Factor::DataSrc, 1 << 15),
        (Factor::Identifier, IDENTIFIER),
        (Factor::Transaction, 1 << 17),
        (Factor::RegsIntr, 1 << 18),
        (Factor::PhysAddr, 1 << 19),
        (Factor::CgroupId, 1 << 21),
        (Factor::DataPageSize, 1 << 22),
        (Factor::CodePageSize, 1 << 23),
    ];
    let set = fields.iter().filter(|(factor, _)| setup.is(*factor, "yes"));
    let mut bits = set.fold(0, |bits, (_, bit)| bits | bit);
    for (factor, level, bit) in [
        (Factor::Read, "no", 1 << 4),
        (Factor::RegsUser, "no", 1 << 12),
        (Factor::StackUser, "no", 1 << 13),
    ] {
        if !setup.is(factor, level) {
            bits |= bit;
        }
    }
    bits | match setup.level(Factor::Weight) {
        "word" => 1 << 14,
        "struct" => 1 << 24,
        _ => 0,
    }
}

fn side_band(setup: &Setup, spec: &mut EventSpec) {
    let level = setup.level(Factor::SideBand);
    let all = level == "all";
    spec.task = all || level == "task";
    spec.comm = all || level == "comm";
    spec.context_switch = all || level == "context-switch";
    for (name, bits) in [
        ("mmap", flag::MMAP),
        ("mmap2", flag::MMAP2),
        ("mmap-data", flag::MMAP_DATA),
        ("comm-exec", flag::COMM_EXEC),
        ("ksymbol", flag::KSYMBOL),
        ("text-poke", flag::TEXT_POKE),
        ("bpf-event", flag::BPF_EVENT),
        ("namespaces", flag::NAMESPACES),
        ("cgroup", flag::CGROUP),
        ("build-id", flag::BUILD_ID),
    ] {
        if all || level == name {
            spec.details.set |= bits;
        }
    }
}

fn operation(setup: &Setup, events: &[EventSpec]) -> Option<PerfOperation> {
    let (what, on) = match setup.level(Factor::Operation) {
        "enable-asker" => (PerfOperationKind::Enable, name::ASKER),
        "disable-asker" => (PerfOperationKind::Disable, name::ASKER),
        "refresh-asker" => (PerfOperationKind::Refresh(1), name::ASKER),
        "reset-asker" => (PerfOperationKind::Reset, name::ASKER),
        "close-asker" => (PerfOperationKind::Close, name::ASKER),
        "disable-receiver" => (PerfOperationKind::Disable, name::RECEIVER),
        "pause-receiver" => (PerfOperationKind::Pause, name::RECEIVER),
        "close-receiver" => (PerfOperationKind::Close, name::RECEIVER),
        "unmap-bystander" => (PerfOperationKind::Unmap, name::BYSTANDER),
        _ => return None,
    };
    let event = events.iter().position(|spec| spec.name == on)?;
    Some(PerfOperation {
        what,
        event: u32::try_from(event).ok()?,
        iteration: OPERATION_IN,
    })
}

fn sysctls(setup: &Setup) -> Vec<(String, String)> {
    let set: &[(&str, &str)] = match setup.level(Factor::Sysctl) {
        "max-stack-16" => &[("perf_event_max_stack", "16")],
        "max-contexts-3" => &[("perf_event_max_contexts_per_stack", "3")],
        "max-contexts-2" => &[("perf_event_max_contexts_per_stack", "2")],
        "max-contexts-1" => &[("perf_event_max_contexts_per_stack", "1")],
        "paranoid-2" => &[("perf_event_paranoid", "2")],
        // The rate can be set only while there is a limit on the time.
        "rate-1" => &[
            ("perf_cpu_time_max_percent", "25"),
            ("perf_event_max_sample_rate", "1"),
        ],
        _ => &[],
    };
    let owned = set.iter();
    owned
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}
