//! Where samples of other events, and NMIs in stubs, were made.

use unwindlab_abi::plan::EventSource;

use super::*;
use crate::invariant::testkit::entry_text::EntryText;
use crate::invariant::testkit::{Kit, kernel, spec, tracepoint, user};

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
