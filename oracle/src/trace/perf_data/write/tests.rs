//! What is written is read again, by the reader.

use unwindlab_abi::message::{EventAnnounce, RingAnnounce, ThreadAnnounce};
use unwindlab_abi::plan::Tracing;

use super::*;
use crate::trace::Trace;
use crate::trace::fixtures::debian_7_2;
use crate::trace::fixtures::encoder::{Ids, deferred, sample};
use crate::trace::perf_data::{Limits, PerfData};
use crate::trace::record::sample_id::{CALLCHAIN, CPU, TIME};
use crate::trace::recording::RingBytes;

const TRACK: u64 = TID | TIME | CPU | IDENTIFIER;
const NMI: u64 = TRACK | CALLCHAIN;

/// Two CPUs, on each of which an event asks and another one receives.
fn recording() -> Recording {
    let spec = |name: &str, sample_type| EventSpec {
        sample_type,
        ..EventSpec::blank(name, EventSource::Dummy)
    };
    let track = EventSpec {
        defer_output: true,
        task: true,
        ..spec("track", TRACK)
    };
    let nmi = EventSpec {
        defer_callchain: true,
        source: EventSource::Tracepoint {
            system: "nmi".into(),
            name: "nmi_handler".into(),
        },
        ..spec("nmi:nmi_handler", NMI)
    };
    let mut recording = Recording {
        release: "7.3.4".into(),
        vcpus: 2,
        tracing: Some(Tracing {
            ring_pages: 1,
            events: vec![track, nmi],
        }),
        threads: vec![ThreadAnnounce {
            thread: 0,
            pid: 7,
            tid: 8,
            ..debian_7_2().threads[0].clone()
        }],
        ..Recording::default()
    };
    for cpu in 0..2 {
        recording.rings.push(RingAnnounce {
            ring: cpu,
            cpu,
            control_page: 0,
            data_pages: Vec::new(),
            backward: false,
        });
        for spec in 0..2 {
            let id = u64::from(10 * (spec + 1) + cpu);
            let ring = cpu;
            recording.events.push(EventAnnounce {
                spec,
                cpu,
                id,
                ring,
            });
        }
        let cookie = 3 << 32 | u64::from(cpu + 1);
        let chain = [(-640_i64).cast_unsigned(), cookie];
        let ids = |spec: u32, time| Ids {
            identifier: u64::from(10 * (spec + 1) + cpu),
            pid: 7,
            tid: 8 + cpu,
            time: time - u64::from(cpu),
            cpu,
            ..Ids::default()
        };
        let asked = sample(NMI, &ids(1, 100), &chain, &[]);
        let answered = deferred(cookie, &[0x40_1000], TRACK, &ids(0, 200));
        recording.ring_bytes.push(RingBytes {
            ring: cpu,
            bytes: [asked, answered].concat(),
            ..RingBytes::default()
        });
    }
    recording
}

