//! Each invariant on a good log, and on the bad ones that it is there for.

use super::super::finding::{Findings, Resolver};
use super::super::{
    Check, Invariant, c1_stability, c2_freshness, c3_uniqueness, c4_format, c5_birth, c6_order,
    c7_origin, d2_one_callback, m1_completeness, m2_once, p1_runs, p2_entry_ends, r1_first_is_zero,
    r2_cancelled_is_refused, r3_limited, r4_none_after_cancel, r5_none_unasked, s1_identity,
    s3_identical, w0_console, x1_exit_answered, x2_exiting_refused,
};
use super::testkit::{LabKit, client, holds, not_exercised, violated};
use crate::trace::lab::{LabClient, LabKind};

const C: u64 = 3 << 32 | 1;
const NEXT: u64 = 5 << 32 | 1;
const STACK: [u64; 4] = [0x1010, 0x2000, 0x2000, 0x3000];

/// Two clients, two entries of task 1 and one of task 2, all answered.
fn good() -> LabKit {
    let mut kit = LabKit::new();
    kit.perf.thread(0, 1001);
    kit.target(1);
    for cookie in [C, NEXT] {
        kit.ask(1, client(0), 0, cookie);
        kit.ask(1, client(0), 1, cookie);
        kit.ask(1, client(1), 0, cookie);
        kit.call(1, client(1), cookie, &STACK);
        kit.call(1, client(0), cookie, &STACK);
        kit.leave(1);
    }
    kit.on(1).ask(2, client(0), 0, 3 << 32 | 2);
    kit.call(2, client(0), 3 << 32 | 2, &STACK);
    kit.leave(2);
    kit
}

#[test]
fn all_hold_on_a_good_log() {
    let mut kit = good();
    kit.cancel(client(0));
    kit.stop();
    let checks: [(&dyn Invariant, usize); 15] = [
        (&c1_stability::Stability, 4),
        (&c2_freshness::Freshness, 3),
        (&c3_uniqueness::Uniqueness, 3),
        (&c4_format::Format, 12),
        (&c5_birth::Birth, 3),
        (&c6_order::Order, 1),
        (&c7_origin::Origin, 5),
        (&m1_completeness::Completeness, 5),
        (&m2_once::Once, 5),
        (&d2_one_callback::OneCallback, 5),
        (&p1_runs::Runs, 3),
        (&p2_entry_ends::EntryEnds, 3),
        (&r1_first_is_zero::FirstIsZero, 5),
        (&r5_none_unasked::NoneUnasked, 5),
        (&s1_identity::Identity, 4),
    ];
    for (invariant, evidence) in checks {
        assert_eq!(holds(invariant, &kit).0, evidence, "{}", invariant.id());
    }
    assert_eq!(holds(&s3_identical::Identical, &kit).0, 2);
    assert_eq!(holds(&r4_none_after_cancel::NoneAfterCancel, &kit).0, 1);
    not_exercised(&x1_exit_answered::ExitAnswered, &kit);
    not_exercised(&x2_exiting_refused::ExitingRefused, &kit);
    not_exercised(&r2_cancelled_is_refused::CancelledIsRefused, &kit);
    not_exercised(&r3_limited::Limited, &kit);
}

#[test]
fn c1_two_cookies_in_one_entry() {
    let mut kit = LabKit::new();
    let a = kit.ask(1, client(0), 0, C);
    let b = kit.on(1).ask(1, client(1), 0, NEXT);
    assert_eq!(violated(&c1_stability::Stability, &kit), [a, b]);
}

#[test]
fn c1_a_new_cookie_while_leaving_is_the_exception() {
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.call(1, client(0), C, &STACK);
    let late = kit
        .nmi()
        .with(|f| f.leaving = true)
        .ask(1, client(0), 0, NEXT);
    let left = kit.leave(1);
    let mut unrelated = kit.clone();
    // The self-interrupt.
    kit.ask(1, client(1), 0, NEXT);
    kit.call(1, client(0), NEXT, &STACK);
    kit.call(1, client(1), NEXT, &STACK);
    kit.leave_from(1, 0x40, true);
    // A system call answers nothing of before.
    unrelated.call(1, client(0), NEXT, &STACK);
    unrelated.leave(1);
    let completeness = &m1_completeness::Completeness;
    assert_eq!(violated(completeness, &unrelated), [late, left]);
    not_exercised(&c1_stability::Stability, &kit);
    for invariant in [
        &m1_completeness::Completeness as &dyn Invariant,
        &d2_one_callback::OneCallback,
        &r1_first_is_zero::FirstIsZero,
        &r5_none_unasked::NoneUnasked,
        &c2_freshness::Freshness,
    ] {
        holds(invariant, &kit);
    }
}

