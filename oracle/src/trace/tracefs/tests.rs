//! Sub-buffers as a kernel writes them, and as none does.

use unwindlab_abi::tracefs::{
    ChurnKind, MAX_INSTANCES, PART_BYTES, TracefsBuffer, TracefsChurn, TracefsFormat,
    TracefsInstance, TracefsPart, TracefsPlan,
};

use super::*;
use crate::trace::flat_memory::Flat;
use crate::trace::ring::GuestRead;

const COMMON: &str = "format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:u64 cookie;\toffset:8;\tsize:8;\tsigned:0;
";

fn log() -> TracefsLog {
    let mut log = TracefsLog::of(TracefsPlan {
        instances: vec![TracefsInstance {
            name: "a".into(),
            events: Vec::new(),
            buffer_kib: 8,
        }],
        churn: None,
    });
    let more = "\tfield:unsigned int nr;\toffset:16;\tsize:4;\tsigned:0;
\tfield:unsigned int size;\toffset:20;\tsize:4;\tsigned:0;
\tfield:unsigned long caller[8];\toffset:24;\tsize:64;\tsigned:0;
";
    let text = "\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;\n";
    for (event, id, more) in [
        (REQUEST_EVENT, 20, ""),
        (STACK_EVENT, 21, more),
        (MARKER_EVENT, 22, text),
        ("raw_syscalls:sys_enter", 30, ""),
        ("raw_syscalls:sys_exit", 31, ""),
    ] {
        assert!(log.add_format(TracefsFormat {
            event: event.into(),
            text: format!("name: {event}\nID: {id}\n{COMMON}{more}\nprint fmt: \"\"\n"),
        }));
    }
    log
}

/// The common part of an event, then these words.
fn body(id: u16, tid: u32, words: &[u64]) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(tid.to_le_bytes());
    bytes.extend(words.iter().flat_map(|it| it.to_le_bytes()));
    bytes
}

