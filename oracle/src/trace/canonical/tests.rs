//! The canonical form of small traces, written out.

use unwindlab_abi::message::{EventAnnounce, ExpectedStack, ThreadAnnounce, UserSymbol};
use unwindlab_abi::plan::{EventSource, EventSpec, Tracing};

use super::*;
use crate::trace::fixtures;
use crate::trace::model::{
    CONTEXT_KERNEL, CONTEXT_USER, CONTEXT_USER_DEFERRED, CallchainDeferred, Event, EventKind,
    Sample,
};

const HANDLER: u64 = 0xffff_ffff_8100_0000;
const EXC_NMI: u64 = 0xffff_ffff_8110_0000;
const ASM_EXC_NMI: u64 = 0xffff_ffff_8120_0000;
const END_REPEAT_NMI: u64 = 0xffff_ffff_8120_1000;
const GETPPID: u64 = 0xffff_ffff_8130_0000;
const SYSCALL: u64 = 0xffff_ffff_8140_0000;
const TIMER: u64 = 0xffff_ffff_8150_0000;
const FRED_NMI: u64 = 0xffff_ffff_8160_0000;
const FRED_ENTRY: u64 = 0xffff_ffff_8170_0000;
const FRED_FROM_KERNEL: u64 = 0xffff_ffff_8180_0000;

/// Every function is one MiB, except for the label behind asm_exc_nmi.
fn kernel(address: u64) -> Option<(String, u64)> {
    let names = [
        (HANDLER, "nmi_handle.constprop.0"),
        (EXC_NMI, "exc_nmi"),
        (ASM_EXC_NMI, "asm_exc_nmi"),
        (END_REPEAT_NMI, "end_repeat_nmi"),
        (GETPPID, "__x64_sys_getppid"),
        (SYSCALL, "do_syscall_64"),
        (TIMER, "hrtimer_interrupt.isra.0"),
        (FRED_NMI, "fred_exc_nmi"),
        (FRED_FROM_KERNEL, "fred_entry_from_kernel"),
        (FRED_ENTRY, "asm_fred_entrypoint_kernel"),
    ];
    let inside = |&&(start, _): &&(u64, &str)| (start..start + 0x10_0000).contains(&address);
    let (start, name) = names.iter().filter(inside).max_by_key(|at| at.0)?;
    Some(((*name).to_owned(), address - start))
}

const LEAF: u64 = 0x40_1000;
const AFTER_SYSCALL: u64 = 0x40_1020;
const DESCEND: u64 = 0x40_2000;
const ROOT: u64 = 0x40_3000;

fn thread(thread: u32, tid: u32, frames: u32) -> ThreadAnnounce {
    ThreadAnnounce {
        thread,
        pid: 50,
        tid,
        stack: ExpectedStack {
            leaf_start: LEAF + 8,
            leaf_end: LEAF + 0x40,
            syscall_return: AFTER_SYSCALL,
            callers: vec![(DESCEND + 0x12, frames - 2), (ROOT + 9, 1)],
        },
    }
}

fn symbol(name: &str, start: u64, end: u64) -> UserSymbol {
    let name = name.to_owned();
    UserSymbol { name, start, end }
}

fn spec(name: &str, sample_period: u64) -> EventSpec {
    EventSpec {
        sample_period,
        defer_callchain: sample_period > 0,
        defer_output: sample_period == 0,
        task: true,
        ..EventSpec::blank(name, EventSource::Dummy)
    }
}

fn session(trace: &mut Trace, specs: Vec<EventSpec>) {
    let (cpu, ring) = (0, 0);
    let announce = |(spec, _)| EventAnnounce {
        spec,
        cpu,
        id: u64::from(spec),
        ring,
    };
    trace.session = (0..).zip(&specs).map(announce).collect();
    trace.tracing = Some(Tracing {
        ring_pages: 1,
        events: specs,
    });
}

/// A trace of one tracking and one sampling event and two threads.
fn trace(events: Vec<(u32, EventKind)>) -> Trace {
    let mut trace = Trace {
        threads: vec![thread(0, 51, 12), thread(1, 52, 5)],
        user_symbols: vec![
            symbol("getppid_leaf", LEAF, LEAF + 0x40),
            symbol("getppid_return", AFTER_SYSCALL, AFTER_SYSCALL),
            symbol("descend", DESCEND, DESCEND + 0x20),
            symbol("root", ROOT, ROOT + 9),
        ],
        ..Trace::default()
    };
    session(&mut trace, vec![spec("tracking", 0), spec("clock", 1)]);
    let event = |(index, (tid, kind)): (usize, (u32, EventKind))| Event {
        index,
        ring: 0,
        cpu: 0,
        ring_index: 0,
        position: index,
        start: 0,
        time: Some(index as u64),
        event: Some(usize::from(matches!(kind, EventKind::Sample(_)))),
        pid: Some(if tid >= 50 { 50 } else { tid }),
        tid: Some(tid),
        misc: 0,
        size: 0,
        kind,
    };
    trace.events = events.into_iter().enumerate().map(event).collect();
    trace
}

