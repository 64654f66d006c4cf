//! The perf events of a scenario: the default ones, or those that it writes itself.

pub(crate) mod source;

use unwindlab_abi::attr::flag;
use unwindlab_abi::plan::{EventSource, EventSpec, Tracing};
use unwindlab_abi::{AttrDetails, WorkloadKind};

use super::error::Complaints;
use super::located::At;
use super::model::{Perf, PerfEvent, Pmu, SampleField, Scenario};
use super::resolve::KernelSymbols;

// `enum perf_event_sample_format`, include/uapi/linux/perf_event.h.
const SAMPLE_IP: u64 = 1 << 0;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;
const SAMPLE_CPU: u64 = 1 << 7;
const SAMPLE_PERIOD: u64 = 1 << 8;
const SAMPLE_RAW: u64 = 1 << 10;
const SAMPLE_REGS_USER: u64 = 1 << 12;
const SAMPLE_STACK_USER: u64 = 1 << 13;
const SAMPLE_IDENTIFIER: u64 = 1 << 16;

/// Fields of every record, by which records are merged and identified.
const SAMPLE_ALWAYS: u64 = SAMPLE_IDENTIFIER | SAMPLE_TID | SAMPLE_TIME | SAMPLE_CPU;

/// The user registers bp, sp and ip (`enum perf_event_x86_regs`).
const REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;
/// Bytes of the user stack in a sample: more than a signal frame and several dozen frames of the
/// workloads.
const STACK_BYTES: u32 = 4096;

/// Period of the default sampler of a synthetic counter, longer than any trial: the counter
/// overflows only where the scenario says.
pub(super) const FOREVER: u64 = 1 << 46;
/// Period of the default sampler of a counter of the host.
const HOST_PERIOD: u64 = 1_000_000;

/// Resolves the perf part of a scenario, with complaints about its errors. Without symbols, while a
/// scenario is checked, breakpoints get no addresses.
pub(super) fn resolve(
    scenario: &Scenario,
    symbols: Option<&dyn KernelSymbols>,
    complaints: &mut Complaints<'_>,
) -> Tracing {
    let perf = &scenario.perf;
    let mut events = match &perf.events {
        // They would make requests of which the trace knows nothing.
        None if scenario.perf_tool.is_some() => Vec::new(),
        // It opens its own.
        None if *scenario.workload.kind == WorkloadKind::Program => Vec::new(),
        None => default_events(scenario),
        Some(written) => written_events(scenario, written, symbols, complaints),
    };
    if let (Some(max_stack), Some(_)) = (&perf.max_stack, &perf.events) {
        complaints.add(
            max_stack.location(),
            "found `max-stack` beside `events`, expected it in one of the events",
        );
    }
    if perf.markers {
        events.extend(["sys_enter", "sys_exit"].map(marker));
    }
    if perf.switches
        && let Some(tracking) = events.iter_mut().find(|event| event.defer_output)
    {
        tracking.context_switch = true;
    }
    Tracing {
        ring_pages: *perf.ring_pages,
        events,
    }
}

/// All events of a CPU share one ring, so that its records are in the order in which they were
/// written.
///
/// The lab client has an NMI handler, and `nmi:nmi_handler` fires once for each handler: an NMI
/// would make two samples. So beside the lab client the sampler makes a request in every system
/// call.
///
/// A driver of performance counters has an NMI handler, too. In a machine with counters the sampler
/// is its cycles event.
fn default_events(scenario: &Scenario) -> Vec<EventSpec> {
    let perf: &Perf = &scenario.perf;
    let tracking = EventSpec {
        defer_output: true,
        // The kernel sends record 22 only to events with a side-band bit.
        task: true,
        ..blank("tracking", EventSource::Dummy)
    };
    const CYCLES: EventSource = EventSource::Hardware(0);
    let (name, source, period) = match (scenario.lab.is_some(), *scenario.machine.pmu) {
        (true, _) => ("enter", tracepoint("raw_syscalls", "sys_enter"), 1),
        (false, Pmu::None) => ("nmi", tracepoint("nmi", "nmi_handler"), 1),
        (false, Pmu::Synthetic) => ("cycles", CYCLES, FOREVER),
        (false, Pmu::Host) => ("cycles", CYCLES, HOST_PERIOD),
    };
    let sampler = EventSpec {
        sample_period: period,
        sample_type: SAMPLE_ALWAYS | SAMPLE_IP | SAMPLE_CALLCHAIN,
        max_stack: perf.max_stack.as_ref().map_or(0, |n| **n),
        defer_callchain: true,
        output_to: Some(0),
        ..blank(name, source)
    };
    vec![tracking, sampler]
}

fn marker(name: &str) -> EventSpec {
    EventSpec {
        sample_period: 1,
        sample_type: SAMPLE_ALWAYS | SAMPLE_RAW,
        output_to: Some(0),
        ..blank(name, tracepoint("raw_syscalls", name))
    }
}

fn tracepoint(system: &str, name: &str) -> EventSource {
    EventSource::Tracepoint {
        system: system.to_owned(),
        name: name.to_owned(),
    }
}

fn blank(name: &str, source: EventSource) -> EventSpec {
    EventSpec {
        sample_type: SAMPLE_ALWAYS,
        ..EventSpec::blank(name, source)
    }
}

