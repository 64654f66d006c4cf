//! Any trace whatever gets an answer: a guest writes what it likes into its rings.

use proptest::prelude::*;

use super::Kit;
use crate::invariant::finding::{Findings, Resolver};
use crate::invariant::{Check, Evidence, INVARIANTS};
use crate::trace::model::{
    CONTEXT_KERNEL, CONTEXT_USER, CONTEXT_USER_DEFERRED, CallchainDeferred, Sample,
};
use crate::trace::recording::Injection;
use crate::trace::{Event, EventKind, Trace};

/// Few different values, so that they meet; and the extremes.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..4_u64,
        (0..4_u64).prop_map(|n| n << 32 | 1),
        Just(0x1004),
        Just(CONTEXT_KERNEL),
        Just(CONTEXT_USER),
        Just(CONTEXT_USER_DEFERRED),
        Just(u64::MAX),
    ]
}

fn tid() -> impl Strategy<Value = u32> {
    prop_oneof![0..3_u32, 1000..1003_u32, Just(u32::MAX)]
}

fn kind() -> impl Strategy<Value = EventKind> {
    let chain = prop::collection::vec(number(), 0..6);
    let deferred = (number(), number(), prop::collection::vec(number(), 0..6));
    prop_oneof![
        4 => prop::option::of(chain).prop_map(|chain| EventKind::Sample(Sample {
            chain,
            ..Sample::default()
        })),
        3 => deferred.prop_map(|(cookie, nr, ips)| EventKind::CallchainDeferred(
            CallchainDeferred { cookie, nr, ips }
        )),
        1 => (number(), number()).prop_map(|(id, lost)| EventKind::Lost { id, lost }),
        1 => (any::<bool>(), prop::option::of((tid(), tid()))).prop_map(|(out, other)| {
            EventKind::Switch { out, preempt: false, other }
        }),
        1 => (tid(), tid()).prop_map(|(tid, ptid)| EventKind::Fork {
            pid: tid,
            ppid: ptid,
            tid,
            ptid,
        }),
        1 => (tid(), tid()).prop_map(|(tid, ptid)| EventKind::Exit {
            pid: tid,
            ppid: ptid,
            tid,
            ptid,
        }),
        1 => any::<bool>().prop_map(|exec| EventKind::Comm { comm: "x".into(), exec }),
        1 => (any::<bool>(), number()).prop_map(|(on, id)| EventKind::Throttle { on, id }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let place = (0..3_u32, 0..3_u32, 0..8_usize, prop::option::of(0..20_u64));
    let who = (
        prop::option::of(tid()),
        prop::option::of(tid()),
        prop::option::of(0..10_usize),
    );
    (place, who, any::<u16>(), any::<u16>(), kind()).prop_map(
        |((ring, cpu, position, time), (pid, tid, event), misc, size, kind)| Event {
            index: 0,
            ring,
            cpu,
            ring_index: ring as usize,
            position,
            start: 0,
            time,
            event,
            pid,
            tid,
            misc,
            size,
            kind,
        },
    )
}

fn injection() -> impl Strategy<Value = Injection> {
    let armed = (prop::option::of(0..2_u32), prop::option::of(0..2_u64));
    (0..3_u32, number(), 0..4_u8, armed).prop_map(|(vcpu, rip, cpl, (thread, iteration))| {
        Injection {
            spec: 0,
            vcpu,
            rip,
            cpl,
            thread,
            iteration,
            exact: thread.is_some() && cpl == 0,
            interrupt_waits: rip % 2 == 1,
            stack_pointer: 0x7000 + rip % 16,
        }
    })
}

/// A finding as loose as the form allows.
const ANY: &str = "
- id: F999
  title: any record 22 of cookie 0
  invariants: [C4, C7, M3]
  kernels: { releases: ['*'] }
  signature:
    events: [{ kind: deferred, task: t, cookie: 0 }]
";

struct Nobody;

impl Resolver for Nobody {
    fn function(&self, _: u64) -> Option<String> {
        None
    }

    fn has(&self, _: &str) -> bool {
        true
    }
}

proptest! {
    #[test]
    fn any_trace_is_answered(
        events in prop::collection::vec(event(), 0..40),
        injections in prop::collection::vec(injection(), 0..8),
        bare in any::<bool>(),
    ) {
        let mut kit = Kit::new(2);
        kit.thread(0, 1001);
        kit.deep_thread(1, 0, u32::MAX);
        kit.progress(0, 3, 2, 1);
        let mut trace = if bare { Trace::default() } else { kit.trace() };
        trace.events = events;
        trace.injections = injections;
        for (index, event) in trace.events.iter_mut().enumerate() {
            event.index = index;
        }
        let evidence = Evidence::new(&trace);
        let findings = Findings::parse(ANY).expect("well-formed");
        for invariant in INVARIANTS {
            if let Check::Violated(list) = invariant.check(&evidence) {
                for violation in list {
                    prop_assert!(violation.events.iter().all(|&at| at < trace.events.len()));
                    prop_assert!(!violation.message.contains('\n'));
                    // Only one of these can be it: a record 22 of cookie 0.
                    let found = findings.match_finding(&violation, &evidence, &Nobody);
                    prop_assert!(found.is_none() || violation.message.contains("cookie 0x0"));
                }
            }
        }
    }
}
