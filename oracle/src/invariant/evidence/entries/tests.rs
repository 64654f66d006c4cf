//! What proves that two records are of one entry, and what does not.

use super::*;
use crate::invariant::evidence::Facts;
use crate::invariant::testkit::entry_text::{EntryText, Far, Via, outer};
use crate::invariant::testkit::{Kit, SOMEWHERE, kernel, user};
use crate::trace::Trace;
use crate::trace::model::Recorded;
use origin::Phase;

const C: u64 = 3 << 32 | 1;
const IN: Via = Via::Syscall;

fn relation(trace: &Trace, a: usize, b: usize) -> Relation {
    let code = EntryCode::new(EntryText);
    let facts = Facts::new(trace, Some(&code));
    let both = [(a, b), (b, a)].map(|(a, b)| facts.relation(&trace.events[a], &trace.events[b]));
    assert_eq!(both[0], both[1], "the order does not matter");
    let [relation, _] = both;
    relation
}

fn why(trace: &Trace, a: usize, b: usize) -> String {
    match relation(trace, a, b) {
        Relation::Different(proof) => proof.why.to_string(),
        other => format!("{other:?}"),
    }
}

fn origin(via: Via, far: Far) -> Origin {
    let mut kit = Kit::new(1);
    let frames = outer(via, far);
    // Of a stub and of what is late the first frame is the interrupted one.
    let asked = match (far, frames.as_slice()) {
        (Far::Stub | Far::Late, [rip, rest @ ..]) => kit.nmi_in(0, 1001, C, kernel(*rip), rest),
        _ => kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &frames),
    };
    let trace = kit.trace();
    let code = EntryCode::new(EntryText);
    Facts::new(&trace, Some(&code)).origin(&trace.events[asked])
}

#[test]
fn the_bottom_of_a_kernel_chain_says_where_it_is() {
    for (far, phase) in [
        (Far::Stub, Phase::Before),
        (Far::Before, Phase::Before),
        (Far::Body, Phase::Body),
        (Far::After, Phase::After),
        (Far::Work, Phase::ExitWork),
        (Far::Late, Phase::Unknown),
    ] {
        assert_eq!(
            origin(Via::Syscall, far),
            Origin::SystemCall(phase),
            "{far:?}"
        );
    }
    for via in [Via::Tick, Via::Fault] {
        for (far, phase) in [
            (Far::Body, Phase::Body),
            (Far::Work, Phase::ExitWork),
            (Far::Late, Phase::Unknown),
        ] {
            assert_eq!(
                origin(via, far),
                Origin::Interrupt(phase),
                "{via:?} {far:?}"
            );
        }
    }
    assert_eq!(origin(Via::Fork, Far::Body), Origin::Fork(Phase::Body));
    assert_eq!(origin(Via::Fork, Far::Late), Origin::Fork(Phase::Unknown));
}

#[test]
fn an_nmi_in_the_stub_of_a_fault_may_be_one_of_a_fault_in_the_kernel() {
    assert_eq!(origin(Via::Fault, Far::Stub), Origin::Unknown);
    // A fault of the walk that answers the first sample, behind `sys_exit`. If it were the user's, the
    // request would not have been answered in its entry.
    let proof = |far, frames: &dyn Fn(&mut Kit, Vec<u64>) -> usize| {
        let mut kit = Kit::new(1);
        let asked = kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &outer(IN, Far::Body));
        kit.sys_exit(0, 1001);
        let again = frames(&mut kit, outer(Via::Fault, far));
        why(&kit.trace(), asked, again)
    };
    let in_stub = |kit: &mut Kit, frames: Vec<u64>| kit.nmi_in(0, 1001, C, kernel(frames[0]), &[]);
    assert_eq!(proof(Far::Stub, &in_stub), "Unknown");
    let in_handler =
        |kit: &mut Kit, frames: Vec<u64>| kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &frames);
    assert_eq!(
        proof(Far::Body, &in_handler),
        "the task ended its system call in between"
    );
}

