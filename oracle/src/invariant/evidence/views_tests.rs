//! Where what an instance of tracefs wrote lies among perf's records.

use crate::invariant::Check;
use crate::invariant::testkit::entry_text::{Far, Via, outer};
use crate::invariant::testkit::{Kit, NMI_FRAMES, SOMEWHERE, check, judged};
use crate::trace::Trace;
use crate::trace::model::CONTEXT_KERNEL;
use crate::trace::tracefs::{Asker, TracefsClient, TracefsEvent, TracefsKind, TracefsTrace};

const C: u64 = 3 << 32 | 1;
const OTHER: u64 = 5 << 32 | 1;

const fn request(cookie: u64) -> TracefsKind {
    TracefsKind::Request {
        cookie,
        asker: None,
    }
}

fn stack(cookie: u64) -> TracefsKind {
    TracefsKind::Stack {
        cookie,
        nr: 1,
        frames: vec![0x40],
    }
}

/// The trace with an instance `a` that wrote each of these so many nanoseconds behind a record of task 1001, on its CPU.
fn with_a(kit: &Kit, written: &[(usize, u64, TracefsKind)]) -> Trace {
    let mut trace = kit.trace();
    let events = written.iter().map(|(behind, by, kind)| TracefsEvent {
        client: 0,
        cpu: trace.events[*behind].cpu,
        // It says nothing of perf's rings.
        position: 1000,
        buffer: usize::MAX,
        start: 0,
        size: 0,
        time: trace.events[*behind].time.unwrap() + by,
        tid: 1001,
        kind: kind.clone(),
    });
    let events = events.collect();
    let a = TracefsClient {
        name: "a".to_owned(),
        ..TracefsClient::default()
    };
    let clients = vec![a];
    trace.tracefs = Some(TracefsTrace { clients, events });
    trace
}

#[test]
fn what_lies_between_two_records_without_a_return_is_of_their_entry() {
    let of = |returns: bool| {
        let mut kit = Kit::new(1);
        kit.witness();
        let first = kit.kernel_only(0, 1001);
        if returns {
            kit.returns(0, 1001);
        }
        kit.kernel_only(0, 1001);
        let trace = with_a(&kit, &[(first, 1, request(C)), (first, 2, stack(C))]);
        judged("M1", &trace)
    };
    assert_eq!(of(false), (1, 0, false));
    assert_eq!(of(true), (0, 1, false));
}

/// The return may have come before it or behind.
#[test]
fn what_was_written_at_the_time_of_a_record_has_no_place_beside_it() {
    let of = |by: u64| {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.kernel_only(0, 1001);
        kit.returns(0, 1001);
        let at = kit.kernel_only(0, 1001);
        kit.kernel_only(0, 1001);
        let trace = with_a(&kit, &[(at, by, request(C)), (at, by, stack(C))]);
        judged("M1", &trace)
    };
    assert_eq!(of(1), (1, 0, false));
    assert_eq!(of(0), (0, 1, false));
}

/// An instance has a ring of its own on each CPU: its place there is none among perf's records.
#[test]
fn what_lies_in_a_system_call_by_the_clock_is_of_it() {
    for (cpus, cpu) in [(1, 0), (2, 0), (2, 1)] {
        let mut kit = Kit::new(cpus);
        // No other event receives record 22.
        kit.spec("track", |spec| spec.defer_output = false);
        let enter = kit.sys_enter(cpu, 1001);
        kit.sys_exit(cpu, 1001);
        let written = [(enter, 1, request(C)), (enter, 2, stack(C))];
        let found = judged("M1", &with_a(&kit, &written));
        assert_eq!(found, (1, 0, false), "CPU {cpu} of {cpus}");
    }
}

