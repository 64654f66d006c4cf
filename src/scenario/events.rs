//! The perf events of a scenario: the default ones, or those that it writes itself.

use unwindlab_abi::plan::{EventSource, EventSpec, Tracing};

use super::error::Complaints;
use super::inject;
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
const SAMPLE_IDENTIFIER: u64 = 1 << 16;

/// Fields of every record, by which records are merged and identified.
const SAMPLE_ALWAYS: u64 = SAMPLE_IDENTIFIER | SAMPLE_TID | SAMPLE_TIME | SAMPLE_CPU;

/// Software and hardware events by perf's names (`enum perf_sw_ids`, `enum perf_hw_id`).
const NAMED: &[(&str, EventSource)] = &[
    ("dummy", EventSource::Dummy),
    ("cpu-clock", EventSource::Software(0)),
    ("task-clock", EventSource::Software(1)),
    ("page-faults", EventSource::Software(2)),
    ("context-switches", EventSource::Software(3)),
    ("cpu-migrations", EventSource::Software(4)),
    ("cycles", EventSource::Hardware(0)),
    ("instructions", EventSource::Hardware(1)),
];

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
        None => default_events(scenario),
        Some(written) => written_events(written, symbols, complaints),
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
        name: name.to_owned(),
        source,
        sample_period: 0,
        sample_type: SAMPLE_ALWAYS,
        max_stack: 0,
        defer_callchain: false,
        defer_output: false,
        task: false,
        comm: false,
        mmap: false,
        context_switch: false,
        inherit: false,
        exclude_callchain_user: false,
        output_to: None,
    }
}

fn written_events(
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
        let source = source(&event.event, symbols, complaints);
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
            ..blank(&event.name, source)
        });
    }
    events
}

fn sample_bits(fields: &[SampleField]) -> u64 {
    fields.iter().fold(0, |bits, field| {
        bits | match field {
            SampleField::Ip => SAMPLE_IP,
            SampleField::Callchain => SAMPLE_CALLCHAIN,
            SampleField::Period => SAMPLE_PERIOD,
            SampleField::Raw => SAMPLE_RAW,
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

fn source(
    name: &At<String>,
    symbols: Option<&dyn KernelSymbols>,
    complaints: &mut Complaints<'_>,
) -> EventSource {
    if let Some((_, source)) = NAMED.iter().find(|(known, _)| *known == name.as_str()) {
        return source.clone();
    }
    let is_word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    match name.split_once(':') {
        Some((kind @ ("kprobe" | "kretprobe"), function)) if is_word(function) => {
            EventSource::Probe {
                function: function.to_owned(),
                at_return: kind == "kretprobe",
            }
        }
        Some(("breakpoint", function)) if is_word(function) => {
            let address = symbols.and_then(|symbols| {
                let address = inject::places::symbol_address(function, symbols);
                complaints.accept(name.location(), address)
            });
            EventSource::Breakpoint {
                address: address.unwrap_or_default(),
            }
        }
        Some((system, event)) if is_word(system) && is_word(event) => tracepoint(system, event),
        _ => {
            let names: Vec<_> = NAMED.iter().map(|(name, _)| format!("`{name}`")).collect();
            complaints.add(
                name.location(),
                format!(
                    "found event `{}`, expected a tracepoint such as `nmi:nmi_handler`, a \
                     `kprobe:FUNCTION`, `kretprobe:FUNCTION` or `breakpoint:FUNCTION`, or one of {}",
                    name.escape_debug(),
                    names.join(", ")
                ),
            );
            EventSource::Dummy
        }
    }
}
