//! What separates two records, and what does not.

use super::*;
use crate::invariant::EntryCode;
use crate::invariant::testkit::entry_text::{EntryText, Far, Via, outer};
use crate::invariant::testkit::{self, Kit, SOMEWHERE, kernel, user};
use crate::trace::Trace;
use crate::trace::model::{CONTEXT_USER_DEFERRED, MISC_KERNEL, MISC_USER};
use unwindlab_abi::plan::EventSource;

const C: u64 = 3 << 32 | 1;

/// Whether two events are known to be of different entries.
fn separated(trace: &Trace, x: usize, y: usize) -> bool {
    let facts = Facts::new(trace, None);
    facts
        .separated(&trace.events[x], &trace.events[y])
        .is_some()
}

#[test]
fn one_marker_between_proves_nothing() {
    let mut kit = Kit::new(1);
    let a = kit.nmi(0, 1001, C);
    // An NMI in the entry stub comes before the sys_enter of its own entry.
    kit.sys_enter(0, 1001);
    let b = kit.nmi(0, 1001, C);
    kit.sys_exit(0, 1001);
    kit.sys_enter(0, 1001);
    let c = kit.nmi(0, 1001, C);
    let trace = kit.trace();
    let separated = |x: usize, y: usize| separated(&trace, x, y);
    assert!(!separated(a, b));
    assert!(separated(b, c));
    assert!(separated(a, c));
    assert!(!separated(c, a));
}

#[test]
fn injections_separate_by_iteration_and_by_user_ip() {
    let mut kit = Kit::new(1);
    let a = kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000).iteration(1, 7));
    let b = kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000).iteration(1, 8));
    let c = kit.inject(0, 1001, C, user(0x1000));
    let d = kit.inject(0, 1001, C, user(0x1000));
    let e = kit.inject(0, 1001, C, user(0x1004));
    let trace = kit.trace();
    let separated = |x: usize, y: usize| separated(&trace, x, y);
    assert!(separated(a, b));
    assert!(!separated(b, c));
    assert!(!separated(c, d));
    assert!(separated(d, e));
}

#[test]
fn a_walk_and_another_user_instruction_separate() {
    const C: u64 = 3 << 32 | 1;
    for (walked, hit, is_proof) in [
        (0x1000, user(0x1004), true),
        (0x1000, user(0x1000), false),
        (0x1000, kernel(0x1004), false),
    ] {
        let mut kit = Kit::new(1);
        let first = kit.inject(0, 1001, C, kernel(0x9000));
        kit.deferred(0, 1001, C, &[walked, 0x2000]);
        let second = kit.inject(0, 1001, C, hit);
        let trace = kit.trace();
        let facts = Facts::new(&trace, None);
        let proof = facts.separated(&trace.events[first], &trace.events[second]);
        assert_eq!(proof.is_some(), is_proof, "{proof:?}");
    }
}

#[test]
fn samples_from_different_user_instructions_separate() {
    const AT: u64 = 0x1000;
    for (ip, misc, is_proof) in [
        (AT + 4, MISC_USER, true),
        (AT, MISC_USER, false),
        (AT + 4, MISC_KERNEL, false),
    ] {
        let mut kit = Kit::new(1);
        kit.spec("nmi", |spec| spec.source = EventSource::Software(0));
        let [first, second] =
            [C, C].map(|cookie| kit.sample(0, 1001, 1, vec![CONTEXT_USER_DEFERRED, cookie]));
        let mut trace = kit.trace();
        testkit::sampled_at(&mut trace.events[first], MISC_USER, AT);
        testkit::sampled_at(&mut trace.events[second], misc, ip);
        let facts = Facts::new(&trace, None);
        let between = facts.user_code_between(&trace.events[first], &trace.events[second]);
        assert_eq!(between.is_some(), is_proof, "{between:?}");
    }
}

fn separates(kit: &Kit, a: usize, b: usize) -> bool {
    let trace = kit.trace();
    let facts = Facts::new(&trace, None);
    facts
        .separated(&trace.events[a], &trace.events[b])
        .is_some()
}

