//! Whole recordings: merging, telling events apart, and what is said about nonsense.

use proptest::collection::vec;
use proptest::prelude::*;
use unwindlab_abi::message::EventAnnounce;
use unwindlab_abi::plan::{EventSource, EventSpec, Tracing};

use super::*;
use crate::trace::fixtures::encoder::{self, Body, Ids};
use crate::trace::record::sample_id::*;

const BITS: u64 = IDENTIFIER | TID | TIME;

pub(crate) fn spec(name: &str, sample_type: u64) -> EventSpec {
    EventSpec {
        sample_type,
        task: true,
        comm: true,
        mmap: true,
        context_switch: true,
        ..EventSpec::blank(name, EventSource::Dummy)
    }
}

/// A recording of one event per spec and ring, with ids 100 * ring + spec.
fn recording(specs: Vec<EventSpec>, rings: Vec<Vec<u8>>) -> Recording {
    let mut recording = Recording::default();
    for (ring, bytes) in (0..).zip(rings) {
        let data_pages = vec![0x1000];
        let (cpu, control_page) = (ring, 0);
        recording.rings.push(RingAnnounce {
            ring,
            cpu,
            control_page,
            data_pages,
            backward: false,
        });
        for (spec, _) in (0..).zip(&specs) {
            let id = u64::from(100 * ring + spec);
            recording.events.push(EventAnnounce {
                spec,
                cpu,
                id,
                ring,
            });
        }
        recording.ring_bytes.push(RingBytes {
            ring,
            begin: 0,
            bytes,
            corrupt: None,
        });
    }
    recording.tracing = Some(Tracing {
        ring_pages: 1,
        events: specs,
    });
    recording
}

fn at(time: u64, identifier: u64) -> Ids {
    Ids {
        time,
        identifier,
        pid: 7,
        tid: 8,
        ..Ids::default()
    }
}

/// A switch record, which has no body.
fn switch(time: u64, identifier: u64) -> Vec<u8> {
    encoder::side_band(14, 0, Body::default(), BITS, &at(time, identifier))
}

fn order(trace: &Trace) -> Vec<(u32, usize)> {
    let order = trace.events.iter().map(|e| (e.ring, e.position));
    order.collect()
}

#[test]
fn rings_are_merged_by_time_then_cpu() {
    let ring0 = [10, 30, 50].map(|time| switch(time, 0)).concat();
    let ring1 = [10, 20, 60].map(|time| switch(time, 100)).concat();
    let trace = Trace::decode(&recording(vec![spec("a", BITS)], vec![ring0, ring1]));
    let expected = [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)];
    assert_eq!(order(&trace), expected);
    let first = &trace.events[0];
    assert_eq!(
        (first.event, first.pid, first.tid),
        (Some(0), Some(7), Some(8))
    );
    assert_eq!(trace.events[1].event, Some(1));
    assert_eq!((first.time, first.cpu, first.size), (Some(10), 0, 32));
    let indices: Vec<_> = trace.events.iter().map(|event| event.index).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
    assert!(trace.corrupt.is_empty());
}

#[test]
fn a_time_that_goes_backwards_does_not_reorder_its_ring() {
    // An NMI between taking the time and reserving space: 40 is written before 35.
    let ring0 = [10, 40, 35, 50].map(|time| switch(time, 0)).concat();
    let ring1 = [36, 41].map(|time| switch(time, 100)).concat();
    let trace = Trace::decode(&recording(vec![spec("a", BITS)], vec![ring0, ring1]));
    let expected = [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3)];
    assert_eq!(order(&trace), expected);
    assert!(trace.corrupt.is_empty());
}

#[test]
fn a_record_knows_where_it_is_in_its_ring() {
    let specs = vec![spec("a", BITS)];
    let first = [switch(1, 0), switch(3, 0)].concat();
    let len = switch(1, 0).len() as u64;
    let mut recording = recording(specs, vec![first, switch(2, 100)]);
    // The rings are announced in another order than they are merged in.
    recording.rings.reverse();
    recording.ring_bytes[0].begin = 4096;
    let trace = Trace::decode(&recording);
    let places = trace
        .events
        .iter()
        .map(|e| (e.ring_index, e.start, e.end()));
    assert_eq!(
        places.collect::<Vec<_>>(),
        [
            (1, 4096, 4096 + len),
            (0, 0, len),
            (1, 4096 + len, 4096 + 2 * len)
        ]
    );
}

