//! What is counted of requests and their answers, and which sample each request is of.

use unwindlab_abi::user_mode::Asked;
use unwindlab_abi::user_stack::UserFrame::{self, Interpreted, Native};

use super::tests::{
    C, HANDLER, IP, N, STACK, answered, asked, designs, known_everywhere, with_interpreter,
};
use super::{Designs, NonceStacks, Signals};
use crate::invariant::Evidence;
use crate::invariant::testkit::{Kit, holds, kernel, undecided, user};
use crate::trace::Trace;
use crate::trace::model::CONTEXT_USER_DEFERRED;

const NEXT: u64 = C + (2 << 32);

fn stacks(trace: &Trace) -> Option<NonceStacks> {
    NonceStacks::of(&Evidence::new(trace))
}

/// Another NMI in the leaf, with its nonce and this result.
fn another(kit: &mut Kit, cookie: u64, nonce: u64, asked: Asked, frames: &[u64]) {
    kit.inject(0, 1001, cookie, user(IP));
    kit.nonce(1001, nonce, asked);
    kit.returns_to(0, 1001, HANDLER);
    kit.result(1001, nonce, frames);
}

#[test]
fn results_of_stacks_that_are_known_are_counted() {
    assert_eq!(stacks(&asked().trace()), None);
    let mut kit = answered();
    another(&mut kit, NEXT, N + 1, Asked::Sent, &STACK[..2]);
    another(&mut kit, NEXT, N + 2, Asked::Sent, &STACK);
    // No signal was sent for it.
    another(&mut kit, NEXT, N + 3, Asked::Refused, &STACK);
    let found = stacks(&kit.trace()).unwrap();
    assert_eq!((found.results, found.exact, found.frames), (3, 2, 12));
    assert_eq!(
        found.to_string(),
        "3 stacks of nonces where they are known, of 12 frames, by frame pointers: 2 exact"
    );
}

#[test]
fn an_exact_result_with_an_interpreters_functions_is_named() {
    let [leaf, outer, root] = [IP, 0x2100, 0x3000].map(Native);
    let [f, g, h] = [0, 1, 2].map(Interpreted);
    let found = |results: &[&[UserFrame]]| {
        let mut kit = asked();
        for frames in results {
            let words: Vec<u64> = frames.iter().map(|it| it.word()).collect();
            kit.result(1001, N, &words);
        }
        stacks(&with_interpreter(&kit)).unwrap()
    };
    let right = [leaf, h, g, f, outer, root];
    let wrong = [leaf, f, outer, root];
    let mixed = found(&[&wrong, &right, &right]);
    let text = "; one of them: 0x1004, h, g, f, 0x20ff, 0x2fff";
    assert!(mixed.to_string().ends_with(text), "{mixed}");
    assert!(mixed.to_string().contains("with interpreted functions"));
    assert_eq!(found(&[&wrong]).mixed, None);
}

#[test]
fn samples_that_the_kernel_refused_a_cookie_are_lost() {
    let mut kit = asked();
    kit.inject_kernel_only(0, 1001, kernel(0xffff_ffff_8100_0000));
    kit.nonce(1001, N + 1, Asked::Sent);
    kit.inject(0, 1001, 0, user(IP));
    kit.nonce(1001, N + 2, Asked::Sent);
    let found = designs(&kit);
    assert_eq!((found.kernel.asked, found.kernel.lost), (3, 3));
    assert_eq!((found.signals.asked, found.signals.lost), (3, 3));
}

#[test]
fn without_returns_and_known_stacks_nothing_is_exact_or_late() {
    let mut kit = Kit::new(1);
    kit.thread(0, 1001);
    kit.user_mode(HANDLER);
    for (cookie, nonce) in [(C, N), (NEXT, N + 1)] {
        kit.inject(0, 1001, cookie, user(IP));
        kit.nonce(1001, nonce, Asked::Sent);
        kit.deferred(0, 1001, cookie, &STACK);
        kit.result(1001, nonce, &STACK);
    }
    let Designs {
        kernel, signals, ..
    } = designs(&kit);
    assert_eq!((kernel.perhaps_late, signals.perhaps_late), (2, 2));
    assert_eq!((kernel.late, signals.late), (0, 0));

    let mut kit = known_everywhere(&[0x4004, 0x2000], 0x7008);
    kit.deferred(0, 1001, C, &[0x4004, 0x2000]);
    let found = designs(&kit);
    for answers in [found.kernel, found.signals] {
        assert_eq!((answers.not_known, answers.exact), (1, 0));
    }
}