#[test]
fn a_request_with_interrupts_off_that_more_follows_is_of_its_entry() {
    let mut kit = LabKit::new();
    let a = kit
        .nmi()
        .with(|f| f.irqs_off = true)
        .ask(1, client(0), 0, C);
    kit.ask(1, client(1), 0, C);
    kit.call(1, client(1), C, &STACK);
    let left = kit.leave(1);
    kit.call(1, client(0), C, &STACK);
    kit.leave_from(1, 0x40, true);
    assert_eq!(violated(&m1_completeness::Completeness, &kit), [a, left]);
}

#[test]
fn c2_one_cookie_in_two_entries() {
    let mut kit = LabKit::new();
    let a = kit.ask(1, client(0), 0, C);
    kit.leave(1);
    let b = kit.ask(1, client(0), 0, C);
    assert_eq!(violated(&c2_freshness::Freshness, &kit), [a, b]);
}

#[test]
fn c3_one_cookie_of_two_tasks() {
    let mut kit = LabKit::new();
    let a = kit.ask(1, client(0), 0, C);
    let b = kit.ask(2, client(0), 0, C);
    assert_eq!(violated(&c3_uniqueness::Uniqueness, &kit), [a, b]);
}

#[test]
fn c4_cookies_that_are_none() {
    for cookie in [0, 3 << 32, 4 << 32 | 1, 3 << 32 | 3] {
        let mut kit = LabKit::new();
        let a = kit.ask(1, client(0), 0, cookie);
        assert_eq!(violated(&c4_format::Format, &kit), [a]);
    }
    let mut kit = LabKit::new();
    let a = kit.ask(1, client(0), 0, C);
    let b = kit.call(1, client(0), 0, &STACK);
    assert_eq!(violated(&c4_format::Format, &kit), [a, b]);
}

#[test]
fn c5_a_cookie_of_another_cpu() {
    let mut kit = LabKit::new();
    let a = kit.on(1).ask(1, client(0), 0, C);
    assert_eq!(violated(&c5_birth::Birth, &kit), [a]);
    // perf may have been first, on the other CPU.
    kit.perf.nmi(0, 1001, C);
    not_exercised(&c5_birth::Birth, &kit);
}

#[test]
fn c6_a_count_that_goes_back() {
    let mut kit = LabKit::new();
    let a = kit.ask(1, client(0), 0, NEXT);
    let b = kit.ask(2, client(0), 0, C);
    assert_eq!(violated(&c6_order::Order, &kit), [a, b]);
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, 0xffff_ffff << 32 | 1);
    kit.ask(2, client(0), 0, 1 << 32 | 1);
    holds(&c6_order::Order, &kit);
}

#[test]
fn c7_a_callback_for_a_cookie_of_nobody() {
    let mut kit = LabKit::new();
    let a = kit.ask(1, client(0), 0, C);
    let b = kit.call(1, client(0), NEXT, &STACK);
    assert_eq!(violated(&c7_origin::Origin, &kit), [a, b]);
    // perf asked.
    kit.perf.nmi(0, 1001, NEXT);
    holds(&c7_origin::Origin, &kit);
}

#[test]
fn m1_a_request_that_is_not_answered() {
    let mut kit = LabKit::new();
    let a = kit.ask(1, client(0), 0, C);
    let mut open = kit.clone();
    let b = kit.leave(1);
    assert_eq!(violated(&m1_completeness::Completeness, &kit), [a, b]);
    // Answered for another client, or for another cookie, is not answered.
    let mut other = open.clone();
    other.call(1, client(1), C, &STACK);
    other.call(1, client(0), NEXT, &STACK);
    let b = other.leave(1);
    assert_eq!(violated(&m1_completeness::Completeness, &other), [a, b]);
    not_exercised(&m1_completeness::Completeness, &open);
    open.cancel(client(0));
    open.leave(1);
    not_exercised(&m1_completeness::Completeness, &open);
}

