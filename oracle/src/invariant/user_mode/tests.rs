use unwindlab_abi::message::{KnownStack, Program, UserSymbol};
use unwindlab_abi::user_mode::{Asked, UnwinderKind};
use unwindlab_abi::user_stack::UserFrame::{Interpreted, Native};

use super::{Designs, Signals};
use crate::invariant::testkit::entry_text::{Far, Via, outer};
use crate::invariant::testkit::{
    Kit, check, check_in, holds, kernel, not_exercised, undecided, user, violations,
};
use crate::invariant::{Check, Evidence};
use crate::trace::Trace;

pub(super) const C: u64 = 3 << 32 | 1;
pub(super) const N: u64 = 1 << 48 | 1;
pub(super) const HANDLER: u64 = 0x5000;
pub(super) const IP: u64 = 0x1004;
pub(super) const STACK: [u64; 4] = [IP, 0x2000, 0x2000, 0x3000];

/// An NMI in the leaf, its nonce, the return to the handler, and the result.
pub(super) fn answered() -> Kit {
    let mut kit = asked();
    kit.returns_to(0, 1001, HANDLER);
    kit.result(1001, N, &STACK);
    kit
}

/// An NMI in the leaf and its nonce.
pub(super) fn asked() -> Kit {
    let mut kit = Kit::new(1);
    kit.witness();
    kit.thread(0, 1001);
    kit.inject(0, 1001, C, user(IP));
    kit.user_mode(HANDLER);
    kit.nonce(1001, N, Asked::Sent);
    kit
}

#[test]
fn a_nonce_with_its_result_holds() {
    for id in ["N1", "N2", "N3"] {
        assert_eq!(holds(id, &answered()).0, 1, "{id}");
    }
    not_exercised("N4", &answered());
}

#[test]
fn a_second_result_of_a_nonce_does_not_hold() {
    let mut kit = answered();
    kit.result(1001, N, &STACK);
    violations("N1", &kit);
    let mut kit = answered();
    kit.result(1001, N + 1, &STACK);
    assert!(violations("N1", &kit)[0].message.contains("no signal"));
}

#[test]
fn a_nonce_without_a_result_is_no_evidence() {
    for id in ["N1", "N2"] {
        assert_eq!(undecided(id, &asked()), 1, "{id}");
    }
}

#[test]
fn user_code_before_the_handler_does_not_hold() {
    let mut kit = asked();
    kit.returns_to(0, 1001, IP);
    kit.returns_to(0, 1001, HANDLER);
    kit.result(1001, N, &STACK);
    violations("N2", &kit);
}

/// As from the return of the handler, whose signal waits.
#[test]
fn user_code_behind_a_sample_that_hit_it_anywhere_decides_nothing() {
    let after = |via: Option<Via>| {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.thread(0, 1001);
        kit.user_mode(HANDLER);
        match via {
            Some(via) => {
                let at = kernel(0xffff_ffff_8100_0000);
                kit.nmi_in(0, 1001, C, at, &outer(via, Far::Body));
            }
            None => {
                kit.nmi_in(0, 1001, C, user(IP), &[]);
            }
        }
        kit.nonce(1001, N, Asked::Sent);
        kit.returns_to(0, 1001, 0x7000);
        kit.returns_to(0, 1001, HANDLER);
        kit.result(1001, N, &STACK);
        kit
    };
    assert_eq!(undecided("N2", &after(None)), 1);
    assert_eq!(undecided("N2", &after(Some(Via::Tick))), 1);
    violations("N2", &after(Some(Via::Syscall)));
}

#[test]
fn an_answer_in_the_kernel_is_no_return_to_a_handler() {
    let mut kit = asked();
    kit.user_mode(0);
    kit.nonce(1001, N, Asked::Sent);
    kit.returns_to(0, 1001, IP);
    kit.result(1001, N, &STACK);
    assert_eq!(undecided("N2", &kit), 1);
    for id in ["N1", "N3"] {
        assert_eq!(holds(id, &kit).0, 1, "{id}");
    }
}

#[test]
fn another_stack_does_not_hold() {
    for wrong in [
        &[IP, 0x2000, 0x3000][..],
        &[IP + 4, 0x2000, 0x2000, 0x3000],
        &[IP],
        &[],
    ] {
        let mut kit = asked();
        kit.returns_to(0, 1001, HANDLER);
        kit.result(1001, N, wrong);
        violations("N3", &kit);
    }
}