fn written_events(
    scenario: &Scenario,
    written: &At<Vec<PerfEvent>>,
    symbols: Option<&dyn KernelSymbols>,
    complaints: &mut Complaints<'_>,
) -> Vec<EventSpec> {
    complaints.require(!written.is_empty(), written.location(), || {
        "found no events, expected at least one (or no key `events`)".to_owned()
    });
    let mut events: Vec<EventSpec> = Vec::new();
    for event in written.iter() {
        complaints.require(
            events.iter().all(|other| other.name != *event.name),
            event.name.location(),
            || format!("found event `{}` twice, expected unique names", *event.name),
        );
        let output_to = output_to(event, &events, complaints);
        let source = source::source(&event.event, symbols);
        let source = complaints.accept(event.event.location(), source);
        let source = source.unwrap_or(EventSource::Dummy);
        check_source(scenario, event, &source, complaints);
        events.push(EventSpec {
            sample_period: event.period,
            sample_type: SAMPLE_ALWAYS | sample_bits(&event.sample),
            max_stack: event.max_stack.as_ref().map_or(0, |n| **n),
            defer_callchain: event.defer_callchain,
            defer_output: event.defer_output,
            task: event.task,
            comm: event.comm,
            mmap: event.mmap,
            context_switch: event.context_switch,
            inherit: event.inherit,
            exclude_callchain_user: event.exclude_callchain_user,
            output_to,
            filter: event.filter.as_ref().map(|it| (**it).clone()),
            details: details(event, complaints),
            ..blank(&event.name, source)
        });
    }
    check_probes(written, &events, complaints);
    events
}

/// What a source needs of the rest of the scenario.
fn check_source(
    scenario: &Scenario,
    event: &PerfEvent,
    source: &EventSource,
    complaints: &mut Complaints<'_>,
) {
    let location = event.event.location();
    if let Some(filter) = &event.filter {
        let fields = matches!(
            source,
            EventSource::Tracepoint { .. }
                | EventSource::Kprobe { .. }
                | EventSource::Fprobe { .. }
                | EventSource::Uprobe { .. }
        );
        complaints.require(fields, filter.location(), || {
            "found `filter`, which takes a tracepoint or a probe: only they have fields".to_owned()
        });
    }
    if matches!(source, EventSource::TaskField { .. }) {
        complaints.require(event.output_to.is_some(), location, || {
            "an event on a field of the task needs `output-to`: each thread has its own, and all \
             write to one ring"
                .to_owned()
        });
        complaints.require(!event.inherit, location, || {
            "an event on a field of the task takes no `inherit`: it is the field of one task"
                .to_owned()
        });
        let kind = *scenario.workload.kind;
        let lasting = !matches!(
            kind,
            WorkloadKind::Exit
                | WorkloadKind::Exec
                | WorkloadKind::ExecByThread
                | WorkloadKind::Process
                | WorkloadKind::CProgram
        );
        complaints.require(lasting, location, || {
            let kind = kind.name();
            format!(
                "workload `{kind}` makes a task for each iteration; an event on a field of the \
                 task needs threads that stay"
            )
        });
    }
}

/// The kernel optimises all kprobes that it can, or none.
fn check_probes(written: &[PerfEvent], events: &[EventSpec], complaints: &mut Complaints<'_>) {
    let is = |event: &EventSpec, wanted| matches!(event.source, EventSource::Kprobe { optimized, .. } if optimized == wanted);
    let plain = events.iter().any(|event| is(event, false));
    if let Some((event, _)) = { written.iter().zip(events) }.find(|(_, spec)| is(spec, true)) {
        complaints.require(!plain, event.event.location(), || {
            "found `optprobe` beside `kprobe` or `kretprobe`: the kernel optimises all kprobes or \
             none"
                .to_owned()
        });
    }
}

/// What some fields of a sample need besides their bit.
fn details(event: &PerfEvent, complaints: &mut Complaints<'_>) -> AttrDetails {
    let fields = &event.sample;
    let mut details = AttrDetails::default();
    if let Some(bytes) = &event.stack_bytes {
        // perf_copy_attr(), kernel/events/core.c
        let good =
            bytes.is_multiple_of(8) && **bytes > 0 && fields.contains(&SampleField::StackUser);
        complaints.require(good, bytes.location(), || {
            format!(
                "found {} bytes, expected a multiple of 8, and `stack-user` in `sample`",
                **bytes
            )
        });
    }
    if fields.contains(&SampleField::RegsUser) {
        details.regs_user = REGISTERS;
    }
    if fields.contains(&SampleField::StackUser) {
        details.stack_user = event
            .stack_bytes
            .as_ref()
            .map_or(STACK_BYTES, |it| (**it).into());
    }
    if event.exclude_callchain_kernel {
        details.set |= flag::EXCLUDE_CALLCHAIN_KERNEL;
    }
    details
}

fn sample_bits(fields: &[SampleField]) -> u64 {
    fields.iter().fold(0, |bits, field| {
        bits | match field {
            SampleField::Ip => SAMPLE_IP,
            SampleField::Callchain => SAMPLE_CALLCHAIN,
            SampleField::Period => SAMPLE_PERIOD,
            SampleField::Raw => SAMPLE_RAW,
            SampleField::RegsUser => SAMPLE_REGS_USER,
            SampleField::StackUser => SAMPLE_STACK_USER,
        }
    })
}

/// The index of the event whose ring is used: an earlier event with a ring of its own.
fn output_to(
    event: &PerfEvent,
    before: &[EventSpec],
    complaints: &mut Complaints<'_>,
) -> Option<u32> {
    let name = event.output_to.as_ref()?;
    let index = before
        .iter()
        .position(|other| other.name == **name && other.output_to.is_none());
    if index.is_none() {
        complaints.add(
            name.location(),
            format!(
                "found `{}`, expected the name of an earlier event with a ring of its own",
                **name
            ),
        );
    }
    index.and_then(|index| u32::try_from(index).ok())
}
