//! F011: requests behind the exit work, and requests that are late for another reason.

use unwindlab_abi::plan::{EventSource, EventSpec};

use super::image::fixture::Built;
use super::*;
use crate::invariant::testkit::lab::{C, LabKit, client};
use crate::invariant::testkit::{Kit, row, spec, tracepoint, violated};
use crate::invariant::{Check, EntryCode, KernelText};
use crate::trace::Trace;
use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER_DEFERRED};

fn kprobe(function: &str, offset: u64, at_return: bool) -> EventSource {
    EventSource::Kprobe {
        function: function.into(),
        offset,
        at_return,
        optimized: false,
    }
}

fn at(function: &str, offset: u64) -> u64 {
    Built::at(function, offset)
}

/// The names of that kernel's functions: its stubs say that an interrupt made the entry.
struct Stubs;

impl KernelText for Stubs {
    fn symbol(&self, address: u64) -> Option<(String, u64)> {
        let kernel = Built::default();
        let name = kernel.function(address)?;
        let start = kernel.address(&name)?;
        Some((name, address - start))
    }

    fn code(&self, _address: u64, _length: usize) -> Option<Vec<u8>> {
        None
    }
}

fn found(trace: &Trace, kernel: &Built) -> BTreeSet<Option<String>> {
    let mut trace = trace.clone();
    trace.release = "7.3.4-unwindlab".into();
    let list = Findings::embedded().expect("well-formed");
    let code = EntryCode::new(Stubs);
    let evidence = Evidence::new(&trace).knowing(&code);
    let judged = ["C2", "M1", "M3", "S4"].map(|id| row(id).check(&evidence));
    let violations = judged.into_iter().flat_map(|check| match check {
        Check::Violated(list) => list,
        _ => Vec::new(),
    });
    let ids = violations.map(|it| list.match_finding(&it, &evidence, kernel));
    ids.map(|id| id.map(|id| id.to_string())).collect()
}

/// A system call, and behind it a request with this kernel chain.
fn asked(source: EventSource, chain: &[u64]) -> Kit {
    let mut kit = Kit::new(1);
    kit.thread(0, 1001);
    let asker = kit.open(EventSpec {
        defer_callchain: true,
        ..spec("asker", source)
    });
    kit.sys_enter(0, 1001);
    kit.sys_exit(0, 1001);
    kit.sample(0, 1001, asker, chain_of(chain));
    kit
}

/// It is answered in the next system call.
fn late(source: EventSource, chain: &[u64]) -> Trace {
    let mut kit = asked(source, chain);
    kit.sys_enter(0, 1001);
    kit.deferred(0, 1001, C, &[0x40, 0x80]);
    kit.trace()
}

/// A request as F011 has it, and so many system calls behind it.
fn followed_by(calls: usize) -> Kit {
    let source = kprobe("switch_fpu_return", 0, false);
    let stub = at("asm_sysvec_apic_timer_interrupt", 5);
    let chain = [at("switch_fpu_return", 0), at("irqentry_exit", 0x1a), stub];
    let mut kit = asked(source, &chain);
    for _ in 0..calls {
        kit.sys_enter(0, 1001);
        kit.sys_exit(0, 1001);
    }
    kit
}

/// It is answered behind so many system calls.
fn later(calls: usize) -> Trace {
    let mut kit = followed_by(calls);
    kit.deferred(0, 1001, C, &[0x40, 0x80]);
    kit.trace()
}

/// A kernel that sets the flag behind the exit work and then loses it.
#[test]
fn f011_is_an_answer_in_the_next_entry_and_no_later_one() {
    let kernel = Built::default();
    let f011 = BTreeSet::from([Some("F011".to_owned())]);
    assert_eq!(found(&later(1), &kernel), f011);
    assert_eq!(found(&later(2), &kernel), BTreeSet::from([None]));
    assert_eq!(found(&later(3), &kernel), BTreeSet::from([None]));
}

fn chain_of(kernel: &[u64]) -> Vec<u64> {
    let mut chain = vec![CONTEXT_KERNEL];
    chain.extend(kernel);
    chain.extend([CONTEXT_USER_DEFERRED, C]);
    chain
}

