//! What fits a plan, and what does not.

use unwindlab_abi::mailbox;
use unwindlab_abi::message::{AgentMessage, ExpectedStack, KnownStack};
use unwindlab_abi::plan::{Tracing, Watch};
use unwindlab_abi::tracefs::{TracefsChurn, TracefsInstance, TracefsPlan};
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_vmm::Memory;

use super::*;
use crate::driver::conversation::{Said, hold};

/// Two events, the second of which writes to the ring of the first, and two threads.
pub(in crate::driver) fn plan() -> GuestPlan {
    let event = |name| EventSpec::blank(name, EventSource::Dummy);
    let tracing = Tracing {
        ring_pages: 2,
        events: vec![
            event("a"),
            EventSpec {
                output_to: Some(0),
                ..event("b")
            },
        ],
    };
    GuestPlan::spinning(tracing, 2)
}

fn a_ring(ring: u32, cpu: u32) -> RingAnnounce {
    RingAnnounce {
        ring,
        cpu,
        control_page: 0x1000,
        data_pages: vec![0x2000, 0x3000],
        backward: false,
    }
}

fn an_event(spec: u32, cpu: u32, ring: u32) -> EventAnnounce {
    EventAnnounce {
        spec,
        cpu,
        id: 1,
        ring,
    }
}

fn a_thread(thread: u32) -> ThreadAnnounce {
    ThreadAnnounce {
        thread,
        pid: 1,
        tid: 1,
        stack: ExpectedStack {
            leaf_start: 0,
            leaf_end: 1,
            syscall_return: 0,
            callers: Vec::new(),
        },
    }
}

/// All that the plan asks for on a machine with two vCPUs.
fn whole() -> (Recording, Once) {
    let recording = Recording {
        vcpus: 2,
        rings: vec![a_ring(0, 0), a_ring(1, 1)],
        events: [(0, 0), (1, 0), (0, 1), (1, 1)]
            .map(|(spec, cpu)| an_event(spec, cpu, cpu))
            .into(),
        threads: vec![a_thread(0), a_thread(1)],
        ..Recording::default()
    };
    let once = Once {
        shared: true,
        symbols: true,
        ..Once::default()
    };
    (recording, once)
}

fn wrong(found: Result<(), Mismatch>) -> String {
    found.unwrap_err().to_string()
}

#[test]
fn what_comes_is_what_the_plan_asks_for() {
    let (plan, mut so_far) = (plan(), whole().0);
    so_far.rings.truncate(1);
    assert_eq!(ring(&plan, &so_far, &a_ring(1, 1)), Ok(()));
    for new in [a_ring(0, 1), a_ring(2, 1)] {
        assert!(wrong(ring(&plan, &so_far, &new)).contains("expected 1"));
    }
    assert!(wrong(ring(&plan, &so_far, &a_ring(1, 2))).contains("of CPU 2"));
    let mut large = a_ring(1, 1);
    large.data_pages.push(0x4000);
    assert!(wrong(ring(&plan, &so_far, &large)).contains("3 data pages"));

    so_far.events.truncate(1);
    assert_eq!(event(&plan, &so_far, &an_event(1, 0, 0)), Ok(()));
    assert!(wrong(event(&plan, &so_far, &an_event(0, 0, 0))).contains("twice"));
    assert!(wrong(event(&plan, &so_far, &an_event(2, 0, 0))).contains("no event 2"));
    assert!(wrong(event(&plan, &so_far, &an_event(1, 1, 0))).contains("not its own"));
    assert!(wrong(event(&plan, &so_far, &an_event(1, 1, 9))).contains("not its own"));

    so_far.threads.truncate(1);
    assert_eq!(thread(&plan, &so_far, &a_thread(1)), Ok(()));
    assert!(wrong(thread(&plan, &so_far, &a_thread(0))).contains("thread 0 behind 1"));
    so_far.threads.push(a_thread(1));
    assert!(wrong(thread(&plan, &so_far, &a_thread(2))).contains("behind 2 of 2"));
    assert!(cpus(2, 2).is_ok() && cpus(1, 2).is_err());
    assert!(iterations(&plan, 2).is_ok() && iterations(&plan, 3).is_err());
}

#[test]
fn no_more_rings_come_than_the_plan_asks_for() {
    let mut plan = plan();
    let (mut so_far, _) = whole();
    for cpu in [0, 1] {
        let said = wrong(ring(&plan, &so_far, &a_ring(2, cpu)));
        assert!(said.contains("ring 2 is one more than the 1"), "{said}");
    }
    let watch = Watch::Write(4);
    let of_tasks = EventSpec::blank("c", EventSource::TaskField { offset: 0, watch });
    let mut unread = EventSpec::blank("d", EventSource::Dummy);
    unread.details.ring = RingUse::Unread;
    plan.tracing.events.extend([of_tasks, unread]);
    for number in [2, 3] {
        let new = a_ring(number, 1);
        assert_eq!(ring(&plan, &so_far, &new), Ok(()));
        so_far.rings.push(new);
    }
    assert!(wrong(ring(&plan, &so_far, &a_ring(4, 1))).contains("the 3 of CPU 1"));
    assert_eq!(ring(&plan, &so_far, &a_ring(4, 0)), Ok(()));
}