/// An NMI in the kernel that was entered this way, and a result that goes on behind the leaf's system call.
fn in_kernel(via: Via) -> Kit {
    let mut kit = Kit::new(1);
    kit.witness();
    kit.thread(0, 1001);
    kit.user_mode(HANDLER);
    let at = kernel(0xffff_ffff_8100_0000).iteration(0, 1);
    kit.inject_in(0, 1001, C, at, &outer(via, Far::Body));
    kit.nonce(1001, N, Asked::Sent);
    kit.result(1001, N, &[0x1080, 0x2000, 0x2000, 0x3000]);
    kit
}

#[test]
fn where_a_thread_goes_on_is_known_in_its_system_call_only() {
    assert_eq!(holds("N3", &in_kernel(Via::Syscall)).0, 1);
    assert_eq!(undecided("N3", &in_kernel(Via::Tick)), 1);
}

/// The handler's return goes on where it was interrupted. Outside of its own function, the chain does not say that it is
/// one.
#[test]
fn where_a_handlers_return_goes_on_is_not_known() {
    let trace = in_kernel(Via::Syscall).trace();
    for (name, evidence) in [
        ("__x64_sys_rt_sigreturn", 0),
        ("__ia32_compat_sys_sigreturn", 0),
        ("__ia32_compat_sys_execve", 0),
        ("do_syscall_64", 0),
        ("__x64_sys_getppid", 1),
    ] {
        let held = match check_in("N3", &trace, name) {
            Check::Holds { evidence, .. } => evidence,
            Check::NotExercised { undecided: 1, .. } => 0,
            other => panic!("{other:?}"),
        };
        assert_eq!(held, evidence, "{name}");
    }
}

#[test]
fn a_second_nonce_in_an_entry_does_not_hold() {
    let two = |second: u64, asked| {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.thread(0, 1001);
        kit.user_mode(HANDLER);
        kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000));
        kit.nonce(1001, N, Asked::Sent);
        kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0004));
        kit.nonce(1001, second, asked);
        kit
    };
    assert_eq!(holds("N4", &two(N, Asked::Again)).0, 1);
    violations("N4", &two(N + 1, Asked::Sent));
}

/// As a thread that exits is refused by perf and by the program.
#[test]
fn a_sample_without_a_cookie_has_its_request_too() {
    let mut kit = answered();
    kit.inject_kernel_only(0, 1001, kernel(0xffff_ffff_8100_0000));
    kit.nonce(1001, N + 1, Asked::Refused);
    assert_eq!(holds("N2", &kit).0, 1);
}

/// As perf gives a thread that is about to be gone no id.
#[test]
fn requests_without_a_nonce_may_be_left_at_the_end() {
    for (asked, holding) in [
        (Asked::NotOptedIn, true),
        (Asked::Refused, true),
        (Asked::Again, false),
    ] {
        let mut kit = answered();
        kit.nonce(1001, N, asked);
        match holding {
            true => assert_eq!(holds("N2", &kit).0, 1),
            false => assert_eq!(undecided("N2", &kit), 1),
        }
    }
}

#[test]
fn requests_that_are_not_in_pairs_with_samples_decide_nothing() {
    let mut kit = asked();
    kit.nonce(1001, N, Asked::Again);
    for id in ["N2", "N3", "N4"] {
        assert_eq!(undecided(id, &kit), 1, "{id}");
    }
}

/// The result of a semantic unwinder for the stack of which the first caller is the interpreter's.
fn semantic(frames: &[unwindlab_abi::user_stack::UserFrame]) -> Check {
    let mut kit = asked();
    kit.returns_to(0, 1001, HANDLER);
    let words: Vec<u64> = frames.iter().map(|it| it.word()).collect();
    kit.result(1001, N, &words);
    check("N3", &with_interpreter(&kit))
}

/// The trace of a program whose first caller is an interpreter, unwound by one that knows its functions.
pub(super) fn with_interpreter(kit: &Kit) -> Trace {
    let mut trace = kit.trace();
    trace.threads[0].stack.callers = vec![(0x2000, 1), (0x2100, 1), (0x3000, 1)];
    trace.user_symbols = vec![UserSymbol {
        name: "interpret".to_owned(),
        start: 0x1f00,
        end: 0x2010,
    }];
    trace.user_mode.as_mut().unwrap().unwinder = UnwinderKind::Semantic;
    trace
}

