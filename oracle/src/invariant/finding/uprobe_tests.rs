//! F009, F010 and F014: what uprobes leave in a chain, and chains that are wrong for another reason.

use unwindlab_abi::message::UserSymbol;
use unwindlab_abi::plan::EventSource;

use super::image::fixture::Built;
use super::*;
use crate::invariant::testkit::{Kit, spec, tracepoint, user, violated};
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

/// Uretprobes on these functions.
fn probe(kit: &mut Kit, probed: &[&str]) {
    for symbol in probed {
        let source = EventSource::Uprobe {
            symbol: (*symbol).to_owned(),
            offset: 0,
            at_return: true,
        };
        kit.open(spec(symbol, source));
    }
}

/// A request at the leaf, beside uretprobes, and these callers in the answer.
fn pending(probed: &[&str], callers: &[u64]) -> Trace {
    let mut kit = Kit::new(1);
    kit.thread(0, 1001);
    probe(&mut kit, probed);
    kit.inject(0, 1001, C, user(0x1004));
    let chain: Vec<u64> = std::iter::once(0x1004).chain(callers.to_vec()).collect();
    kit.deferred(0, 1001, C, &chain);
    let mut trace = kit.trace();
    trace.user_symbols = code();
    trace
}

#[test]
fn f009_is_a_trampoline_in_place_of_a_caller_and_nothing_else() {
    let s1 =
        |probed: &[&str], callers: &[u64]| found("S1", pending(probed, callers), &Built::default());
    let f009 = Some("F009".to_owned());
    let both = ["deep_leaf", "descend"];
    assert_eq!(s1(&both[..1], &[TRAMPOLINE, 0x2000, 0x3000]), f009);
    assert_eq!(s1(&both, &[TRAMPOLINE, TRAMPOLINE, 0x3000]), f009);
    // No uretprobe is open, or only of another function.
    assert_eq!(s1(&[], &[TRAMPOLINE, 0x2000, 0x3000]), None);
    assert_eq!(s1(&both[1..], &[TRAMPOLINE, 0x2000, 0x3000]), None);
    assert_eq!(s1(&both[..1], &[TRAMPOLINE, TRAMPOLINE, 0x3000]), None);
    // Other addresses, two of them, and a chain that is too short.
    for other in [TRAMPOLINE + 8, 0, 1 << 47, 0xffff_8000_0000_0000] {
        assert_eq!(s1(&both, &[other, 0x2000, 0x3000]), None, "{other:#x}");
    }
    assert_eq!(s1(&both, &[0x2000, 0x2000, 0x3000].map(|_| 0x3000)), None);
    assert_eq!(s1(&both, &[TRAMPOLINE, 0x8000_0000, 0x3000]), None);
    assert_eq!(s1(&both, &[TRAMPOLINE]), None);
    // A kernel that knows the trampolines.
    let trampoline: &[u8] = &[0xe8, 0x29, 0x00, 0x00, 0x00];
    let fixed = Built(vec![("unwind_user", 5, trampoline)]);
    let chain = pending(&both[..1], &[TRAMPOLINE, 0x2000, 0x3000]);
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
    // At 0, and not in user memory.
    assert_eq!(s5(&[0, 0x2000, 0x2000, 0x3000]), None);
    assert_eq!(s5(&[1 << 47, 0x2000, 0x2000, 0x3000]), None);
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

/// How many calls of the recursing caller are on the stack.
const CALLS: u32 = 3;

/// The chains of a twin and of its asker at the leaf, while uretprobes are open on these functions. The leaf is called
/// by a stub that jumps to it.
fn chained(probed: &[&str], twin_first: bool, twin: &[u64], answer: &[u64]) -> Trace {
    let mut kit = Kit::new(1);
    kit.deep_thread(0, 1001, CALLS);
    probe(&mut kit, probed);
    let mut entry = spec("twin", tracepoint("raw_syscalls", "sys_enter"));
    entry.filter = Some("id == 110".into());
    let other = kit.open(entry.clone());
    entry.name = "asker".into();
    entry.defer_callchain = true;
    let asker = kit.open(entry);
    let twin = [&[CONTEXT_USER], twin].concat();
    let samples = [(other, twin), (asker, vec![CONTEXT_USER_DEFERRED, C])];
    let samples: Vec<(u32, Vec<u64>)> = match twin_first {
        true => samples.into_iter().collect(),
        false => samples.into_iter().rev().collect(),
    };
    for (event, chain) in samples {
        kit.sample(0, 1001, event, chain);
    }
    kit.deferred(0, 1001, C, answer);
    let mut trace = kit.trace();
    trace.threads[0].stack.callers = vec![(0x2010, CALLS), (0x3010, 1)];
    trace.user_symbols = code();
    trace
}

fn code() -> Vec<UserSymbol> {
    let code = [
        ("deep_stub", 0xf00, 0xf05),
        ("deep_leaf", 0xff8, 0x1108),
        ("descend", 0x1ff0, 0x2010),
        ("root", 0x2ff0, 0x3020),
    ];
    { code.into_iter() }
        .map(|(name, start, end)| UserSymbol {
            name: name.to_owned(),
            start,
            end,
        })
        .collect()
}

/// The stack, and what is wrong with it where the stub's instance is taken for a caller's.
const STACK: [u64; 5] = [0x1080, 0x2010, 0x2010, 0x2010, 0x3010];
const SHIFTED: [u64; 5] = [0x1080, 0x2010, 0x2010, 0x2010, 0x2010];
const ALL: [&str; 3] = ["deep_stub", "deep_leaf", "descend"];

#[test]
fn f014_is_what_a_chained_uretprobe_makes_of_the_twins_chain_and_nothing_else() {
    let kernel = Built::default();
    let f014 = Some("F014".to_owned());
    let s5 = |probed: &[&str], twin: &[u64]| {
        let found_as = |first| found("S5", chained(probed, first, twin, &STACK), &kernel);
        let ids = [true, false].map(found_as);
        assert_eq!(ids[0], ids[1]);
        ids[0].clone()
    };
    assert_eq!(s5(&ALL, &SHIFTED), f014);
    // Several events of one function are one uprobe.
    let twice = ["descend", "deep_stub", "descend", "deep_leaf", "deep_stub"];
    assert_eq!(s5(&twice, &SHIFTED), f014);
    // No two share a place: by this kernel the chain would be right.
    for few in [
        &["deep_stub", "descend"][..],
        &["deep_leaf", "descend"],
        &["descend"],
        &[],
    ] {
        assert_eq!(s5(few, &SHIFTED), None, "{few:?}");
    }
    // Two share one, but no trampoline is further out.
    assert_eq!(s5(&["deep_stub", "deep_leaf"], &SHIFTED), None);
    // Another address in the twin's chain, at each place, a chain that is shifted by two or not as far out, and one of
    // trampolines.
    for frame in 0..STACK.len() {
        let mut twin = SHIFTED;
        twin[frame] += 8;
        assert_eq!(s5(&ALL, &twin), None, "frame {frame}");
    }
    assert_eq!(s5(&ALL, &[0x1080, 0x2010, 0x2010, 0x2010, 0x1080]), None);
    assert_eq!(s5(&ALL, &[0x1080, 0x3010, 0x2010, 0x2010, 0x2010]), None);
    assert_eq!(
        s5(&ALL, &[0x1080, 0x2010, 0x2010, 0x2010, TRAMPOLINE]),
        None
    );
    // A kernel that looks at the mark of an instance, and one that leaves the trampolines.
    let mark: &[u8] = &[0x41, 0x80, 0x7c, 0x24, 0x30, 0x00];
    for fixed in [(0x1e, mark), (0x14, &[0x90; 5])] {
        let kernel = Built(vec![("get_perf_callchain", fixed.0, fixed.1)]);
        let trace = chained(&ALL, true, &SHIFTED, &STACK);
        assert_eq!(found("S5", trace, &kernel), None);
    }
}

/// The deferred chain is wrong, and not perf's; or both are.
#[test]
fn f014_is_not_a_deferred_chain_that_is_wrong() {
    let kernel = Built::default();
    let s5 = |twin: &[u64], answer: &[u64]| found("S5", chained(&ALL, true, twin, answer), &kernel);
    let answer = |frame: usize, address: u64| {
        let mut answer = STACK;
        answer[frame] = address;
        answer
    };
    assert_eq!(s5(&STACK, &SHIFTED), None);
    assert_eq!(s5(&SHIFTED, &answer(0, 0x1084)), None);
    assert_eq!(s5(&SHIFTED, &answer(2, 0x2018)), None);
    assert_eq!(s5(&SHIFTED, &STACK[..3]), None);
    // Trampolines are F009 where the twin is right, and with chained uretprobes F014 where it is wrong as above.
    let trampolines = [0x1080, TRAMPOLINE, TRAMPOLINE, TRAMPOLINE, TRAMPOLINE];
    assert_eq!(s5(&STACK, &trampolines), Some("F009".to_owned()));
    assert_eq!(s5(&SHIFTED, &trampolines), Some("F014".to_owned()));
    let other = [0x1080, 0x2010, 0x2010, 0x2018, 0x3010];
    assert_eq!(s5(&other, &trampolines), None);
}

/// Where the uretprobes are is not known.
#[test]
fn f014_needs_the_code_and_the_place_of_each_uretprobe() {
    let kernel = Built::default();
    let mut trace = chained(&ALL, true, &SHIFTED, &STACK);
    trace.user_symbols.retain(|it| it.name != "descend");
    assert_eq!(found("S5", trace, &kernel), None);
    let mut trace = chained(&ALL, true, &SHIFTED, &STACK);
    for spec in &mut trace.tracing.as_mut().unwrap().events {
        if let EventSource::Uprobe { offset, .. } = &mut spec.source {
            *offset = 4;
        }
    }
    assert_eq!(found("S5", trace, &kernel), None);
    // They are uprobes.
    let mut trace = chained(&ALL, true, &SHIFTED, &STACK);
    for spec in &mut trace.tracing.as_mut().unwrap().events {
        if let EventSource::Uprobe { at_return, .. } = &mut spec.source {
            *at_return = false;
        }
    }
    assert_eq!(found("S5", trace, &kernel), None);
}