fn sample(chain: &[u64]) -> EventKind {
    let chain = Some(chain.to_vec());
    EventKind::Sample(Sample {
        chain,
        ..Sample::default()
    })
}

/// The whole way from a real kernel's bytes; see fixtures/README.md.
#[test]
fn a_recorded_trace() {
    let trace = Trace::decode(&fixtures::debian_7_2());
    assert!(trace.corrupt.is_empty(), "{:?}", trace.corrupt);
    let text = canonical(&trace, SnapshotStyle::Events, &fixtures::debian_7_2_symbol);
    let expected = include_str!("../fixtures/debian-7.2/events.txt");
    assert_eq!(text, expected);
}

/// A sample by the tracepoint in the NMI handler.
fn nmi(entry: u64, interrupted: &[u64], cookie: u64) -> EventKind {
    let mut chain = vec![CONTEXT_KERNEL, HANDLER + 5, EXC_NMI + 6, entry + 7];
    chain.extend(interrupted);
    chain.extend([CONTEXT_USER_DEFERRED, cookie]);
    sample(&chain)
}

fn in_syscall(cookie: u64) -> EventKind {
    nmi(END_REPEAT_NMI, &[GETPPID, SYSCALL + 0x40], cookie)
}

fn in_user(cookie: u64) -> EventKind {
    nmi(ASM_EXC_NMI, &[], cookie)
}

fn deferred(cookie: u64, leaf: u64, descends: usize) -> EventKind {
    let mut ips = vec![CONTEXT_USER, leaf];
    ips.extend(vec![DESCEND + 0x12; descends]);
    ips.push(ROOT + 9);
    let nr = ips.len() as u64;
    EventKind::CallchainDeferred(CallchainDeferred { cookie, nr, ips })
}

fn exit(tid: u32) -> (u32, EventKind) {
    let (pid, ppid, ptid) = (50, 1, 1);
    let kind = EventKind::Exit {
        pid,
        ppid,
        tid,
        ptid,
    };
    (tid, kind)
}

fn show(trace: &Trace, style: SnapshotStyle) -> String {
    canonical(trace, style, &kernel)
}

#[test]
fn events_in_order() {
    let switch = EventKind::Switch {
        out: true,
        preempt: false,
        other: None,
    };
    let events = vec![
        (51, in_syscall(0xdead_0001)),
        (51, switch),
        (51, in_syscall(0xdead_0001)),
        (51, deferred(0xdead_0001, AFTER_SYSCALL, 10)),
        (52, in_user(0xbeef_0002)),
        (52, deferred(0xbeef_0002, LEAF + 0x30, 3)),
        (51, EventKind::Lost { id: 1, lost: 77 }),
        (51, EventKind::LostSamples { lost: 3 }),
        (0, nmi(END_REPEAT_NMI, &[TIMER + 3], 5)),
        exit(52),
        exit(51),
        exit(50),
        exit(99),
    ];
    let mut trace = trace(events);
    trace.corrupt = vec!["ring 0 (cpu 0): nonsense".to_owned()];
    let expected = "\
S t0 nmi@__x64_sys_getppid c0
S t0 nmi@__x64_sys_getppid c0
D t0 c0 [getppid_return, descend+0x12 x 10, root+0x9]
S t1 nmi@user c1
D t1 c1 [getppid_leaf+0x30, descend+0x12 x 3, root+0x9]
LOST
LOST-SAMPLES
S other nmi@hrtimer_interrupt c2
EXIT t0
EXIT t1
CORRUPT ring 0 (cpu 0): nonsense
";
    assert_eq!(show(&trace, SnapshotStyle::Events), expected);
}

#[test]
fn exits_before_the_end_keep_their_place() {
    let events = vec![exit(52), exit(51), (51, in_user(1)), exit(51)];
    let expected = "EXIT t1\nEXIT t0\nS t0 nmi@user c0\nEXIT t0\n";
    assert_eq!(show(&trace(events), SnapshotStyle::Events), expected);
}