/// An event: its word, its length where it is long, its body.
fn event(delta: u32, body: &[u8]) -> Vec<u8> {
    let words = u32::try_from(body.len()).unwrap() / 4;
    let mut bytes = Vec::new();
    if words <= 28 {
        bytes.extend((words | delta << 5).to_le_bytes());
    } else {
        bytes.extend((delta << 5).to_le_bytes());
        bytes.extend((words * 4 + 4).to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

fn page(time: u64, events: &[Vec<u8>]) -> Vec<u8> {
    let data = events.concat();
    let mut bytes = time.to_le_bytes().to_vec();
    bytes.extend((data.len() as u64 | 1 << 31).to_le_bytes());
    bytes.extend(data);
    bytes.resize(SUB_BUFFER, 0);
    bytes
}

fn decoded(bytes: Vec<u8>) -> (TracefsTrace, Vec<String>) {
    let mut log = log();
    let (instance, life, cpu) = (0, 0, 1);
    assert!(log.add(TracefsPart::Pages {
        instance,
        life,
        cpu,
        bytes
    }));
    decode(&log)
}

#[test]
fn events_have_their_times_tasks_and_values() {
    let frames: Vec<u64> = (0..30).map(|n| 0x40_0000 + n).collect();
    let mut words = vec![9, 30 | 30 << 32];
    words.extend(&frames);
    let extend = [30_u32 | 5 << 5, 1].map(u32::to_le_bytes).concat();
    let gap = [29_u32 | 1 << 5, 8, 0].map(u32::to_le_bytes).concat();
    let bytes = page(
        1000,
        &[
            event(1, &body(77, 5, &[0])),
            event(2, &body(20, 5, &[9])),
            extend,
            gap,
            event(3, &body(21, 5, &words)),
            29_u32.to_le_bytes().to_vec(),
            vec![0xff; 8],
        ],
    );
    let (trace, complaints) = decoded(bytes);
    assert!(complaints.is_empty(), "{complaints:?}");
    let [other, request, stack] = &trace.events[..] else {
        panic!("{:?}", trace.events);
    };
    assert_eq!(
        (other.time, &other.kind),
        (1001, &TracefsKind::Other { id: 77 })
    );
    assert_eq!((request.time, request.tid, request.cpu), (1003, 5, 1));
    assert_eq!(
        request.kind,
        TracefsKind::Request {
            cookie: 9,
            asker: None
        }
    );
    assert_eq!(stack.time, 1003 + (1 << 27) + 5 + 1 + 3);
    let (cookie, nr) = (9, 30);
    assert_eq!(stack.kind, TracefsKind::Stack { cookie, nr, frames });
}

#[test]
fn a_request_is_of_the_event_of_a_system_call_that_it_follows() {
    let [enter, exit, nmi] = [30, 31, 77].map(|id| event(1, &body(id, 5, &[0])));
    let asks = event(1, &body(20, 5, &[9]));
    let stack = event(1, &body(21, 5, &[9, 0]));
    let of_another = event(1, &body(20, 6, &[9]));
    let askers = |pages: &[&[&Vec<u8>]]| {
        let pages = pages.iter().map(|events| {
            let events: Vec<_> = events.iter().copied().cloned().collect();
            page(1000, &events)
        });
        let (trace, complaints) = decoded(pages.flatten().collect());
        assert!(complaints.is_empty(), "{complaints:?}");
        let kinds = trace.events.into_iter().map(|it| it.kind);
        let asker = |it| match it {
            TracefsKind::Request { asker, .. } => Some(asker),
            _ => None,
        };
        kinds.filter_map(asker).collect::<Vec<_>>()
    };
    let [of_enter, of_exit] = [Some(Asker::SyscallEnter), Some(Asker::SyscallExit)];
    assert_eq!(
        askers(&[&[&enter, &asks, &exit, &asks]]),
        [of_enter, of_exit]
    );
    // An answer makes no request.
    assert_eq!(askers(&[&[&enter, &stack, &asks]]), [of_enter]);
    // The NMI's comes first; then it may be of either.
    assert_eq!(askers(&[&[&enter, &nmi, &asks, &asks]]), [None, None]);
    assert_eq!(askers(&[&[&enter, &asks, &asks]]), [of_enter, None]);
    assert_eq!(askers(&[&[&enter, &of_another, &asks]]), [None, None]);
    // What came between two sub-buffers may be lost.
    assert_eq!(askers(&[&[&enter], &[&asks]]), [None]);
}

#[test]
fn only_the_agents_texts_say_that_the_option_was_cleared() {
    let marker = |text: &str| {
        let mut body = body(22, 5, &[0]);
        body.extend(text.as_bytes());
        body.resize(body.len().next_multiple_of(4), 0);
        event(1, &body)
    };
    let [may_end, cleared] = [MAY_END, CLEARED].map(|it| format!("{it}\n"));
    let texts = [may_end, cleared, "hello\n".to_owned(), String::new()];
    let (trace, complaints) = decoded(page(1000, &texts.map(|it| marker(&it))));
    assert!(complaints.is_empty(), "{complaints:?}");
    let kinds: Vec<_> = trace.events.into_iter().map(|it| it.kind).collect();
    let other = TracefsKind::Other { id: 22 };
    assert_eq!(
        kinds,
        [
            TracefsKind::MayEnd,
            TracefsKind::Cleared,
            other.clone(),
            other
        ]
    );
}

#[test]
fn what_makes_no_sense_is_a_complaint() {
    let good = event(1, &body(20, 5, &[9]));
    let beyond = {
        let mut bytes = page(0, std::slice::from_ref(&good));
        bytes[8..16].copy_from_slice(&0xf_ffff_u64.to_le_bytes());
        bytes
    };
    let too_long = page(
        0,
        &[good.clone(), [0_u32, 9999].map(u32::to_le_bytes).concat()],
    );
    let no_length = page(0, &[good.clone(), 0_u32.to_le_bytes().to_vec()]);
    let short = page(0, &[event(1, &body(20, 5, &[]))]);
    let many_frames = page(
        0,
        &[event(1, &body(21, 5, &[9, 1 | u64::from(u32::MAX) << 32]))],
    );
    for (bytes, kept) in [
        (beyond, 0),
        (too_long, 1),
        (no_length, 1),
        (short, 0),
        (many_frames, 0),
        (vec![0; 100], 0),
    ] {
        let (trace, complaints) = decoded(bytes);
        assert_eq!(
            (trace.events.len(), complaints.len()),
            (kept, 1),
            "{complaints:?}"
        );
    }
}

#[test]
fn random_bytes_do_not_panic() {
    let mut random = 7_u64;
    for _ in 0..2000 {
        let mut bytes = page(
            5,
            &[
                event(1, &body(20, 5, &[9])),
                event(1, &body(21, 5, &[9, 0])),
            ],
        );
        for _ in 0..8 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = (random >> 33) as usize % 80;
            bytes[at] = random.to_le_bytes()[3];
        }
        let (trace, _) = decoded(bytes);
        assert!(trace.events.len() < 1100);
    }
}

#[test]
fn hostile_formats_are_none() {
    for text in [
        "",
        "ID: 70000\n",
        "ID: 1\n\tfield:u64 x;\n",
        "ID: 1\n\tfield:x;\toffset:-1;",
    ] {
        assert_eq!(Format::parse(text), None, "{text}");
    }
    let far = format!("ID: 1\n\tfield:u64 x;\toffset:{};\tsize:8;\n", usize::MAX);
    let far = Format::parse(&far).unwrap();
    assert_eq!(
        (far.value(&[0; 64], "x"), far.words(&[0; 64], "x", 2)),
        (None, None)
    );
    assert_eq!(far.words(&[0; 64], "x", usize::MAX), None);
}

#[test]
fn an_instance_made_again_is_another_client() {
    let mut log = log();
    for life in [0, 2, 2] {
        let (instance, cpu) = (0, 0);
        let bytes = page(0, &[event(1, &body(20, 5, &[9]))]);
        assert!(log.add(TracefsPart::Pages {
            instance,
            life,
            cpu,
            bytes
        }));
    }
    let (instance, life, events) = (0, 2, 3);
    assert!(log.add(TracefsPart::Lost {
        instance,
        life,
        events
    }));
    let (trace, complaints) = decode(&log);
    assert!(complaints.is_empty());
    let named: Vec<_> = trace
        .clients
        .iter()
        .map(|it| (it.name.as_str(), it.lost))
        .collect();
    // Of the first nobody said that this was all.
    assert_eq!(named, [("a", u64::MAX), ("a.2", 3)]);
    assert_eq!(
        trace.events.iter().map(|it| it.client).collect::<Vec<_>>(),
        [0, 1, 1]
    );
}

/// A guest that hangs sends nothing of its instances, though they were given cookies.
#[test]
fn of_an_instance_that_was_not_read_nothing_is_known() {
    let mut log = log();
    let lost = |log: &TracefsLog| decode(log).0.clients[0].lost;
    assert_eq!(lost(&log), u64::MAX);
    let (instance, life, events) = (0, 0, 0);
    assert!(log.add(TracefsPart::Lost {
        instance,
        life,
        events
    }));
    assert_eq!(lost(&log), 0);
}

/// Guest memory with these sub-buffers from address 0 on, and where they are.
fn mapped(sub_buffers: &[Vec<u8>]) -> (Flat, TracefsBuffer) {
    let pages = (0..sub_buffers.len()).map(|number| (number * SUB_BUFFER) as u64);
    let buffer = TracefsBuffer {
        instance: 0,
        cpu: 1,
        pages: pages.collect(),
    };
    (Flat(sub_buffers.concat()), buffer)
}

/// From when on a buffer may have lost events.
fn full_from((memory, buffer): &(Flat, TracefsBuffer)) -> Option<u64> {
    let mut log = log();
    log.held = TracefsHeld::read(memory, std::slice::from_ref(buffer), &[]).unwrap();
    decode(&log).0.clients[0].full_from
}

/// The times of events behind a position, and how many were lost.
fn behind((memory, buffer): &(Flat, TracefsBuffer), position: Position) -> (Vec<u64>, u64) {
    let mut log = log();
    log.held = TracefsHeld::read(memory, std::slice::from_ref(buffer), &[position]).unwrap();
    let (trace, complaints) = decode(&log);
    assert!(complaints.is_empty(), "{complaints:?}");
    let times = trace.events.iter().map(|it| it.time).collect();
    (times, trace.clients[0].lost)
}

#[test]
fn a_mapped_buffer_is_read_from_where_it_was_before() {
    let request = || event(1, &body(20, 5, &[9]));
    let empty = || vec![0; SUB_BUFFER];
    let before = mapped(&[page(100, &[request()]), empty(), empty()]);
    let now = mapped(&[
        page(100, &[request(), request(), request()]),
        page(200, &[request()]),
        empty(),
    ]);
    let start = Position::default();
    assert_eq!(behind(&before, start), (vec![101], 0));
    assert_eq!(behind(&now, start), (vec![101, 102, 103, 201], 0));
    let was = Position::of(&before.0, &before.1).unwrap();
    assert_eq!(behind(&now, was), (vec![102, 103, 201], 0));
    let is = Position::of(&now.0, &now.1).unwrap();
    assert_eq!(behind(&now, is), (vec![], 0));
}

/// The witness compares how far a buffer was written with where an event is.
#[test]
fn an_event_has_a_place_in_its_buffer_as_a_position_has() {
    let request = || event(1, &body(20, 5, &[9]));
    let sub_buffers = [vec![request(); 2], vec![request(); 3], Vec::new()];
    let (memory, buffer) = mapped(&sub_buffers.map(|it| page(100, &it)));
    let log = |behind: &[Position]| TracefsLog {
        held: TracefsHeld::read(&memory, std::slice::from_ref(&buffer), behind).unwrap(),
        ..log()
    };
    let places = |behind: &[Position]| {
        let events = decode(&log(behind)).0.events.into_iter();
        events.map(|it| (it.start, it.size)).collect::<Vec<_>>()
    };
    let all = [(0, 20), (20, 20), (4096, 20), (4116, 20), (4136, 20)];
    assert_eq!(places(&[]), all);
    assert_eq!(places(&[Position::at(1, 20)]), all[3..]);
    let words = Position::words(&buffer);
    let word = |at: usize| memory.load(words[at]).unwrap();
    let now = Position::of(&memory, &buffer).unwrap();
    assert_eq!((now, word(2)), (Position::at(1, word(1)), 1 << 31));
    assert_eq!(now.offset(), 4156);
}

/// A kernel that has no room drops events without a trace of it in the sub-buffers.
#[test]
fn of_a_full_buffer_nobody_knows_what_was_lost() {
    let full = vec![page(100, &[event(1, &body(20, 5, &[9]))]); 2];
    let full = mapped(&full);
    assert_eq!(
        behind(&full, Position::default()),
        (vec![101, 101], u64::MAX)
    );
    assert_eq!(full_from(&full), Some(101));
    let with_room = mapped(&[
        page(100, &[event(1, &body(20, 5, &[9]))]),
        vec![0; SUB_BUFFER],
    ]);
    assert_eq!(full_from(&with_room), None);
    let mut log = log();
    let outside = TracefsBuffer {
        pages: vec![7 * SUB_BUFFER as u64],
        ..full.1
    };
    log.held = TracefsHeld::read(&full.0, &[outside], &[]).unwrap_or_default();
    assert_eq!(decode(&log).0.clients[0].lost, u64::MAX);
}

#[test]
fn an_absolute_time_keeps_the_bits_above_it() {
    let stamp = [31_u32 | 7 << 5, 2].map(u32::to_le_bytes).concat();
    let request = || event(1, &body(20, 5, &[9]));
    let (trace, complaints) = decoded(page(3 << 59 | 5, &[request(), stamp, request()]));
    assert_eq!(complaints, [""; 0]);
    let times: Vec<u64> = trace.events.iter().map(|it| it.time).collect();
    assert_eq!(times, [3 << 59 | 6, (3 << 59 | 2 << 27 | 7) + 1]);
    let positions: Vec<usize> = trace.events.iter().map(|it| it.position).collect();
    assert_eq!(positions, [0, 1]);
}

#[test]
fn behind_padding_without_a_length_nothing_is_read() {
    let request = || event(1, &body(20, 5, &[9]));
    let end = [29_u32, 4].map(u32::to_le_bytes).concat();
    let (trace, complaints) = decoded(page(5, &[request(), end, request()]));
    assert_eq!((trace.events.len(), complaints.len()), (1, 0));
}

#[test]
fn no_log_has_more_than_there_is_room_for() {
    let format = |length| TracefsFormat {
        event: "e".into(),
        text: "x".repeat(length),
    };
    let mut log = TracefsLog::default();
    assert!(!log.add_format(format(PART_BYTES + 1)));
    assert!((0..16).all(|_| log.add_format(format(PART_BYTES))));
    assert!(!log.add_format(format(1)));
    assert_eq!(log.formats.len(), 16);
    let most = MAX_INSTANCES * 4096;
    let lost = || TracefsPart::Lost {
        instance: 0,
        life: 0,
        events: 1,
    };
    assert!((0..most).all(|_| log.add(lost())));
    assert!(!log.add(lost()));
    assert_eq!(log.held.lost.len(), most);
}

#[test]
fn sub_buffers_of_no_instance_or_without_formats_are_a_complaint() {
    let pages = |instance| TracefsPart::Pages {
        instance,
        life: 0,
        cpu: 0,
        bytes: page(5, &[event(1, &body(20, 5, &[9]))]),
    };
    let mut unknown = log();
    assert!(unknown.add(pages(1)));
    let (trace, complaints) = decode(&unknown);
    assert_eq!(trace.events.len(), 0);
    assert_eq!(complaints, ["tracefs: instance 1 is not known"]);

    let mut without = log();
    without.formats.clear();
    assert_eq!(decode(&without).1, [""; 0]);
    assert!(without.add(pages(0)));
    assert_eq!(decode(&without).1, ["tracefs: no usable format files"]);
}

#[test]
fn of_many_complaints_the_first_are_kept_and_the_others_counted() {
    let complaints = |wrong: usize| decoded(vec![0xff; wrong * SUB_BUFFER]).1;
    assert_eq!(complaints(MAX_COMPLAINTS).len(), MAX_COMPLAINTS);
    let more = complaints(MAX_COMPLAINTS + 3);
    assert_eq!(more.len(), MAX_COMPLAINTS + 1);
    assert_eq!(more[MAX_COMPLAINTS], "tracefs: 3 more like these");
}

#[test]
fn an_instance_that_is_removed_ends_early() {
    let ends = |churn: Option<ChurnKind>| {
        let mut log = log();
        log.plan.churn = churn.map(|what| TracefsChurn {
            cpu: 0,
            period_us: 1,
            what,
        });
        let client = decode(&log).0.clients.remove(0);
        (client.cancels, client.ends_early)
    };
    assert_eq!(ends(None), (false, false));
    assert_eq!(ends(Some(ChurnKind::Option)), (true, false));
    assert_eq!(ends(Some(ChurnKind::Remove)), (true, true));
}
