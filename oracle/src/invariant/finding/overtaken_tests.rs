//! F006: a request that another one of the same client overtakes, in an NMI.

use super::image::fixture::Built;
use super::*;
use crate::invariant::testkit::lab::{C, LabKit, client};
use crate::invariant::testkit::violated;
use crate::trace::lab::LabKind;

/// What the violation of `invariant` is, if a request hit `at` and the one around it returned `ret`.
fn found(invariant: &str, at: u64, overlap: bool, ret: i32) -> Option<String> {
    let mut kit = LabKit::new();
    let start = u64::from(!overlap);
    let inner = kit.nmi().ask(1, client(0), 0, C);
    let cookie = if ret < 0 { 0 } else { C };
    kit.ask_since(1, client(0), ret, cookie, inner + start);
    let mut trace = kit.trace();
    trace.release = "7.3.4-unwindlab".into();
    let events = trace.lab.iter_mut().flat_map(|lab| &mut lab.events);
    for event in events.filter(|event| event.slot == inner) {
        if let LabKind::Request { ip, .. } = &mut event.kind {
            *ip = at;
        }
    }
    let violations = violated(invariant, &trace);
    let list = Findings::embedded().expect("well-formed");
    let found = list.match_finding(&violations[0], &Evidence::new(&trace), &Built::default());
    found.map(|id| id.to_string())
}

fn place(at: u64) -> u64 {
    Built::at("unwind_deferred_request", at)
}

#[test]
fn f006_is_a_request_around_another_one_and_nothing_else() {
    assert_eq!(found("R1", place(0x21), true, 0).as_deref(), Some("F006"));
    assert_eq!(found("R1", place(0x34), true, 256).as_deref(), Some("F006"));
    // Before the mask is read, behind the exchange, elsewhere.
    for outside in [place(0x1a), place(0x39), Built::at("do_syscall_64", 0)] {
        assert_eq!(found("R1", outside, true, 0), None);
    }
    // The second began when the first had ended.
    assert_eq!(found("R1", place(0x21), false, 0), None);
}

#[test]
fn at_place_31_it_looks_like_an_error() {
    let least = |at, overlap| found("R6", at, overlap, i32::MIN);
    assert_eq!(least(place(0x21), true).as_deref(), Some("F006"));
    assert_eq!(least(place(0x39), true), None);
    assert_eq!(least(place(0x21), false), None);
    // Any other error is none of the client's bits.
    for other in [-22, -16, i32::MIN + 1] {
        assert_eq!(found("R6", place(0x21), true, other), None);
    }
}