#[test]
fn no_stack_is_deeper_than_the_plan_asks_for() {
    let mut plan = plan();
    plan.workload.frames_step = 2;
    let (mut so_far, _) = whole();
    so_far.threads.truncate(1);
    let announce = |callers: &[(u64, u32)]| {
        let mut new = a_thread(1);
        new.stack.callers = callers.to_vec();
        thread(&plan, &so_far, &new)
    };
    assert_eq!(announce(&[(1, 1), (2, 2), (3, 1)]), Ok(()));
    assert!(wrong(announce(&[(1, 5)])).contains("6 frames, the plan asks for 5"));
    assert!(wrong(announce(&[(1, u32::MAX); 2])).contains("8589934591 frames"));
    assert!(wrong(announce(&[(1, 0); 17])).contains("17 different callers"));

    let known = |count| Program {
        stacks: vec![KnownStack {
            start: 0x1000,
            end: 0x2000,
            stack_pointer: None,
            callers: vec![(1, count), (2, 1)],
        }],
        covered: Vec::new(),
    };
    assert_eq!(program(&plan, &known(508)), Ok(()));
    assert!(wrong(program(&plan, &known(509))).contains("0x1000 has 511 frames, at most 510"));
    let hello = AgentMessage::Hello {
        abi_version: unwindlab_abi::ABI_VERSION,
        release: String::new(),
        cpus: 1,
    };
    let said = [hello, AgentMessage::Program(known(u32::MAX))];
    let said = said.map(|it| Said::Message(mailbox::encode(&it).unwrap().into()));
    let end = hold(&Memory::new(4).unwrap(), &plan, 1, &said).end;
    let what = "the known stack at 0x1000 has 4294967297 frames, at most 510 are known".to_owned();
    assert_eq!(end, Some(TrialEnd::Misbehaved { what }));
    plan.workload.frames = 4096;
    assert_eq!(program(&plan, &known(4096)), Ok(()));
    assert!(wrong(program(&plan, &known(u32::MAX))).contains("at most 4098"));
}

#[test]
fn nothing_is_missing_when_the_agent_is_ready() {
    let plan = plan();
    let ready = |change: fn(&mut Recording, &mut Once)| {
        let (mut recording, mut once) = whole();
        change(&mut recording, &mut once);
        all(&plan, &recording, once)
    };
    assert_eq!(ready(|_, _| {}), Ok(()));
    assert!(wrong(ready(|it, _| it.threads.truncate(1))).contains("1 threads of 2"));
    assert!(wrong(ready(|it, _| it.events.truncate(3))).contains("event 1 of CPU 1"));
    assert!(wrong(ready(|it, _| it.rings.push(a_ring(2, 0)))).contains("ring 2"));
    assert!(wrong(ready(|_, once| once.shared = false)).contains("shared"));
    assert!(wrong(ready(|_, once| once.symbols = false)).contains("symbols"));
    assert!(wrong(ready(|_, once| once.lab = true)).contains("log"));
    let mut seen = false;
    assert!(wrong(once(&mut seen, false, "a lab log")).contains("has not"));
    assert_eq!(once(&mut seen, true, "a lab log"), Ok(()));
    assert!(wrong(once(&mut seen, true, "a lab log")).contains("twice"));
}

#[test]
fn buffers_of_tracefs_are_those_of_the_plan() {
    let mut plan = plan();
    let instance = TracefsInstance {
        name: "a".to_owned(),
        events: Vec::new(),
        buffer_kib: 8,
    };
    plan.tracefs = Some(TracefsPlan {
        instances: vec![instance],
        churn: None,
    });
    let buffer = |instance, cpu, pages| TracefsBuffer {
        instance,
        cpu,
        pages: vec![0x1000; pages],
    };
    let one = [buffer(0, 0, 3)];
    let announce = |new| tracefs_buffer(&plan, 2, &one, &new);
    assert_eq!(announce(buffer(0, 1, 3)), Ok(()));
    assert!(wrong(announce(buffer(0, 0, 3))).contains("CPU 0 twice"));
    assert!(wrong(announce(buffer(1, 1, 3))).contains("no instance 1"));
    assert!(wrong(announce(buffer(0, 2, 3))).contains("of CPU 2"));
    for pages in [0, 4] {
        assert!(wrong(announce(buffer(0, 1, pages))).contains("expected 3"));
    }

    assert!(wrong(all_tracefs(&plan, 2, &one)).contains("1 buffers of tracefs, expected 2"));
    let both = [buffer(0, 0, 3), buffer(0, 1, 3)];
    assert_eq!(all_tracefs(&plan, 2, &both), Ok(()));
    let churn = plan.tracefs.as_mut().map(|it| &mut it.churn).unwrap();
    *churn = Some(TracefsChurn {
        cpu: 0,
        period_us: 1,
        what: ChurnKind::Remove,
    });
    assert_eq!(all_tracefs(&plan, 2, &[]), Ok(()));
    plan.tracefs = None;
    assert!(all_tracefs(&plan, 2, &both).is_err());
}