#[test]
fn a_record_without_time_stays_behind_its_predecessor() {
    let timeless = IDENTIFIER | TID;
    let untimed = encoder::side_band(14, 0, Body::default(), timeless, &at(0, 1));
    let ring0 = [switch(20, 0), untimed, switch(40, 0)].concat();
    let ring1 = [10, 30].map(|time| switch(time, 100)).concat();
    let specs = vec![spec("a", BITS), spec("b", timeless)];
    let trace = Trace::decode(&recording(specs, vec![ring0, ring1]));
    assert_eq!(order(&trace), [(1, 0), (0, 0), (0, 1), (1, 1), (0, 2)]);
    assert_eq!(trace.events[2].time, None);
}

#[test]
fn the_identifier_tells_events_apart() {
    let sampling = BITS | IP | CALLCHAIN;
    let specs = vec![spec("tracking", BITS), spec("sampling", sampling)];
    let chain = [u64::MAX - 127, 1, 2];
    let ring = [
        encoder::sample(sampling, &at(1, 1), &chain, &[]),
        encoder::deferred(5, &[1, 2], BITS, &at(2, 0)),
        encoder::side_band(2, 0, Body::default().u64(1).u64(9), sampling, &at(3, 1)),
    ];
    let trace = Trace::decode(&recording(specs, vec![ring.concat()]));
    assert!(trace.corrupt.is_empty(), "{:?}", trace.corrupt);
    let events: Vec<_> = trace.events.iter().map(|event| event.event).collect();
    assert_eq!(events, [Some(1), Some(0), Some(1)]);
    let EventKind::Sample(sample) = &trace.events[0].kind else {
        panic!("{:?}", trace.events[0]);
    };
    assert_eq!(sample.chain.as_deref(), Some(&chain[..]));
    assert_eq!(trace.events[1].deferred_chain().expect("a D").cookie, 5);
    assert_eq!(trace.events[2].kind, EventKind::Lost { id: 1, lost: 9 });
}

#[test]
fn unknown_ids_are_reported_and_never_make_samples_up() {
    let sampling = BITS | IP;
    let specs = vec![spec("tracking", BITS), spec("sampling", sampling)];
    let ring = [
        encoder::sample(sampling, &at(1, 99), &[], &[]),
        encoder::deferred(5, &[1], BITS, &at(2, 99)),
    ];
    let trace = Trace::decode(&recording(specs, vec![ring.concat()]));
    assert_eq!(trace.events[0].kind, EventKind::Other { record_type: 9 });
    assert_eq!(trace.events[1].deferred_chain().expect("a D").cookie, 5);
    assert_eq!(trace.events[1].event, None);
    let expected = [
        "ring 0 (cpu 0): record 0: sample of an unknown event",
        "ring 0 (cpu 0): record 1: type 22 of an unknown event",
    ];
    assert_eq!(trace.corrupt, expected);
}

#[test]
fn a_bad_record_costs_only_itself() {
    let bad = encoder::record(9, 0, &Body::default().u64(0));
    let ring = [switch(1, 0), bad, switch(2, 0)].concat();
    let trace = Trace::decode(&recording(vec![spec("a", BITS)], vec![ring]));
    assert_eq!(trace.events.len(), 3);
    assert_eq!(trace.events[1].kind, EventKind::Other { record_type: 9 });
    let expected = ["ring 0 (cpu 0): record 1: sample ends before its fields do"];
    assert_eq!(trace.corrupt, expected);
}

#[test]
fn what_the_ring_reader_said_is_passed_on() {
    let mut recording = recording(vec![spec("a", BITS)], vec![switch(1, 0)]);
    recording.ring_bytes[0].corrupt = Some("head behind".to_owned());
    let trace = Trace::decode(&recording);
    assert_eq!(trace.events.len(), 1);
    assert_eq!(trace.corrupt, ["ring 0 (cpu 0): head behind"]);
}