#[test]
fn what_stands_in_place_of_a_cookie() {
    let inline = [CONTEXT_KERNEL, GETPPID, CONTEXT_USER, LEAF, DESCEND + 0x12];
    let events = vec![
        (51, sample(&inline)),
        (51, sample(&[CONTEXT_KERNEL, GETPPID])),
        (51, sample(&[CONTEXT_USER_DEFERRED])),
        (51, EventKind::Sample(Sample::default())),
        (
            51,
            sample(&[CONTEXT_KERNEL, 0x1234, CONTEXT_USER_DEFERRED, 1]),
        ),
    ];
    let expected = "\
S t0 clock@__x64_sys_getppid inline [getppid_leaf, descend+0x12]
S t0 clock@__x64_sys_getppid -
S t0 clock@user c?
S t0 clock@? -
S t0 clock@? c0
";
    assert_eq!(show(&trace(events), SnapshotStyle::Events), expected);
}

#[test]
fn nmi_entries() {
    let fred = [
        CONTEXT_KERNEL,
        HANDLER,
        FRED_NMI,
        FRED_FROM_KERNEL,
        FRED_ENTRY,
        TIMER,
    ];
    let fred_timer = [CONTEXT_KERNEL, TIMER, FRED_ENTRY, GETPPID];
    let cut = [CONTEXT_KERNEL, HANDLER, EXC_NMI];
    // The NMI struck in the entry of another one, after that had called exc_nmi.
    let nested = nmi(END_REPEAT_NMI, &[ASM_EXC_NMI + 3], 1);
    let events = vec![
        (51, sample(&fred)),
        (51, sample(&fred_timer)),
        (51, sample(&cut)),
        (51, nested),
    ];
    let expected = "\
S t0 nmi@hrtimer_interrupt -
S t0 clock@hrtimer_interrupt -
S t0 nmi@? -
S t0 nmi@asm_exc_nmi c0
";
    assert_eq!(show(&trace(events), SnapshotStyle::Events), expected);
}

#[test]
fn several_events_are_named() {
    let mut trace = trace(vec![(51, in_user(1)), (51, deferred(1, AFTER_SYSCALL, 1))]);
    let specs = ["tracking", "clock", "more"].map(|name| EventSpec {
        defer_output: true,
        ..spec(name, 1)
    });
    session(&mut trace, specs.to_vec());
    let expected = "\
S t0 nmi@user c0 (clock)
D t0 c0 [getppid_return, descend+0x12, root+0x9] (tracking)
";
    assert_eq!(show(&trace, SnapshotStyle::Events), expected);
}

#[test]
fn records_that_hold_less_than_they_say() {
    let (cookie, nr) = (1, 9);
    let ips = vec![AFTER_SYSCALL, 0x77];
    let kind = EventKind::CallchainDeferred(CallchainDeferred { cookie, nr, ips });
    let expected = "D t0 c0 [getppid_return, ?] nr=9\n";
    assert_eq!(
        show(&trace(vec![(51, kind)]), SnapshotStyle::Events),
        expected
    );
}

#[test]
fn tasks_without_a_tid_of_their_own() {
    let mut trace = trace(vec![
        (77, in_user(1)),
        (50, in_user(2)),
        (1, in_user(3)),
        (3, in_user(4)),
    ]);
    trace.threads = vec![thread(0, 0, 5)];
    let expected = "\
S t0 nmi@user c0
S agent nmi@user c1
S agent nmi@user c2
S other nmi@user c3
";
    assert_eq!(show(&trace, SnapshotStyle::Events), expected);
    trace.threads.push(thread(1, 0, 5));
    let text = show(&trace, SnapshotStyle::Events);
    assert!(text.starts_with("S t? nmi@user c0\nS agent "), "{text}");
}

#[test]
fn short_lived_threads_are_told_by_their_starter() {
    let fork = |ptid: u32, tid: u32| {
        let (pid, ppid) = (50, 50);
        let kind = EventKind::Fork {
            pid,
            ppid,
            tid,
            ptid,
        };
        (ptid, kind)
    };
    let events = vec![
        fork(62, 70),
        fork(61, 71),
        (70, in_user(1)),
        (71, in_user(2)),
        exit(71),
        (61, in_user(3)),
        fork(61, 72),
        (72, in_user(4)),
        // The kernel starts over with the tids, and another starter gets this one.
        fork(62, 72),
        (99, in_user(5)),
    ];
    let mut trace = trace(events);
    trace.threads = vec![thread(0, 0, 5), thread(1, 0, 6)];
    let expected = "\
S t1 nmi@user c0
S t0 nmi@user c1
EXIT t0
S agent nmi@user c2
S t? nmi@user c3
S t? nmi@user c4
";
    assert_eq!(show(&trace, SnapshotStyle::Events), expected);
}