#[test]
fn a_chain_that_was_cut_or_ends_elsewhere_says_nothing() {
    let frames = outer(IN, Far::Body);
    let mut kit = Kit::new(1);
    let whole = kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &frames);
    let elsewhere = kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &[SOMEWHERE]);
    let code = EntryCode::new(EntryText);
    let trace = kit.trace();
    let facts = Facts::new(&trace, Some(&code));
    assert_ne!(facts.origin(&trace.events[whole]), Origin::Unknown);
    assert_eq!(facts.origin(&trace.events[elsewhere]), Origin::Unknown);
    kit.spec("nmi", |spec| spec.max_stack = 5);
    let trace = kit.trace();
    let facts = Facts::new(&trace, Some(&code));
    assert_eq!(facts.origin(&trace.events[whole]), Origin::Unknown);
    // Without the kernel's text nothing is known, and nothing is assumed.
    let facts = Facts::new(&trace, None);
    assert_eq!(facts.origin(&trace.events[whole]), Origin::Unknown);
}

#[test]
fn no_return_noted_in_between_is_one_entry_on_whatever_rings() {
    let mut kit = Kit::new(2);
    kit.witness();
    let a = kit.nmi(0, 1001, C);
    kit.returns(1, 1002);
    let b = kit.deferred(1, 1001, C, &[0x40]);
    kit.returns(1, 1001);
    let c = kit.nmi(1, 1001, C);
    let mut trace = kit.trace();
    assert_eq!(relation(&trace, a, b), Relation::Same(Together::NoUserCode));
    assert_eq!(
        why(&trace, b, c),
        "the task returned to user mode in between"
    );
    // A witness that ended before says nothing of what comes later.
    let witness = trace.witness.as_mut().unwrap();
    (witness.complete, witness.returns) = (false, Vec::new());
    assert_eq!(relation(&trace, a, b), Relation::Unknown);
}

#[test]
fn what_is_asked_behind_the_exit_work_has_one_return_free() {
    for (far, first, second) in [(Far::Body, false, false), (Far::Late, true, false)] {
        let mut kit = Kit::new(1);
        kit.witness();
        let frames = outer(IN, far);
        let a = match (far, frames.as_slice()) {
            (Far::Late, [rip, rest @ ..]) => kit.nmi_in(0, 1001, C, kernel(*rip), rest),
            _ => kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &frames),
        };
        kit.returns(0, 1001);
        let b = kit.deferred(0, 1001, C, &[0x40]);
        kit.returns(0, 1001);
        let c = kit.deferred(0, 1001, C, &[0x40]);
        let trace = kit.trace();
        let open = |at| relation(&trace, a, at) == Relation::Unknown;
        assert_eq!((open(b), open(c)), (first, second), "{far:?}");
    }
}

#[test]
fn each_nmi_in_user_mode_has_a_return_of_its_own() {
    let mut kit = Kit::new(1);
    kit.witness();
    let a = kit.inject_in(0, 1001, C, user(0x1004), &[]);
    kit.returns(0, 1001);
    kit.inject_in(0, 1001, C, user(0x1004), &[]);
    kit.returns(0, 1001);
    let b = kit.deferred(0, 1001, C, &[0x1004]);
    kit.returns(0, 1001);
    let c = kit.deferred(0, 1001, C, &[0x1004]);
    let trace = kit.trace();
    assert_eq!(relation(&trace, a, b), Relation::Unknown);
    assert_eq!(
        why(&trace, a, c),
        "the task returned to user mode 3 times in between"
    );
    // NMIs that leave no sample may have made any number of them.
    kit.spec("nmi", |spec| {
        spec.source = crate::invariant::testkit::tracepoint("x", "y")
    });
    assert_eq!(relation(&kit.trace(), a, c), Relation::Unknown);
}