#[test]
fn a_semantic_result_shows_the_interpreters_functions() {
    let [leaf, interpreter, outer, root] = [IP, 0x2000, 0x2100, 0x3000].map(Native);
    let [f, g, h] = [0, 1, 2].map(Interpreted);
    let right = semantic(&[leaf, h, g, f, outer, root]);
    let Check::Holds { excused, .. } = right else {
        panic!("{right:?}");
    };
    assert!(excused.concat().contains("h, g, f, "), "{excused:?}");
    for wrong in [
        &[leaf, f, g, h, outer, root][..],
        &[leaf, h, f, outer, root],
        &[leaf, interpreter, outer, root],
        &[leaf, h, g, f, outer],
    ] {
        assert!(matches!(semantic(wrong), Check::Violated(_)), "{wrong:?}");
    }
}

/// At an instruction outside of the leaf, where the stack is known by the stack pointer.
pub(super) fn known_everywhere(frames: &[u64], stack_pointer: u64) -> Kit {
    let at = 0x4004;
    let mut kit = Kit::new(1);
    kit.witness();
    kit.thread(0, 1001);
    kit.inject(0, 1001, C, user(at).with_stack(stack_pointer));
    kit.user_mode(HANDLER);
    kit.nonce(1001, N, Asked::Sent);
    kit.returns_to(0, 1001, HANDLER);
    kit.result(1001, N, frames);
    kit.program(Program {
        stacks: vec![KnownStack {
            start: 0x4000,
            end: 0x4010,
            stack_pointer: Some(0x7000),
            callers: vec![(0x2000, 1)],
        }],
        covered: Vec::new(),
    });
    kit
}

#[test]
fn a_stack_that_is_known_at_each_instruction_is_judged() {
    let right = known_everywhere(&[0x4004, 0x2000], 0x7000);
    for id in ["N2", "N3"] {
        assert_eq!(holds(id, &right).0, 1, "{id}");
    }
    violations("N3", &known_everywhere(&[0x4004], 0x7000));
    assert_eq!(undecided("N3", &known_everywhere(&[0x4004], 0x7008)), 1);
}

/// What both designs made of a trace.
pub(super) fn designs(kit: &Kit) -> Designs {
    Designs::of(&Evidence::new(&kit.trace())).unwrap()
}

#[test]
fn both_designs_are_counted() {
    let mut kit = answered();
    kit.deferred(0, 1001, C, &STACK);
    let found = designs(&kit);
    assert_eq!(found.samples, 1);
    assert_eq!((found.kernel.asked, found.kernel.exact), (1, 1));
    assert_eq!((found.signals.asked, found.signals.exact), (1, 1));
    // The return to the handler came before the kernel's answer.
    assert_eq!((found.kernel.late, found.signals.late), (1, 0));
}

#[test]
fn what_each_design_gets_wrong_is_counted() {
    let mut kit = asked();
    kit.deferred(0, 1001, C, &STACK[..2]);
    kit.deferred(0, 1001, C, &STACK);
    kit.returns_to(0, 1001, IP);
    kit.result(1001, N, &STACK[..3]);
    kit.result(1001, N, &STACK);
    let found = designs(&kit);
    assert_eq!(
        (found.kernel.wrong, found.kernel.twice, found.kernel.late),
        (1, 1, 0)
    );
    assert_eq!(
        (found.signals.wrong, found.signals.twice, found.signals.late),
        (1, 1, 1)
    );
    let found = designs(&asked());
    assert_eq!((found.kernel.lost, found.signals.lost), (1, 1));
}

/// Results without a program that makes nonces.
fn signals(kit: &Kit) -> Signals {
    let mut trace = kit.trace();
    if let Some(user_mode) = &mut trace.user_mode {
        user_mode.requests.clear();
        for (result, more) in user_mode.results.iter_mut().zip([3, 4]) {
            (result.code, result.more) = (-2, more);
        }
    }
    Signals::of(&trace).unwrap()
}

#[test]
fn what_signals_carry_is_counted() {
    let mut kit = asked();
    kit.result(1001, N, &STACK);
    kit.result(1002, N, &STACK[..2]);
    let found = signals(&kit);
    assert_eq!((found.results, found.values, found.overruns), (2, 1, 7));
    assert_eq!((found.strangers, found.as_built), (1, 1));
    assert!(!found.has_nonces);
    assert!(found.to_string().contains("SI_TIMER"), "{found}");
    kit.result(1001, N + 1, &STACK);
    assert_eq!(signals(&kit).values, 2);
    assert_eq!(Signals::of(&asked().trace()), None);
}

#[test]
fn samples_of_who_has_not_opted_in_are_of_neither_design() {
    let mut kit = asked();
    kit.inject(0, 1001, C + (2 << 32), user(IP));
    kit.nonce(1001, 0, Asked::NotOptedIn);
    let found = designs(&kit);
    assert_eq!(
        (found.samples, found.kernel.asked, found.signals.asked),
        (1, 1, 1)
    );
}
