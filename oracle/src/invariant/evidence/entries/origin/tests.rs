//! Where samples of other events, and NMIs in stubs, were made.

use unwindlab_abi::attr::flag::EXCLUDE_CALLCHAIN_KERNEL as NO_KERNEL;
use unwindlab_abi::plan::EventSource;

use super::*;
use crate::invariant::testkit::entry_text::EntryText;
use crate::invariant::testkit::{Kit, kernel, spec, tracepoint, user, violated};
use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER_DEFERRED};

const C: u64 = 3 << 32 | 1;

/// perf writes no kernel part where the registers are of user mode: by what fired, that says where.
#[test]
fn a_sample_without_a_kernel_part_is_of_what_fired_in_user_mode() {
    let of = |source: EventSource| {
        let mut kit = Kit::new(1);
        let at = kit.open(spec("event", source));
        let sample = kit.asks_in(at, 0, 1001, C, &[]);
        let trace = kit.trace();
        Facts::new(&trace, None).origin(&trace.events[sample])
    };
    assert_eq!(of(EventSource::Hardware(0)), Origin::UserNmi);
    assert_eq!(of(EventSource::Software(2)), Origin::Interrupt(Phase::Body));
    let before = Origin::SystemCall(Phase::Before);
    assert_eq!(of(tracepoint("syscalls", "sys_enter_getppid")), before);
    assert_eq!(
        of(tracepoint("syscalls", "sys_exit_getppid")),
        Origin::Unknown
    );
    assert_eq!(of(tracepoint("sched", "sched_switch")), Origin::Unknown);
}

/// The call of the dispatcher may be behind it, or not known.
#[test]
fn an_nmi_in_a_stub_behind_the_dispatcher_may_be_late() {
    let at = |offset| {
        let mut kit = Kit::new(1);
        let rip = 0xffff_ffff_8300_0000_u64 + offset;
        let asked = kit.nmi_in(0, 1001, C, kernel(rip), &[]);
        let trace = kit.trace();
        let code = EntryCode::new(EntryText);
        Facts::new(&trace, Some(&code)).origin(&trace.events[asked])
    };
    assert_eq!(at(0x30), Origin::SystemCall(Phase::Before));
    assert_eq!(at(0x50), Origin::SystemCall(Phase::Unknown));
}

#[test]
fn the_stub_of_an_nmi_says_that_it_hit_user_mode() {
    let mut kit = Kit::new(1);
    let asked = kit.nmi_in(0, 1001, C, user(0x1004), &[]);
    let trace = kit.trace();
    let code = EntryCode::new(EntryText);
    let facts = Facts::new(&trace, Some(&code));
    assert_eq!(facts.origin(&trace.events[asked]), Origin::UserNmi);
}

/// An event that leaves the kernel part out, and a kernel part of which only the context is there.
#[test]
fn a_sample_whose_kernel_part_is_left_out_may_be_of_the_kernel() {
    let of = |source: &EventSource, set: u64, contexts: &[u64]| {
        let mut kit = Kit::new(1);
        let mut opened = spec("event", source.clone());
        opened.details.set |= set;
        let at = kit.open(opened);
        let chain = [contexts, &[CONTEXT_USER_DEFERRED, C]].concat();
        let sample = kit.sample(0, 1001, at, chain);
        let trace = kit.trace();
        Facts::new(&trace, None).origin(&trace.events[sample])
    };
    for source in [EventSource::Hardware(0), EventSource::Software(2)] {
        assert_ne!(of(&source, 0, &[]), Origin::Unknown);
        assert_eq!(of(&source, NO_KERNEL, &[]), Origin::Unknown);
        assert_eq!(of(&source, 0, &[CONTEXT_KERNEL]), Origin::Unknown);
    }
    // What asks there is known by the tracepoint.
    let enter = tracepoint("syscalls", "sys_enter_getppid");
    let before = Origin::SystemCall(Phase::Before);
    assert_eq!(of(&enter, NO_KERNEL, &[]), before);
}

#[test]
fn requests_whose_kernel_part_is_left_out_accuse_nobody() {
    let counter = || {
        let mut kit = Kit::new(1);
        kit.spec("nmi", |spec| {
            spec.source = EventSource::Hardware(0);
            spec.details.set |= NO_KERNEL;
        });
        kit
    };
    // In the call, and in its exit work.
    let mut kit = counter();
    kit.sys_enter(0, 1001);
    kit.asks_in(1, 0, 1001, C, &[]);
    kit.sys_exit(0, 1001);
    kit.asks_in(1, 0, 1001, C, &[]);
    kit.deferred(0, 1001, C, &[0x40]);
    assert_eq!(violated("C2", &kit.trace()), []);
    // Before the record of `sys_enter` has its place.
    let mut kit = counter();
    kit.asks_in(1, 0, 1001, C, &[]);
    kit.sys_enter(0, 1001);
    kit.sys_exit(0, 1001);
    kit.deferred(0, 1001, C, &[0x40]);
    for id in ["M1", "M3", "M5"] {
        assert_eq!(violated(id, &kit.trace()), [], "{id}");
    }
}