#[test]
fn the_same_user_instruction_is_a_proof_where_coming_back_takes_a_system_call() {
    for (announced, shown, proved) in [
        (true, 0x1004, true),
        (false, 0x1004, false),
        (true, 0x1008, false),
    ] {
        let mut kit = Kit::new(1);
        kit.witness();
        if announced {
            kit.thread(0, 1001);
        }
        let a = kit.inject_in(0, 1001, C, user(0x1004), &[]);
        kit.returns(0, 1001);
        let b = kit.deferred(0, 1001, C, &[shown]);
        let same = matches!(relation(&kit.trace(), a, b), Relation::Same(_));
        assert_eq!(same, proved, "{announced} {shown:#x}");
    }
    // In a leaf without a system call it is none.
    let mut kit = Kit::new(1);
    kit.witness();
    kit.thread(0, 1001);
    let a = kit.inject_in(0, 1001, C, user(0x1004), &[]);
    kit.returns(0, 1001);
    let b = kit.deferred(0, 1001, C, &[0x1004]);
    let mut trace = kit.trace();
    trace.threads[0].stack.syscall_return = 0;
    assert_eq!(relation(&trace, a, b), Relation::Unknown);
}

/// A kernel that makes no self-interrupt answers in the leaf's next system call, which also returns
/// to the instruction behind it.
#[test]
fn the_instruction_behind_the_system_call_is_no_proof() {
    let late = outer(IN, Far::Late);
    let requests: [&dyn Fn(&mut Kit) -> usize; 2] = [
        &|kit| kit.nmi_in(0, 1001, C, kernel(late[0]), &late[1..]),
        &|kit| kit.inject_in(0, 1001, C, user(0x1080), &[]),
    ];
    for request in requests {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.thread(0, 1001);
        let a = request(&mut kit);
        kit.returns(0, 1001);
        let b = kit.deferred(0, 1001, C, &[0x1080]);
        assert_eq!(relation(&kit.trace(), a, b), Relation::Unknown);
    }
}

#[test]
fn one_sys_enter_is_a_proof_if_the_request_is_past_its_own() {
    let told = "the task began another system call in between";
    for (via, far, proof) in [
        (IN, Far::Stub, "Unknown"),
        (IN, Far::Before, "Unknown"),
        (IN, Far::Body, told),
        (IN, Far::After, told),
        (IN, Far::Work, told),
        (IN, Far::Late, "Unknown"),
        (Via::Tick, Far::Body, told),
        (Via::Tick, Far::Late, told),
        (Via::Fault, Far::Work, told),
        (Via::Fork, Far::Body, told),
    ] {
        let mut kit = Kit::new(1);
        let frames = outer(via, far);
        let a = match (far, frames.as_slice()) {
            (Far::Stub | Far::Late, [rip, rest @ ..]) => kit.nmi_in(0, 1001, C, kernel(*rip), rest),
            _ => kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &frames),
        };
        kit.sys_enter(0, 1001);
        let b = kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(why(&kit.trace(), a, b), proof, "{via:?} {far:?}");
    }
    let mut kit = Kit::new(1);
    let a = kit.inject_in(0, 1001, C, user(0x1004), &[]);
    kit.sys_enter(0, 1001);
    let b = kit.deferred(0, 1001, C, &[0x1080]);
    assert_eq!(why(&kit.trace(), a, b), told);
    // Of a record 22 nothing shows that it is past its own: a tracer's stop may write it before.
    let late = kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &outer(IN, Far::Body));
    kit.sys_exit(0, 1001);
    let mut kit = Kit::new(1);
    let d = kit.deferred(0, 1001, C, &[0x40]);
    kit.sys_enter(0, 1001);
    let s = kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &outer(IN, Far::Body));
    assert_eq!(relation(&kit.trace(), d, s), Relation::Unknown);
    assert!(late > b);
}

/// Of a recording: an interrupt that hit a seccomp filter, before `sys_enter`, ends in the same stub.
#[test]
fn a_chain_that_ends_in_an_interrupt_need_not_come_from_user_mode() {
    for via in [Via::Tick, Via::Fault] {
        let mut kit = Kit::new(1);
        let a = kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &outer(via, Far::Body));
        kit.sys_enter(0, 1001);
        let b = kit.deferred(0, 1001, C, &[0x40]);
        let mut trace = kit.trace();
        assert!(matches!(relation(&trace, a, b), Relation::Different(_)));
        trace.recorded = Some(Recorded::default());
        assert_eq!(relation(&trace, a, b), Relation::Unknown, "{via:?}");
    }
}