#[test]
fn m2_two_callbacks_of_a_cookie() {
    let mut kit = LabKit::new();
    let a = kit.call(1, client(0), C, &STACK);
    kit.leave(1);
    let b = kit.call(1, client(0), C, &STACK);
    assert_eq!(violated(&m2_once::Once, &kit), [a, b]);
}

#[test]
fn d2_two_callbacks_in_an_entry() {
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    let a = kit.call(1, client(0), C, &STACK);
    kit.ask(1, client(0), 0, NEXT);
    let b = kit.call(1, client(0), NEXT, &STACK);
    assert_eq!(violated(&d2_one_callback::OneCallback, &kit), [a, b]);
}

#[test]
fn p1_a_run_more_than_clients_that_joined() {
    // The list is backwards: client 1 is called first.
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.ask(1, client(1), 0, C);
    let a = kit.call(1, client(0), C, &STACK);
    let mut joined = kit.clone();
    let b = kit.call(1, client(1), C, &STACK);
    assert_eq!(violated(&p1_runs::Runs, &kit), [a, b]);
    joined.ask(1, client(1), 0, C);
    joined.call(1, client(1), C, &STACK);
    holds(&p1_runs::Runs, &joined);
}

#[test]
fn p1_who_asks_in_an_interrupt_may_have_hit_the_walk() {
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.nmi().ask(1, client(1), 0, C);
    kit.call(1, client(0), C, &STACK);
    kit.call(1, client(1), C, &STACK);
    holds(&p1_runs::Runs, &kit);
    // Nothing runs before the first has asked.
    let mut kit = LabKit::new();
    kit.nmi().ask(1, client(0), 0, C);
    kit.ask(1, client(1), 0, C);
    let a = kit.call(1, client(0), C, &STACK);
    let b = kit.call(1, client(1), C, &STACK);
    assert_eq!(violated(&p1_runs::Runs, &kit), [a, b]);
}

#[test]
fn p2_an_entry_that_calls_on_and_on() {
    let mut kit = LabKit::new();
    for _ in 0..65 {
        kit.call(1, client(0), C, &STACK);
    }
    assert_eq!(violated(&p2_entry_ends::EntryEnds, &kit).len(), 8);
}

#[test]
fn r1_orders_of_answers() {
    let first = &r1_first_is_zero::FirstIsZero;
    let mut kit = LabKit::new();
    let a = kit.ask(1, client(0), 1, C);
    assert_eq!(violated(first, &kit), [a]);
    let b = kit.ask(1, client(0), 0, C);
    assert_eq!(violated(first, &kit), [a, b]);

    let mut kit = LabKit::new();
    let a = kit.ask(1, client(0), 0, C);
    let b = kit.ask(1, client(0), 0, C);
    assert_eq!(violated(first, &kit), [a, b]);

    // The reset cleared the cookie of a request that was pending: the next one is not the first.
    let mut kit = LabKit::new();
    let late = kit.nmi().with(|f| f.leaving = true).ask(1, client(0), 0, C);
    kit.leave(1);
    let a = kit.ask(1, client(0), 1, NEXT);
    kit.call(1, client(0), NEXT, &STACK);
    kit.leave_from(1, 0x40, true);
    assert_eq!(violated(first, &kit), [late, a]);

    // The second began before the first one ended: it was interrupted by it.
    let mut kit = LabKit::new();
    let begin = kit.ask(1, client(1), 0, C);
    kit.ask(1, client(0), 1, C);
    kit.ask_since(1, client(0), 0, C, begin);
    holds(first, &kit);
}

/// The client had already found nothing to log a return for when the NMI asked.
#[test]
fn a_request_behind_the_last_look_is_of_the_entry_that_its_interrupt_makes() {
    let r5 = &r5_none_unasked::NoneUnasked;
    let mut kit = LabKit::new();
    kit.nmi().with(|f| f.leaving = true).ask(1, client(0), 0, C);
    kit.leave_unlogged(1);
    let mut other = kit.clone();
    let call = kit.call(1, client(0), C, &STACK);
    kit.leave_from(1, 0x40, true);
    holds(r5, &kit);
    holds(&m1_completeness::Completeness, &kit);
    // A system call is not what the NMI made.
    other.call(1, client(0), C, &STACK);
    other.leave(1);
    assert_eq!(violated(r5, &other), [call]);
}