#[test]
fn shapes_are_a_set() {
    let pair = |tid: u32, request: fn(u64) -> EventKind, cookie: u64, leaf: u64, descends| {
        [
            (tid, request(cookie)),
            (tid, deferred(cookie, leaf, descends)),
        ]
    };
    let mut events = Vec::new();
    events.extend(pair(51, in_syscall, 1, AFTER_SYSCALL, 10));
    events.extend(pair(51, in_user, 2, LEAF + 0x10, 10));
    events.extend(pair(51, in_user, 3, LEAF + 0x18, 10));
    events.extend(pair(51, in_user, 4, AFTER_SYSCALL, 10));
    // Before the leaf has set up its frame, and outside of it.
    events.extend(pair(51, in_user, 5, LEAF, 9));
    events.extend(pair(51, in_user, 6, DESCEND, 9));
    // Another thread with another depth, and one that shows the first one's stack.
    events.extend(pair(52, in_syscall, 7, AFTER_SYSCALL, 3));
    events.extend(pair(52, in_syscall, 8, AFTER_SYSCALL, 10));
    // No answer; no request; not the workload's.
    events.push((51, in_user(9)));
    events.push((51, deferred(10, AFTER_SYSCALL, 10)));
    events.extend(pair(3, in_syscall, 11, AFTER_SYSCALL, 10));
    let expected = "\
syscall -> [getppid_return, descend+0x12 x 10, root+0x9] (not its own)
syscall -> [getppid_return, its callers]
user -> [leaf, its callers]
";
    let mut forward = trace(events.clone());
    assert_eq!(show(&forward, SnapshotStyle::Shapes), expected);
    // Of a thread that is alone, all is shown.
    forward.threads.truncate(1);
    let alone = "\
syscall -> [getppid_return, descend+0x12 x 10, root+0x9]
user -> [leaf, descend+0x12 x 10, root+0x9]
";
    assert_eq!(show(&forward, SnapshotStyle::Shapes), alone);
    events.reverse();
    assert_eq!(show(&trace(events), SnapshotStyle::Shapes), expected);
}

/// A kernel that is wrong gives one cookie to all requests, and answers it with as many stacks.
#[test]
fn requests_of_one_cookie_are_looked_at_once_each() {
    let look = |answers: u64| {
        let requests = (0..20).map(|at| match at % 2 {
            0 => (51, in_syscall(1)),
            _ => (51, in_user(1)),
        });
        let answers = (0..answers).map(|at| (51, deferred(1, LEAF + 8 + at, 10)));
        let trace = trace(
            requests
                .chain(answers)
                .chain([(51, deferred(1, AFTER_SYSCALL, 10))])
                .collect(),
        );
        let asked = std::cell::Cell::new(0);
        let kernel = |address| {
            asked.set(asked.get() + 1);
            kernel(address)
        };
        (
            canonical(&trace, SnapshotStyle::Shapes, &kernel),
            asked.get(),
        )
    };
    let (text, asked) = look(20);
    let expected = "\
syscall -> [getppid_return, its callers]
user -> [leaf, its callers]
";
    assert_eq!(text, expected);
    assert_eq!(look(1), (text, asked));
}

#[test]
fn the_deepest_stack_that_fits_is_a_threads_own() {
    let mut trace = trace(vec![
        (51, in_syscall(1)),
        (51, {
            let mut ips = vec![DESCEND + 0x12; 510];
            ips[0] = AFTER_SYSCALL;
            let (cookie, nr) = (1, 510);
            EventKind::CallchainDeferred(CallchainDeferred { cookie, nr, ips })
        }),
    ]);
    trace.threads = vec![thread(0, 51, 4096)];
    let expected = "syscall -> [getppid_return, descend+0x12 x 509]\n";
    assert_eq!(show(&trace, SnapshotStyle::Shapes), expected);
}

#[test]
fn nothing_is_said_to_be_nothing() {
    let empty = Trace::default();
    assert_eq!(show(&empty, SnapshotStyle::Events), "no events\n");
    assert_eq!(show(&empty, SnapshotStyle::Shapes), "no shapes\n");
}

#[test]
fn the_style_is_a_kebab_case_word() {
    let word = serde_json::to_string(&SnapshotStyle::Shapes).expect("serializes");
    assert_eq!(word, "\"shapes\"");
}
