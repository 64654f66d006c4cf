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