#[test]
fn r2_a_cancelled_client_that_is_not_refused() {
    let refused = &r2_cancelled_is_refused::CancelledIsRefused;
    let mut kit = LabKit::new();
    let [_, done] = kit.cancel(client(0));
    let mut good = kit.clone();
    let a = kit.ask(1, client(0), 0, C);
    assert_eq!(violated(refused, &kit), [done, a]);
    good.ask(1, client(0), -22, 0);
    holds(refused, &good);
    // Under way meanwhile.
    let mut kit = LabKit::new();
    let [begin, _] = kit.cancel(client(0));
    kit.ask_since(1, client(0), 0, C, begin);
    not_exercised(refused, &kit);
}

#[test]
fn r3_limits() {
    let limited = &r3_limited::Limited;
    let mut kit = LabKit::empty();
    for number in 0..61 {
        kit.registered(client(number), 0);
    }
    let mut wrong = kit.clone();
    let a = wrong.registered(client(61), -12);
    assert_eq!(violated(limited, &wrong), [a]);
    let mut endless = kit.clone();
    endless.registered(client(61), 0);
    let a = endless.registered(client(62), 0);
    assert_eq!(violated(limited, &endless), [a]);
    kit.registered(client(61), -16);
    kit.cancel(client(7));
    kit.registered(client(62), 0);
    kit.registered(client(63), -16);
    assert_eq!(holds(limited, &kit).0, 2);

    let mut few = LabKit::new();
    let a = few.registered(client(2), -16);
    assert_eq!(violated(limited, &few), [a]);
}

#[test]
fn r4_callbacks_of_a_cancelled_client() {
    let none = &r4_none_after_cancel::NoneAfterCancel;
    let mut kit = LabKit::new();
    let [_, done] = kit.cancel(client(0));
    let a = kit.begin(1, client(0), C, &STACK);
    assert_eq!(violated(none, &kit), [done, a]);

    // One that has not ended.
    let mut kit = LabKit::new();
    let a = kit.begin(1, client(0), C, &STACK);
    let [_, done] = kit.cancel(client(0));
    let b = kit.end(1, client(0), a);
    assert_eq!(violated(none, &kit), [a, done, b]);

    // One that ends while it is waited for.
    let mut kit = LabKit::new();
    let a = kit.begin(1, client(0), C, &STACK);
    kit.mark(client(0), LabKind::Cancel);
    kit.end(1, client(0), a);
    kit.mark(client(0), LabKind::Cancelled);
    holds(none, &kit);
}

#[test]
fn r5_callbacks_that_nobody_asked_for() {
    let none = &r5_none_unasked::NoneUnasked;
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    let a = kit.call(1, client(1), C, &STACK);
    assert_eq!(violated(none, &kit), [a]);

    // In an entry before, or by the registration before, is not in this one.
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.leave(1);
    let a = kit.call(1, client(0), NEXT, &STACK);
    assert_eq!(violated(none, &kit), [a]);

    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    let again = LabClient {
        generation: 2,
        ..client(0)
    };
    let a = kit.call(1, again, C, &STACK);
    assert_eq!(violated(none, &kit), [a]);

    let mut kit = LabKit::new();
    let a = kit.call(0, client(0), C, &STACK);
    assert_eq!(violated(none, &kit), [a]);
}

/// A client that asks, is cancelled, and one in its place, registered then, that is called.
fn taken_place(number: u16, cookie: u64) -> LabKit {
    let next = LabClient {
        number,
        generation: 2,
    };
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.cancel(client(0));
    kit.registered(next, 0);
    kit.call(1, next, cookie, &STACK);
    kit
}

#[test]
fn r5_names_who_asked_from_the_same_place() {
    let none = &r5_none_unasked::NoneUnasked;
    assert_eq!(violated(none, &taken_place(0, C)), [2, 4, 5, 6]);
    assert_eq!(violated(none, &taken_place(1, C)), [6]);
}