#[test]
fn one_sys_exit_is_a_proof_if_the_second_record_is_before_its_own() {
    for (via, far, different) in [
        (IN, Far::Body, true),
        (IN, Far::Before, true),
        (IN, Far::After, false),
        (IN, Far::Work, false),
        (IN, Far::Late, false),
        (Via::Tick, Far::Body, true),
        (Via::Fault, Far::Late, true),
    ] {
        let mut kit = Kit::new(1);
        let a = kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        let frames = outer(via, far);
        let b = match (far, frames.as_slice()) {
            (Far::Late, [rip, rest @ ..]) => kit.nmi_in(0, 1001, C, kernel(*rip), rest),
            _ => kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &frames),
        };
        let found = matches!(relation(&kit.trace(), a, b), Relation::Different(_));
        assert_eq!(found, different, "{via:?} {far:?}");
    }
}

#[test]
fn an_answer_behind_sys_exit_may_come_after_the_return() {
    let mut kit = Kit::new(1);
    kit.sys_enter(0, 1001);
    let a = kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &outer(IN, Far::Body));
    let early = kit.deferred(0, 1001, C, &[0x40]);
    kit.sys_exit(0, 1001);
    let b = kit.deferred(0, 1001, C, &[0x40]);
    kit.sys_enter(0, 1001);
    let trace = kit.trace();
    assert_eq!(
        relation(&trace, a, early),
        Relation::Same(Together::SystemCall)
    );
    assert_eq!(relation(&trace, a, b), Relation::Unknown);
}

#[test]
fn two_sys_exits_are_two_system_calls() {
    let mut kit = Kit::new(1);
    let a = kit.nmi(0, 1001, C);
    kit.sys_exit(0, 1001);
    // A system call that a tracer denies has no `sys_enter`.
    kit.sys_exit(0, 1001);
    let b = kit.nmi(0, 1001, C);
    assert!(matches!(
        relation(&kit.trace(), a, b),
        Relation::Different(_)
    ));
    let mut kit = Kit::new(1);
    let a = kit.nmi(0, 1001, C);
    kit.sys_enter(0, 1001);
    kit.sys_exit(0, 1001);
    let b = kit.nmi(0, 1001, C);
    assert_eq!(relation(&kit.trace(), a, b), Relation::Unknown);
}

#[test]
fn each_of_many_system_calls_is_around_its_own() {
    let mut kit = Kit::new(1);
    let mut pairs = Vec::new();
    for _ in 0..6 {
        kit.sys_enter(0, 1001);
        let asked = kit.nmi(0, 1001, C);
        pairs.push((asked, kit.deferred(0, 1001, C, &[0x40])));
        kit.sys_exit(0, 1001);
    }
    let trace = kit.trace();
    for (asked, answered) in pairs {
        let found = relation(&trace, asked, answered);
        assert_eq!(found, Relation::Same(Together::SystemCall), "{asked}");
    }
}

/// A client that asks behind the exit work keeps the kernel from the reset, and so from the end of the entry.
#[test]
fn what_the_lab_client_asked_behind_the_exit_work_takes_a_proof_away() {
    use crate::invariant::testkit::lab::{LabKit, client};

    let found = |tid: u32, before: bool, late: bool| {
        let mut kit = LabKit::new();
        let ask = |kit: &mut LabKit| {
            if late {
                kit.nmi().with(|flags| flags.leaving = true);
            }
            kit.ask(tid, client(0), 0, C);
        };
        if before {
            ask(&mut kit);
        }
        let a = kit.perf.nmi(0, 1001, C);
        kit.perf.sys_exit(0, 1001);
        if !before {
            ask(&mut kit);
        }
        let frames = outer(Via::Tick, Far::Body);
        let b = kit.perf.nmi_in(0, 1001, C, kernel(SOMEWHERE), &frames);
        ask(&mut kit);
        why(&kit.trace(), a, b)
    };
    let elsewhere = "the task ended its system call in between";
    assert_eq!(found(1, false, true), "Unknown");
    assert_eq!(found(1, true, true), elsewhere);
    assert_eq!(found(1, false, false), elsewhere);
    assert_eq!(found(2, false, true), elsewhere);
}