#[test]
fn instructions_of_two_tasks_or_iterations_of_two_threads_do_not_separate() {
    let mut kit = Kit::new(1);
    let a = kit.inject(0, 1001, C, user(0x1000));
    let b = kit.inject(0, 1002, C, user(0x1004));
    assert!(!separates(&kit, a, b));
    for (thread, iteration, separated) in [(1, 8, true), (1, 7, false), (2, 8, false)] {
        let mut kit = Kit::new(1);
        let a = kit.inject(0, 1001, C, kernel(0x9000).iteration(1, 7));
        let b = kit.inject(0, 1001, C, kernel(0x9000).iteration(thread, iteration));
        assert_eq!(separates(&kit, a, b), separated, "{thread} {iteration}");
    }
}

/// Between two rings a tie of the clock decides nothing, and the returns do.
#[test]
fn returns_order_two_records_of_one_time() {
    for returns in [false, true] {
        let mut kit = Kit::new(2);
        kit.witness();
        let at = |iteration| kernel(0x9000).iteration(1, iteration);
        let a = kit.inject(0, 1001, C, at(7));
        if returns {
            kit.returns(0, 1001);
        }
        let b = kit.inject(1, 1001, C, at(8));
        let mut trace = kit.trace();
        trace.events[b].time = trace.events[a].time;
        let facts = Facts::new(&trace, None);
        let separated = |x: usize, y: usize| {
            let [x, y] = [x, y].map(|at| &trace.events[at]);
            facts.separated(x, y).is_some()
        };
        assert_eq!((separated(a, b), separated(b, a)), (returns, false));
    }
}

/// Markers are searched from a place near the first record.
#[test]
fn system_calls_behind_both_records_do_not_hide_those_between() {
    let mut kit = Kit::new(1);
    let a = kit.nmi(0, 1001, C);
    kit.sys_exit(0, 1001);
    kit.sys_enter(0, 1001);
    let b = kit.nmi(0, 1001, C);
    for _ in 0..20 {
        kit.sys_exit(0, 1001);
        kit.sys_enter(0, 1001);
    }
    let c = kit.nmi(0, 1001, C);
    assert!(separates(&kit, a, b));
    assert!(separates(&kit, b, c));
}

/// Where NMIs in user mode leave no samples, their returns cannot be told from others.
#[test]
fn returns_prove_nothing_where_nmis_in_user_mode_leave_no_samples() {
    type Change = fn(&mut Kit);
    let separated = |changes: &[Change]| {
        let mut kit = Kit::new(2);
        kit.witness();
        let a = kit.kernel_only(1, 1001);
        kit.returns(1, 1001);
        kit.returns(1, 1001);
        let b = kit.kernel_only(1, 1001);
        kit.inject(0, 1002, C, user(0x1000));
        changes.iter().for_each(|change| change(&mut kit));
        separates(&kit, a, b)
    };
    let unseen: Change = |kit| kit.inject_unseen(0, user(0x1004));
    let lossy: Change = |kit| {
        kit.lost(1, 1);
    };
    let closed: Change = |kit| kit.close(0, "nmi");
    let corrupt: Change = |kit| kit.corrupt("ring 1");
    assert!(separated(&[]));
    assert!(separated(&[unseen]), "each NMI of the CPU leaves a sample");
    assert!(separated(&[lossy]), "those of the CPU are matched");
    assert!(separated(&[corrupt]), "those of the CPU are matched");
    assert!(!separated(&[unseen, lossy]));
    assert!(!separated(&[unseen, corrupt]));
    assert!(!separated(&[unseen, closed]));
}

/// A kernel's chain says in which kind of entry the second one is: a system call takes a user instruction.
#[test]
fn a_return_and_a_system_call_behind_it_prove_user_code() {
    let proof = |returns: bool, via: Via| {
        let mut kit = Kit::new(1);
        kit.witness();
        let first = kit.nmi(0, 1001, C);
        if returns {
            kit.returns(0, 1001);
        }
        let second = kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &outer(via, Far::Body));
        let trace = kit.trace();
        let code = EntryCode::new(EntryText);
        let facts = Facts::new(&trace, Some(&code));
        let [first, second] = [first, second].map(|at| &trace.events[at]);
        let between = facts.user_code_between(first, second);
        between.map(|it| it.why)
    };
    assert_eq!(proof(true, Via::Syscall), Some(Why::Called));
    assert_eq!(proof(false, Via::Syscall), None);
    // It may have come before the first user instruction.
    assert_eq!(proof(true, Via::Fault), None);
}