/// A client that nobody asked for is called for this task, and has been cancelled so far.
fn unasked(task: u32, cancellation: &[LabKind]) -> LabKit {
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    for step in cancellation {
        kit.mark(client(1), step.clone());
    }
    kit.call(task, client(1), C, &STACK);
    kit
}

#[test]
fn r5_names_the_cancellation_that_has_begun() {
    let none = &r5_none_unasked::NoneUnasked;
    for task in [0, 1] {
        let mut kit = unasked(task, &[LabKind::Cancel]);
        assert_eq!(violated(none, &kit), [3, 4]);
        // It ends behind the callback, as it should.
        kit.mark(client(1), LabKind::Cancelled);
        assert_eq!(violated(none, &kit), [3, 4]);
        let Check::Violated(list) = none.check(&kit.trace()) else {
            panic!("not violated");
        };
        assert!(list[0].message.ends_with("; its cancellation had begun"));
        // It was over before (R4's), or begins behind the callback.
        let over = unasked(task, &[LabKind::Cancel, LabKind::Cancelled]);
        assert_eq!(violated(none, &over), [5]);
        let mut later = unasked(task, &[]);
        later.cancel(client(1));
        assert_eq!(violated(none, &later), [3]);
    }
}

/// The finding that the first violation of a log is.
fn finding(invariant: &dyn Invariant, kit: &LabKit) -> Option<String> {
    let mut trace = kit.trace();
    trace.release = "7.3.4-unwindlab".into();
    let Check::Violated(violations) = invariant.check(&trace) else {
        panic!("not violated");
    };
    let findings = Findings::embedded().expect("well-formed");
    let found = findings.match_finding(&violations[0], &trace, &Kernel);
    found.map(|id| id.to_string())
}

#[test]
fn f005_is_a_call_in_the_middle_of_the_cancellation_and_nothing_else() {
    let found = |kit: &LabKit| finding(&r5_none_unasked::NoneUnasked, kit);
    for task in [0, 1] {
        let kit = unasked(task, &[LabKind::Cancel]);
        assert_eq!(found(&kit).as_deref(), Some("F005"));
        // Not cancelled, cancelled later, already cancelled.
        assert_eq!(found(&unasked(task, &[])), None);
        let mut later = unasked(task, &[]);
        later.cancel(client(1));
        assert_eq!(found(&later), None);
        let over = unasked(task, &[LabKind::Cancel, LabKind::Cancelled]);
        assert_eq!(found(&over), None);
    }
    // Another client is being cancelled.
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.mark(client(0), LabKind::Cancel);
    kit.call(1, client(1), C, &STACK);
    assert_eq!(found(&kit), None);
    // For a cookie that is none.
    let mut kit = LabKit::new();
    kit.mark(client(1), LabKind::Cancel);
    kit.call(1, client(1), 0, &STACK);
    assert_eq!(found(&kit), None);
    assert_eq!(found(&taken_place(0, C)).as_deref(), Some("F003"));
}

#[test]
fn f005_is_that_report_of_kasan_and_no_other() {
    const HEAD: &str =
        "<3>[    2.984907] BUG: KASAN: wild-memory-access in process_unwind_deferred+0x275/0x460";
    const READ: &str =
        "<3>[    2.985290] Read of size 8 at addr 1fff888004697d88 by task syscalls-0/41";
    let found = |lines: &[&str]| {
        let mut kit = LabKit::new();
        for line in lines {
            kit.perf.log(line);
        }
        finding(&w0_console::Console, &kit)
    };
    assert_eq!(found(&["Linux", HEAD, READ]).as_deref(), Some("F005"));
    let other = |from: &str, to: &str| {
        let lines = [HEAD, READ].map(|line| line.replace(from, to));
        found(&lines.each_ref().map(String::as_str))
    };
    for (from, to) in [
        ("process_unwind_deferred", "unwind_deferred_cancel"),
        ("process_unwind_deferred", "process_unwind_deferred_late"),
        ("in process", "in __process"),
        ("wild-memory-access", "slab-use-after-free"),
        ("KASAN", "KCSAN"),
        ("BUG", "WARNING: BUG"),
        ("Read", "Write"),
        ("1fff888004697d88", "dead000000000122"),
    ] {
        assert_eq!(other(from, to), None, "{to}");
    }
    // The address is not known.
    assert_eq!(found(&[HEAD]), None);
    assert_eq!(found(&[HEAD, "other", READ]), None);
    assert_eq!(found(&[READ, HEAD]), None);
}