#[test]
fn f011_is_a_request_of_what_is_called_behind_the_exit_work_and_nothing_else() {
    let stub = at("asm_sysvec_apic_timer_interrupt", 5);
    let behind = at("irqentry_exit", 0x1a);
    let probed = at("switch_fpu_return", 0);
    let entry = || kprobe("switch_fpu_return", 0, false);
    let all = |source, chain: &[u64]| found(&late(source, chain), &Built::default());
    let f011 = BTreeSet::from([Some("F011".to_owned())]);
    let none = BTreeSet::from([None]);
    // In the function, in what it calls, at its return, and by a tracepoint.
    assert_eq!(all(entry(), &[probed, behind, stub]), f011);
    assert_eq!(
        all(entry(), &[at("exit_mm", 0), probed, behind, stub]),
        f011
    );
    assert_eq!(
        all(kprobe("switch_fpu_return", 0, true), &[behind, stub]),
        f011
    );
    let tracepoint = tracepoint("x86_fpu", "x86_fpu_regs_activated");
    assert_eq!(all(tracepoint, &[probed, behind, stub]), f011);
    // In the loop of the exit work: its last call, behind its last look at the flags.
    let in_loop = |offset| at("exit_to_user_mode_loop", offset);
    let outer = [at("irqentry_exit", 0x15), stub];
    let exit_mm = || kprobe("exit_mm", 0, false);
    let of_loop = |offset| [&[at("exit_mm", 0), in_loop(offset)], outer.as_slice()].concat();
    assert_eq!(all(exit_mm(), &of_loop(0x1a)), f011);
    // In the work itself, the loop looks again: the same function, another cause.
    assert_eq!(all(exit_mm(), &of_loop(0xe)), none);
    // Not from the way out at all; from the reset; at an instruction that no call returns to.
    assert_eq!(all(entry(), &[probed, stub]), none);
    assert_eq!(
        all(entry(), &[probed, at("irqentry_exit", 0x25), stub]),
        none
    );
    assert_eq!(
        all(entry(), &[probed, at("irqentry_exit", 0x1c), stub]),
        none
    );
    // An NMI that hit that function sends itself an interrupt, and so does int3.
    let nmi = [at("exit_mm", 0), at("asm_exc_nmi", 0), probed, behind, stub];
    assert_eq!(all(kprobe("exit_mm", 0, false), &nmi), none);
    assert_eq!(all(EventSource::Hardware(0), &[probed, behind, stub]), none);
    let int3 = kprobe("switch_fpu_return", 1, false);
    assert_eq!(all(int3, &[probed + 1, behind, stub]), none);
    // In a kernel with the fix: test eax,0xf000000
    let fixed = Built(vec![(
        "unwind_deferred_request",
        0x11,
        &[0xa9, 0, 0, 0, 0x0f],
    )]);
    let trace = late(entry(), &[probed, behind, stub]);
    assert_eq!(found(&trace, &fixed), none);
}

/// `mutant:reset-ignores-pending`: the same place, and no answer at all.
#[test]
fn a_request_there_that_is_lost_is_not_f011() {
    let kit = followed_by(3);
    assert_eq!(
        found(&kit.trace(), &Built::default()),
        BTreeSet::from([None])
    );
}

#[test]
fn on_the_log_f011_is_a_request_of_the_task_itself_behind_the_exit_work() {
    let found = |leaving: bool, nmi: bool, called: bool| {
        let mut kit = LabKit::new();
        if leaving {
            kit.with(|flags| flags.leaving = true);
        }
        if nmi {
            kit.nmi();
        }
        kit.ask(1, client(0), 0, C);
        kit.leave(1);
        if called {
            kit.call(1, client(0), C, &[0x40]);
            kit.leave(1);
        }
        let mut trace = kit.trace();
        trace.release = "7.3.4-unwindlab".into();
        let violations = violated("M1", &trace);
        let list = Findings::embedded().expect("well-formed");
        let evidence = Evidence::new(&trace);
        let found = list.match_finding(violations.first()?, &evidence, &Built::default());
        found.map(|id| id.to_string())
    };
    assert_eq!(found(true, false, true).as_deref(), Some("F011"));
    assert_eq!(found(false, false, true), None);
    assert_eq!(found(true, true, true), None);
    assert_eq!(found(true, false, false), None);
}