#[test]
fn many_complaints_are_counted() {
    let bad = encoder::record(9, 0, &Body::default().u64(0));
    let ring = bad.repeat(100);
    let trace = Trace::decode(&recording(vec![spec("a", BITS)], vec![ring]));
    assert_eq!(trace.events.len(), 100);
    assert_eq!(trace.corrupt.len(), MAX_COMPLAINTS + 1);
    let last = trace.corrupt.last().expect("not empty");
    assert!(last.ends_with(": 92 more like these"), "{last}");
}

#[test]
fn rings_that_cannot_be_decoded_say_why() {
    let one = |specs| Trace::decode(&recording(specs, vec![switch(1, 0)])).corrupt;
    let corrupt = one(vec![spec("a", BITS), spec("b", TID)]);
    assert!(corrupt[0].contains("PERF_SAMPLE_IDENTIFIER"), "{corrupt:?}");
    let corrupt = one(vec![spec("a", BITS | 1 << 11)]);
    assert!(
        corrupt[0].contains("event a: sample_type bits 0x800"),
        "{corrupt:?}"
    );

    let mut unknown = recording(vec![spec("a", BITS)], vec![switch(1, 0)]);
    unknown.ring_bytes[0].ring = 9;
    assert_eq!(
        Trace::decode(&unknown).corrupt,
        ["ring 9: was never announced"]
    );

    let mut no_spec = recording(vec![spec("a", BITS)], vec![switch(1, 0)]);
    no_spec.events[0].spec = 4;
    let corrupt = Trace::decode(&no_spec).corrupt;
    assert!(corrupt[0].contains("event 0 names spec 4"), "{corrupt:?}");

    let mut no_events = recording(vec![spec("a", BITS)], vec![switch(1, 0)]);
    no_events.events.clear();
    let corrupt = Trace::decode(&no_events).corrupt;
    assert_eq!(corrupt, ["ring 0 (cpu 0): no event was announced for it"]);
}

#[test]
fn log_lines_come_from_both_places() {
    let recording = Recording {
        kernel_log: "one\n\ntwo\n".to_owned(),
        console: "three\r\nfour".to_owned(),
        ..Recording::default()
    };
    assert_eq!(
        Trace::decode(&recording).log,
        ["one", "two", "three", "four"]
    );
}

proptest! {
    /// Bytes of any kind, whole records of nonsense among them, in rings of mixed events.
    #[test]
    fn any_bytes_are_survived(rings in vec(vec(any_piece(), 0..40), 1..4), mixed: bool) {
        let other = if mixed { BITS | CALLCHAIN | RAW } else { BITS };
        let specs = vec![spec("a", BITS), spec("b", other)];
        let rings = rings.into_iter().map(|pieces| pieces.concat()).collect();
        let trace = Trace::decode(&recording(specs, rings));
        for (index, event) in trace.events.iter().enumerate() {
            prop_assert_eq!(event.index, index);
        }
        for ring in &trace.rings {
            let of_ring = trace.events.iter().filter(|event| event.ring == ring.ring);
            for (position, event) in of_ring.enumerate() {
                prop_assert_eq!(event.position, position);
            }
        }
    }

    /// Times that only grow make a merge a sort.
    #[test]
    fn merging_honest_times_sorts_them(mut times in vec(vec(0_u64..1000, 0..50), 1..5)) {
        let mut rings = Vec::new();
        for (ring, times) in (0_u64..).zip(&mut times) {
            times.sort_unstable();
            rings.push(times.iter().flat_map(|&time| switch(time, 100 * ring)).collect());
        }
        let trace = Trace::decode(&recording(vec![spec("a", BITS)], rings));
        let count: usize = times.iter().map(Vec::len).sum();
        prop_assert_eq!(trace.events.len(), count);
        let keys = trace.events.iter().map(|e| (e.time, e.cpu, e.position));
        prop_assert!(keys.is_sorted());
        prop_assert!(trace.corrupt.is_empty());
    }
}

fn any_piece() -> impl Strategy<Value = Vec<u8>> {
    let body = vec(any::<u64>(), 0..12);
    let whole = (0_u32..24, any::<u16>(), body)
        .prop_map(|(kind, misc, body)| encoder::record(kind, misc, &Body::default().u64s(&body)));
    let known = (any::<u64>(), 0_u64..2).prop_map(|(time, id)| switch(time, id));
    prop_oneof![8 => whole, 4 => known, 1 => vec(any::<u8>(), 0..32)]
}
