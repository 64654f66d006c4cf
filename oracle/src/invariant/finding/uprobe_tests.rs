//! F009 and F010: what uprobes leave in a chain, and chains that are wrong for another reason.

use unwindlab_abi::plan::EventSource;

use super::image::fixture::Built;
use super::*;
use crate::invariant::testkit::{Kit, spec, user, violated};
use crate::trace::Trace;
use crate::trace::model::{CONTEXT_USER, CONTEXT_USER_DEFERRED};

const C: u64 = 3 << 32 | 1;
const TRAMPOLINE: u64 = 0x7fff_f000;

fn uprobe(at_return: bool) -> EventSource {
    EventSource::Uprobe {
        symbol: "deep_leaf".into(),
        offset: 0,
        at_return,
    }
}

fn found(invariant: &str, mut trace: Trace, kernel: &Built) -> Option<String> {
    trace.release = "7.3.4-unwindlab".into();
    let violations = violated(invariant, &trace);
    let list = Findings::embedded().expect("well-formed");
    let found = list.match_finding(&violations[0], &Evidence::new(&trace), kernel);
    found.map(|id| id.to_string())
}

/// A request at the leaf, beside a uretprobe, and these callers in the answer.
fn pending(probed: bool, callers: &[u64]) -> Trace {
    let mut kit = Kit::new(1);
    kit.thread(0, 1001);
    if probed {
        kit.open(spec("probe", uprobe(true)));
    }
    kit.inject(0, 1001, C, user(0x1004));
    let chain: Vec<u64> = std::iter::once(0x1004).chain(callers.to_vec()).collect();
    kit.deferred(0, 1001, C, &chain);
    kit.trace()
}

#[test]
fn f009_is_a_trampoline_in_place_of_a_caller_and_nothing_else() {
    let s1 = |probed, callers: &[u64]| found("S1", pending(probed, callers), &Built::default());
    let f009 = Some("F009".to_owned());
    assert_eq!(s1(true, &[TRAMPOLINE, 0x2000, 0x3000]), f009);
    assert_eq!(s1(true, &[TRAMPOLINE, TRAMPOLINE, 0x3000]), f009);
    // No uretprobe is open.
    assert_eq!(s1(false, &[TRAMPOLINE, 0x2000, 0x3000]), None);
    // Another address, two of them, and a chain that is too short.
    assert_eq!(s1(true, &[TRAMPOLINE + 8, 0x2000, 0x3000]), None);
    assert_eq!(s1(true, &[TRAMPOLINE, 0x8000_0000, 0x3000]), None);
    assert_eq!(s1(true, &[TRAMPOLINE]), None);
    // A kernel that knows the trampolines.
    let trampoline: &[u8] = &[0xe8, 0x29, 0x00, 0x00, 0x00];
    let fixed = Built(vec![("unwind_user", 5, trampoline)]);
    let chain = pending(true, &[TRAMPOLINE, 0x2000, 0x3000]);
    assert_eq!(found("S1", chain, &fixed), None);
}

/// A request of `source` at 0x1000, beside its twin, and this answer.
fn stepped(source: &EventSource, answer: &[u64]) -> Trace {
    let mut kit = Kit::new(1);
    kit.thread(0, 1001);
    let mut asker = spec("asker", source.clone());
    asker.defer_callchain = true;
    let asker = kit.open(asker);
    let twin = kit.open(spec("twin", source.clone()));
    kit.sample(
        0,
        1001,
        twin,
        vec![CONTEXT_USER, 0x1000, 0x2000, 0x2000, 0x3000],
    );
    kit.sample(0, 1001, asker, vec![CONTEXT_USER_DEFERRED, C]);
    kit.deferred(0, 1001, C, answer);
    kit.trace()
}

#[test]
fn f010_is_what_a_uprobe_leaves_and_nothing_else() {
    let s5 = |answer: &[u64]| found("S5", stepped(&uprobe(false), answer), &Built::default());
    let f010 = Some("F010".to_owned());
    // Emulated; emulated and with a frame of its own; in its slot; in the trampoline.
    assert_eq!(s5(&[0x1001, 0x2000, 0x2000, 0x3000]), f010);
    assert_eq!(s5(&[0x1001, 0x2000, 0x3000]), f010);
    assert_eq!(s5(&[TRAMPOLINE + 0x80, 0x2000, 0x2000, 0x3000]), f010);
    assert_eq!(s5(&[TRAMPOLINE + 0xd, 0x2000, 0x2000, 0x3000]), f010);
    // Elsewhere, without frame 0, with another caller, and without two.
    assert_eq!(s5(&[0x1010, 0x2000, 0x2000, 0x3000]), None);
    assert_eq!(s5(&[0x2000, 0x2000, 0x3000]), None);
    assert_eq!(s5(&[0x1001, 0x2000, 0x2008, 0x3000]), None);
    assert_eq!(s5(&[0x1001, 0x3000]), None);
    // A kernel that answers before it goes on.
    let flush: &[u8] = &[0xe8, 0x0a, 0x00, 0x00, 0x00];
    let fixed = Built(vec![("handler_chain", 5, flush)]);
    let trace = stepped(&uprobe(false), &[0x1001, 0x2000, 0x3000]);
    assert_eq!(found("S5", trace, &fixed), None);
}