#[test]
fn f003_is_a_place_taken_within_the_entry_and_nothing_else() {
    let next = LabClient {
        generation: 2,
        ..client(0)
    };
    let found = |kit: &LabKit| finding(&r5_none_unasked::NoneUnasked, kit);
    assert_eq!(found(&taken_place(0, C)).as_deref(), Some("F003"));
    // Another place, another cookie.
    assert_eq!(found(&taken_place(1, C)), None);
    assert_eq!(found(&taken_place(0, NEXT)), None);
    // Registered before the cancellation ended, never cancelled, asked for behind it, asked for
    // in an entry before.
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.registered(next, 0);
    kit.cancel(client(0));
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.registered(next, 0);
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
    let mut kit = LabKit::new();
    kit.cancel(client(0));
    kit.ask(1, client(0), 0, C);
    kit.registered(next, 0);
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
    let mut kit = LabKit::new();
    kit.ask(1, client(0), 0, C);
    kit.leave(1);
    kit.cancel(client(0));
    kit.registered(next, 0);
    kit.call(1, next, C, &STACK);
    assert_eq!(found(&kit), None);
}

/// A kernel with the feature, of which nothing else is known.
struct Kernel;

impl Resolver for Kernel {
    fn function(&self, _: u64) -> Option<String> {
        None
    }

    fn has(&self, name: &str) -> bool {
        name == "unwind_deferred_request"
    }
}

#[test]
fn s1_another_stack_than_the_one_built() {
    let mut kit = good();
    let wrong = [0x1010, 0x2000, 0x2008, 0x3000];
    let a = kit.call(1, client(0), C, &wrong);
    assert_eq!(violated(&s1_identity::Identity, &kit), [a]);
}

#[test]
fn s3_two_stacks_of_one_cookie() {
    let mut kit = LabKit::new();
    let a = kit.call(1, client(0), C, &STACK);
    let mut perf = kit.clone();
    let b = kit.call(1, client(1), C, &STACK[..3]);
    assert_eq!(violated(&s3_identical::Identical, &kit), [a, b]);
    perf.perf.deferred(0, 1001, C, &STACK[..3]);
    assert_eq!(violated(&s3_identical::Identical, &perf), [a]);
}

#[test]
fn x1_exits_without_a_real_answer() {
    let answered = &x1_exit_answered::ExitAnswered;
    let mut kit = LabKit::new();
    let a = kit.ask(1, client(0), 0, C);
    let exit = kit.exit(1);
    let mut good = kit.clone();
    let mut empty = kit.clone();
    // Cancelled by the client's end, when all was over, or while the task exited.
    kit.cancel(client(0));
    kit.stop();
    assert_eq!(violated(answered, &kit), [a, exit]);
    let mut cancelled = good.clone();
    cancelled.cancel(client(0));
    cancelled.ask(2, client(1), 0, NEXT);
    cancelled.stop();
    not_exercised(answered, &cancelled);

    let b = empty.with(|f| f.exiting = true).call(1, client(0), C, &[]);
    empty.stop();
    assert_eq!(violated(answered, &empty), [exit, b]);

    good.with(|f| f.exiting = true)
        .call(1, client(0), C, &STACK);
    good.stop();
    holds(answered, &good);
}

#[test]
fn x2_a_request_for_an_exiting_task() {
    let refused = &x2_exiting_refused::ExitingRefused;
    for (ret, cookie) in [(0, C), (1, C), (-22, C)] {
        let mut kit = LabKit::new();
        let a = kit
            .with(|f| f.exiting = true)
            .ask(1, client(0), ret, cookie);
        assert_eq!(violated(refused, &kit), [a]);
    }
    let mut kit = LabKit::new();
    kit.with(|f| f.exiting = true).ask(1, client(0), -22, 0);
    holds(refused, &kit);
}