/// perf's samples keep their kernel chains, which say that an NMI hit the kernel, and makes no return of its own.
#[test]
fn a_return_of_perfs_own_nmi_needs_an_nmi_in_user_mode() {
    let mut kit = Kit::new(1);
    kit.witness();
    let asked = kit.kernel_only(0, 1001);
    let in_kernel = |kit: &mut Kit| {
        let mut chain = vec![CONTEXT_KERNEL];
        chain.extend(NMI_FRAMES);
        chain.push(SOMEWHERE);
        chain.extend(outer(Via::Syscall, Far::Body));
        kit.sample(0, 1001, 1, chain)
    };
    in_kernel(&mut kit);
    kit.returns(0, 1001);
    in_kernel(&mut kit);
    kit.returns(0, 1001);
    let answered = in_kernel(&mut kit);
    in_kernel(&mut kit);
    let written = [(asked, 1, request(C)), (answered, 1, stack(C))];
    assert_eq!(judged("M1", &with_a(&kit, &written)), (0, 0, true));
}

#[test]
fn of_an_instance_that_lost_events_it_is_not_known_who_asked() {
    let mut kit = Kit::new(1);
    let at = kit.kernel_only(0, 1001);
    let mut trace = with_a(&kit, &[(at, 1, stack(C))]);
    assert_eq!(judged("C7", &trace), (0, 0, true));
    trace.tracefs.as_mut().unwrap().clients[0].lost = 1;
    assert_eq!(judged("C7", &trace), (0, 0, false));
}

#[test]
fn of_an_instance_that_lost_events_it_is_not_known_what_it_was_given() {
    let mut kit = Kit::new(2);
    let at = kit.nmi(1, 1001, C);
    let mut trace = with_a(&kit, &[(at, 1, request(OTHER))]);
    assert_eq!(judged("C5", &trace), (0, 0, true));
    trace.tracefs.as_mut().unwrap().clients[0].lost = 1;
    assert_eq!(judged("C5", &trace), (0, 0, false));
}

/// Without markers and a witness, the answer to the first shows that both are of its entry.
#[test]
fn t1_another_cookie_before_the_answer() {
    let of = |answers: u32| {
        let mut kit = Kit::new(1);
        let asked = kit.nmi(0, 1001, C);
        kit.deferred(0, answers, C, &[0x40]);
        with_a(&kit, &[(asked, 1, request(OTHER))])
    };
    let Check::Violated(list) = check("T1", &of(1001)) else {
        panic!("not violated");
    };
    assert_eq!(
        list[0].message,
        "task 1001 got cookie 0x300000001 from perf, and 0x500000001 from instance a before the first was answered"
    );
    // What another task was answered ends nothing.
    assert_eq!(judged("T1", &of(1002)), (0, 1, false));
}

/// A buffer that the witness looked at is one more ring.
#[test]
fn a_buffer_that_was_looked_at_shows_itself_what_came_before_a_return() {
    let of = |asker: Option<Asker>, returns: &[u64]| {
        let mut kit = Kit::new(1);
        kit.witness();
        let first = kit.kernel_only(0, 1001);
        for _ in returns {
            kit.returns(0, 1001);
        }
        let mut trace = with_a(
            &kit,
            &[
                (first, 1, TracefsKind::Request { cookie: C, asker }),
                (first, 2, stack(C)),
            ],
        );
        let events = &mut trace.tracefs.as_mut().unwrap().events;
        for (event, start) in events.iter_mut().zip([0, 16]) {
            (event.buffer, event.start, event.size) = (0, start, 16);
        }
        let witness = trace.witness.as_mut().unwrap();
        witness.begin.heads.push(0);
        for (one, written) in witness.returns.iter_mut().zip(returns) {
            one.heads.push(*written);
        }
        judged("M1", &trace)
    };
    assert_eq!(of(None, &[32]), (1, 0, false));
    // What is asked for behind the exit work is answered behind one return.
    assert_eq!(of(None, &[16, 32]), (0, 1, false));
    assert_eq!(of(None, &[16, 16, 32]), (0, 0, true));
    // Events of system calls come before it.
    for asker in [Asker::SyscallEnter, Asker::SyscallExit] {
        assert_eq!(of(Some(asker), &[32]), (1, 0, false));
        assert_eq!(of(Some(asker), &[16, 32]), (0, 0, true));
    }
}