#[test]
fn only_signals_that_say_so_are_late() {
    let late = |code, more| {
        let mut kit = asked();
        kit.result(1001, N, &STACK);
        let mut trace = kit.trace();
        let user_mode = trace.user_mode.as_mut().unwrap();
        (user_mode.results[0].code, user_mode.results[0].more) = (code, more);
        Signals::of(&trace).unwrap().late
    };
    assert_eq!((late(6, 1), late(6, 3)), (1, 1));
    assert_eq!((late(6, 0), late(6, 2), late(-2, 1)), (0, 0, 0));
}

#[test]
fn a_stack_as_built_has_the_leaf_and_the_callers() {
    let as_built = |frames: &[u64]| {
        let mut kit = asked();
        kit.result(1001, N, frames);
        Signals::of(&kit.trace()).unwrap().as_built
    };
    assert_eq!(as_built(&STACK), 1);
    assert_eq!(as_built(&[IP, 0x2000, 0x3000]), 0);
    assert_eq!(as_built(&[0x2000, 0x2000, 0x2000, 0x3000]), 0);
}

/// A request is of the sample of its own thread, by the event that defers at a tracepoint.
#[test]
fn other_threads_and_events_are_in_no_pair() {
    let mut kit = Kit::new(1);
    kit.witness();
    kit.thread(0, 1001);
    kit.user_mode(HANDLER);
    kit.spec("track", |spec| spec.defer_callchain = true);
    kit.sys_enter(0, 1001);
    kit.inject(0, 1002, NEXT, kernel(0xffff_ffff_8100_0000));
    kit.inject(0, 1001, C, user(IP));
    kit.nonce(1001, N, Asked::Sent);
    kit.returns_to(0, 1001, HANDLER);
    kit.result(1001, N, &STACK);
    assert_eq!(holds("N2", &kit).0, 1);
}

#[test]
fn a_request_and_a_sample_with_other_kernel_stacks_or_none_are_no_pair() {
    // Both requests show the kernel stack of the second sample.
    let mut kit = asked();
    kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000));
    kit.nonce(1001, N, Asked::Again);
    kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0004));
    kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0008));
    kit.nonce(1001, N, Asked::Again);
    kit.nonce(1001, N, Asked::Again);
    assert_eq!(undecided("N4", &kit), 1);

    let mut kit = Kit::new(1);
    kit.witness();
    kit.thread(0, 1001);
    kit.user_mode(HANDLER);
    kit.sample(0, 1001, 1, vec![CONTEXT_USER_DEFERRED, C]);
    kit.nonce(1001, N, Asked::Sent);
    kit.returns_to(0, 1001, HANDLER);
    kit.result(1001, N, &STACK);
    assert_eq!(undecided("N2", &kit), 1);
}

#[test]
fn results_that_were_not_read_leave_it_open_how_many_a_nonce_has() {
    for (no_slot, unfinished) in [(1, 0), (0, 1), (1, 1)] {
        let mut trace = answered().trace();
        let user_mode = trace.user_mode.as_mut().unwrap();
        (user_mode.no_slot, user_mode.unfinished) = (no_slot, unfinished);
        let check = crate::invariant::testkit::check("N1", &trace);
        let is_open = matches!(check, crate::invariant::Check::NotExercised { .. });
        assert!(is_open, "{no_slot} {unfinished}");
    }
}

/// A handler may have run between two samples of different entries, and a refused one left nothing pending.
#[test]
fn only_a_nonce_that_is_pending_is_used_again() {
    let two = |first, returns: bool| {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.thread(0, 1001);
        kit.user_mode(HANDLER);
        kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000));
        kit.nonce(1001, N, first);
        if returns {
            kit.returns_to(0, 1001, HANDLER);
        }
        kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0004));
        kit.nonce(1001, N + 1, Asked::Sent);
        undecided("N4", &kit)
    };
    assert_eq!(two(Asked::Sent, true), 0);
    assert_eq!(two(Asked::Refused, false), 0);
}
