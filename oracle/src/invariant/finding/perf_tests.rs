//! The findings in perf's own code: what matches them, and what is next to it.

use super::image::fixture::Built;
use super::*;
use crate::invariant::testkit::{Kit, SOMEWHERE, spec, violated};
use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER_DEFERRED};
use crate::trace::{EventKind, Trace};
use unwindlab_abi::plan::{EventSource, EventSpec};

const C: u64 = 3 << 32 | 1;

/// The findings that the violations of an invariant match.
fn found(id: &str, mut trace: Trace, kernel: &Built) -> Vec<Option<String>> {
    trace.release = "7.3.4-unwindlab".into();
    let list = Findings::embedded().expect("well-formed");
    let evidence = Evidence::new(&trace);
    let violations = violated(id, &trace).into_iter();
    let found = violations.map(|it| list.match_finding(&it, &evidence, kernel));
    found.map(|id| id.map(|id| id.to_string())).collect()
}

#[test]
fn f007_is_a_receiver_without_a_side_band_bit_and_nothing_else() {
    let lacking = |task: bool, kernel: &Built| {
        let mut kit = Kit::new(1);
        kit.open(EventSpec {
            defer_output: true,
            task,
            ..spec("second", EventSource::Dummy)
        });
        kit.deferred(0, 1001, C, &[0x40]);
        found("A3", kit.trace(), kernel)
    };
    let f007 = Some("F007".to_owned());
    assert_eq!(lacking(false, &Built::default()), [f007]);
    assert_eq!(lacking(true, &Built::default()), [None]);
    // The kernel looks at bit 39 too, or not at bit 13.
    for bits in [(6, &[0x82][..]), (3, &[0x03])] {
        let kernel = Built(vec![("perf_event_alloc", bits.0, bits.1)]);
        assert_eq!(lacking(false, &kernel), [None]);
    }
    // A copy for an event that did not ask for it.
    let mut kit = Kit::new(1);
    kit.deferred_to(1, 0, 1001, C, &[0x40]);
    let both = found("A3", kit.trace(), &Built::default());
    assert_eq!(both, [None, None]);
}

/// F004 as A3 sees it: the inherited event is gone when the task's last request is answered.
#[test]
fn f004_is_an_inherited_receiver_behind_the_exit_and_nothing_else() {
    let lacking = |inherit: bool, exits: bool| {
        let mut kit = Kit::new(1);
        kit.open(EventSpec {
            defer_output: true,
            task: true,
            inherit,
            ..spec("own", EventSource::Dummy)
        });
        if exits {
            kit.exit(0, 1001);
        }
        kit.deferred(0, 1001, C, &[0x40]);
        found("A3", kit.trace(), &Built::default())
    };
    assert_eq!(lacking(true, true), [Some("F004".to_owned())]);
    assert_eq!(lacking(true, false), [None]);
    assert_eq!(lacking(false, true), [None]);
}

/// An event of another clock writes a copy of the exit record whose time says nothing.
#[test]
fn f004_is_seen_behind_whichever_copy_of_the_exit_record_has_a_time() {
    let mut kit = Kit::new(1);
    let own = kit.open(EventSpec {
        defer_output: true,
        task: true,
        inherit: true,
        ..spec("own", EventSource::Dummy)
    });
    let exit = EventKind::Exit {
        pid: 1001,
        ppid: 1,
        tid: 1001,
        ptid: 1,
    };
    let timeless = kit.push(0, 1001, own, exit);
    kit.sys_enter(0, 1001);
    kit.exit(0, 1001);
    kit.deferred(0, 1001, C, &[0x40]);
    let mut trace = kit.trace();
    trace.events[timeless].time = None;
    trace.events[timeless].ring = 7;
    let f004 = found("A3", trace, &Built::default());
    assert_eq!(f004, [Some("F004".to_owned())]);
}

#[test]
fn f008_is_a_marker_at_the_limit_and_nothing_else() {
    let cut_of = |defers: bool, limit: Option<&str>, tail: &[u64], kernel: &Built| {
        let mut kit = Kit::new(1);
        kit.spec("nmi", |it| it.defer_callchain = defers);
        let chain = [CONTEXT_KERNEL, SOMEWHERE].into_iter();
        kit.sample(0, 1001, 1, chain.chain(tail.iter().copied()).collect());
        let mut trace = kit.trace();
        let set = limit.map(|it| {
            (
                "perf_event_max_contexts_per_stack".to_owned(),
                it.to_owned(),
            )
        });
        trace.sysctls.extend(set);
        found("A1", trace, kernel)
    };
    let cut = |limit, tail: &[u64], kernel: &Built| cut_of(true, limit, tail, kernel);
    let marker = CONTEXT_USER_DEFERRED;
    let kernel = Built::default();
    // An event that does not defer has no marker.
    assert_eq!(cut_of(false, Some("2"), &[marker], &kernel), [None]);
    let f008 = Some("F008".to_owned());
    assert_eq!(cut(Some("2"), &[marker], &kernel), [f008]);
    // There was room for more.
    for roomy in [None, Some("3"), Some("8"), Some("many")] {
        assert_eq!(cut(roomy, &[marker], &kernel), [None]);
    }
    // Too much behind the marker, and the marker twice.
    assert_eq!(cut(Some("2"), &[marker, C, 0x40], &kernel), [None]);
    assert_eq!(cut(Some("3"), &[marker, marker], &kernel), [None]);
    // The cookie is stored right behind the marker, or not at all.
    for bytes in [&[0x90; 4][..], &[0x90; 8]] {
        let other = Built(vec![("get_perf_callchain", 0xc, bytes)]);
        assert_eq!(cut(Some("2"), &[marker], &other), [None]);
    }
}