#[test]
fn what_is_written_is_read_again() {
    let recording = recording();
    let program = MappedProgram {
        path: "/somewhere/workload".into(),
        start: 0x40_0000,
        len: 0x1000,
        offset: 0x1000,
    };
    let bytes = write(&recording, Some(&program)).unwrap();
    let data = PerfData::read(&bytes, Limits::default()).unwrap();
    let trace = Trace::decode(&recording);
    assert_eq!(trace.corrupt, [""; 0]);
    assert_eq!((data.cut.as_ref(), data.left_out.len()), (None, 0));
    assert_eq!(
        (data.trace.release.as_str(), data.trace.vcpus),
        ("7.3.4", 2)
    );
    let told = |trace: &Trace| {
        let events = trace.events.iter();
        let id = |at: Option<usize>| at.map(|at| trace.session[at].id);
        events
            .map(|it| (it.cpu, it.time, id(it.event), it.kind.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(data.trace.events.len(), 4);
    assert_eq!(told(&data.trace), told(&trace));
    assert!(data.trace.recorded.unwrap().every_cpu);
    let path = program.path.as_bytes();
    assert!(bytes.windows(path.len()).any(|it| it == path));
    let long = MappedProgram {
        path: "x".repeat(1 << 16),
        ..program
    };
    assert_eq!(write(&recording, Some(&long)), Err(NoPerfData::LongPath));
}

#[test]
fn what_perf_would_not_open_is_not_written() {
    assert_eq!(
        write(&Recording::default(), None),
        Err(NoPerfData::NoEvents)
    );
    let with = |change: &dyn Fn(&mut EventSpec)| {
        let mut recording = recording();
        change(&mut recording.tracing.as_mut().unwrap().events[0]);
        write(&recording, None).map(drop)
    };
    assert_eq!(
        with(&|it| it.sample_type &= !IDENTIFIER),
        Err(NoPerfData::Ambiguous)
    );
    assert_eq!(
        with(&|it| it.details.clear = flag::SAMPLE_ID_ALL),
        Err(NoPerfData::NoTrailer)
    );
}

/// What an event was opened with comes back, as far as a file has room for it.
#[test]
fn what_an_event_counts_and_how_is_read_again() {
    for source in [
        EventSource::Hardware(3),
        EventSource::Software(2),
        EventSource::Dummy,
    ] {
        let mut recording = recording();
        let spec = &mut recording.tracing.as_mut().unwrap().events[0];
        spec.source = source;
        spec.mmap = true;
        spec.max_stack = 127;
        spec.details.set = flag::SAMPLE_ID_ALL | flag::EXCLUDE_CALLCHAIN_KERNEL;
        spec.details.read_format = 4;
        let bytes = write(&recording, None).unwrap();
        let data = PerfData::read(&bytes, Limits::default()).unwrap();
        let read = &data.trace.tracing.as_ref().unwrap().events[0];
        let spec = &recording.tracing.as_ref().unwrap().events[0];
        assert_eq!(read.source, spec.source);
        assert_eq!((read.mmap, read.task), (true, true));
        assert!(read.defer_output && !read.defer_callchain);
        assert_eq!(read.max_stack, 127);
        assert_eq!(read.details.read_format, 4);
        let kernel = flag::EXCLUDE_CALLCHAIN_KERNEL;
        assert_eq!(read.details.set & kernel, kernel);
        assert_eq!(read.details.clear, 0);
    }
}

#[test]
fn events_of_one_sample_type_need_no_identifier() {
    let mut recording = recording();
    for spec in &mut recording.tracing.as_mut().unwrap().events {
        spec.sample_type = TID | TIME | CPU;
    }
    assert!(write(&recording, None).is_ok());
}

/// A name that perf makes up has the task in its trailer, where the sample type has one.
#[test]
fn names_of_tasks_are_made_up_as_perf_does() {
    let written = |sample_type| {
        let mut recording = recording();
        for spec in &mut recording.tracing.as_mut().unwrap().events {
            spec.sample_type = sample_type;
        }
        let bytes = write(&recording, None).unwrap();
        let text = b"workload\0";
        let at = bytes.windows(text.len()).position(|it| it == text).unwrap();
        let size = u16::from_le_bytes([bytes[at - 10], bytes[at - 9]]);
        let ends = at - 16 + usize::from(size);
        bytes[at + 16..ends].to_vec()
    };
    let task = [7_u32, 8].map(u32::to_le_bytes).concat();
    let trailer = |rest: usize| [task.clone(), vec![0; rest]].concat();
    assert_eq!(written(TID | TIME | CPU), trailer(16));
    assert_eq!(written(TID), trailer(0));
    assert_eq!(written(TIME | CPU), vec![0; 16]);
    assert_eq!(written(0), [0_u8; 0]);
    assert_eq!(written(TID | 1 << 63), [0_u8; 0], "of no known trailer");
}
