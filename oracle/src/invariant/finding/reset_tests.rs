//! F001 where perf asks in the window only.

use super::image::fixture::Built;
use super::*;
use crate::invariant::testkit::lab::{C, NEXT};
use crate::invariant::testkit::{Kit, violated};
use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER_DEFERRED};

/// F001 where another client than perf asked before in the entry: perf asks in the window only, by
/// `samples` samples of one NMI.
#[test]
fn f001_without_an_earlier_sample_is_answered_with_cookie_0_too() {
    let list = Findings::embedded().expect("well-formed");
    let found = |at: u64, samples: usize, answer: Option<u64>| {
        let mut kit = Kit::new(1);
        for _ in 0..samples {
            let handler = [CONTEXT_KERNEL, Built::at("end_repeat_nmi", 0), at];
            let chain = [handler.as_slice(), &[CONTEXT_USER_DEFERRED, C]].concat();
            kit.sample(0, 1001, 1, chain);
        }
        if let Some(cookie) = answer {
            kit.deferred(0, 1001, cookie, &[0x40, 0x80]);
        }
        let mut trace = kit.trace();
        trace.release = "7.3.4-test".into();
        let evidence = Evidence::new(&trace);
        let violations = ["C4", "C7", "M1", "M3"].into_iter();
        let violations = violations.flat_map(|id| violated(id, &trace));
        let ids = violations.map(|v| list.match_finding(&v, &evidence, &Built::default()));
        ids.map(|id| id.map_or_else(String::new, |id| id.0))
            .collect::<Vec<_>>()
    };
    let window = Built::at("do_syscall_64", 0x2e);
    assert_eq!(found(window, 1, Some(0)), ["F001"; 4]);
    assert_eq!(found(window, 2, Some(0)), ["F001"; 4]);
    // Outside of the window.
    for outside in [0x27, 0x40] {
        let at = Built::at("do_syscall_64", outside);
        assert_eq!(found(at, 1, Some(0)), [""; 4]);
    }
    // Not answered, as with `mutant:reset-wipes-mask`, or for another cookie.
    assert_eq!(found(window, 1, None), [""]);
    let others = found(window, 1, Some(NEXT));
    assert!(!others.is_empty() && others.iter().all(String::is_empty));
}

/// The entry that was answered for cookie 0 has no cookie: a request in it makes one, and perf counts as called.
/// NMIs at random have no injection that names their instruction; the samples' chains do.
#[test]
fn f001_leaves_an_entry_in_which_perf_counts_as_called() {
    let list = Findings::embedded().expect("well-formed");
    let window = [
        CONTEXT_KERNEL,
        Built::at("end_repeat_nmi", 0),
        Built::at("do_syscall_64", 0x2e),
        CONTEXT_USER_DEFERRED,
        C,
    ];
    let found = |answer: u64, leaves: bool| {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40, 0x80]);
        kit.sample(0, 1001, 1, window.to_vec());
        kit.deferred(0, 1001, answer, &[0x40, 0x80]);
        if leaves {
            kit.returns(0, 1001);
        }
        kit.nmi(0, 1001, NEXT);
        kit.nmi(0, 1001, NEXT);
        // The end of the trace is no excuse.
        kit.returns(0, 1001);
        kit.nmi(0, 1001, NEXT + (2 << 32));
        kit.deferred(0, 1001, NEXT + (2 << 32), &[0x40, 0x80]);
        let mut trace = kit.trace();
        trace.release = "7.3.4-test".into();
        let evidence = Evidence::new(&trace);
        let matched = |id: &str| {
            let violations = violated(id, &trace).into_iter();
            let ids = violations.map(|v| list.match_finding(&v, &evidence, &Built::default()));
            ids.map(|id| id.map_or_else(String::new, |id| id.0))
                .collect::<Vec<_>>()
        };
        (matched("C4"), matched("M1"))
    };
    let f001 = || vec!["F001".to_owned()];
    assert_eq!(found(0, false), (f001(), f001()));
    // In another entry, and behind another answer.
    assert_eq!(found(0, true), (f001(), vec![String::new()]));
    let (c4, m1) = found(C, false);
    assert!(c4.is_empty() && m1.iter().all(String::is_empty), "{m1:?}");
}

/// A request in the answering entry that comes behind the read of the id, so that its sample stands before the
/// record with cookie 0 or right behind it; the task exits next.
#[test]
fn f001_is_seen_beside_a_request_of_the_answering_entry() {
    let list = Findings::embedded().expect("well-formed");
    let found = |at: u64, requests: usize, between: Option<u64>, answered_first: bool| {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40, 0x80]);
        let handler = [CONTEXT_KERNEL, Built::at("end_repeat_nmi", 0), at];
        let chain = [handler.as_slice(), &[CONTEXT_USER_DEFERRED, C]].concat();
        kit.sample(0, 1001, 1, chain);
        if let Some(cookie) = between {
            kit.deferred(0, 1001, cookie, &[0x40, 0x80]);
        }
        if answered_first {
            kit.deferred(0, 1001, 0, &[0x40, 0x80]);
        }
        for _ in 0..requests {
            kit.nmi(0, 1001, NEXT);
        }
        if !answered_first {
            kit.deferred(0, 1001, 0, &[0x40, 0x80]);
        }
        kit.exit(0, 1001);
        let mut trace = kit.trace();
        trace.release = "7.3.4-test".into();
        let evidence = Evidence::new(&trace);
        let violations = ["C4", "C7", "M1", "M3", "X1"].into_iter();
        let violations = violations.flat_map(|id| violated(id, &trace));
        let ids = violations.map(|v| {
            let id = list.match_finding(&v, &evidence, &Built::default());
            (v.invariant, id.is_some_and(|id| id.0 == "F001"))
        });
        ids.collect::<Vec<_>>()
    };
    let all = |found: &[(String, bool)]| found.iter().all(|(_, it)| *it);
    let none = |found: &[(String, bool)]| found.iter().all(|(_, it)| !*it);
    let window = Built::at("do_syscall_64", 0x2e);
    for (requests, answered_first) in [(1, false), (2, false), (1, true), (2, true)] {
        let shown = found(window, requests, None, answered_first);
        for id in ["C4", "C7", "M1", "M3", "X1"] {
            assert!(shown.iter().any(|(it, _)| it == id), "{id}: {shown:?}");
        }
        assert!(all(&shown), "{shown:?}");
    }
    // Outside of the window; and answered for its cookie, so that nothing was pending.
    for outside in [0x27, 0x40] {
        let shown = found(Built::at("do_syscall_64", outside), 1, None, false);
        assert!(!shown.is_empty() && none(&shown), "{shown:?}");
    }
    let shown = found(window, 1, Some(C), false);
    assert!(!shown.is_empty() && none(&shown), "{shown:?}");
}
