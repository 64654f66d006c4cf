//! F001 by what instances of tracefs wrote, beside perf.

use super::image::fixture::Built;
use super::*;
use crate::invariant::testkit::lab::{C, NEXT};
use crate::invariant::testkit::tracefs::mirrored;
use crate::invariant::testkit::{Kit, violated};
use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER_DEFERRED};
use crate::trace::tracefs::{Asker, TracefsEvent, TracefsKind};

const CALLED: [&str; 3] = ["C4", "C7", "M3"];

/// A request at an instruction of the exit path, answered for cookie 0, and an entry that is right.
fn story(at: u64, asked_before: bool) -> Kit {
    let mut kit = Kit::new(2);
    if asked_before {
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40, 0x80]);
    }
    let handler = [CONTEXT_KERNEL, Built::at("end_repeat_nmi", 0), at];
    let chain = [handler.as_slice(), &[CONTEXT_USER_DEFERRED, C]].concat();
    kit.sample(0, 1001, 1, chain);
    kit.deferred(0, 1001, 0, &[0x40, 0x80]);
    kit.nmi(0, 1001, NEXT);
    kit.deferred(0, 1001, NEXT, &[0x40, 0x80]);
    kit
}

/// Whether each violation is F001, and whether an instance's.
fn found(kit: &Kit, ids: &[&str], change: impl Fn(&mut TracefsEvent)) -> Vec<(bool, bool)> {
    let list = Findings::embedded().expect("well-formed");
    let mut trace = mirrored(kit.trace());
    trace.release = "7.3.4-test".into();
    let tracefs = trace.tracefs.as_mut().unwrap();
    tracefs.events.iter_mut().for_each(change);
    let evidence = Evidence::new(&trace);
    let violations = ids.iter().flat_map(|id| violated(id, &trace));
    let told = violations.map(|it| {
        let id = list.match_finding(&it, &evidence, &Built::default());
        let is_f001 = id.is_some_and(|id| id.0 == "F001");
        (is_f001, it.message.starts_with("instance"))
    });
    told.collect()
}

fn window() -> u64 {
    Built::at("do_syscall_64", 0x2e)
}

fn of_zero(event: &TracefsEvent) -> bool {
    matches!(event.kind, TracefsKind::Stack { cookie: 0, .. })
}

#[test]
fn the_walk_for_cookie_0_is_one_for_perf_and_for_instances() {
    let told = found(&story(window(), true), &CALLED, |_| ());
    assert_eq!(told.len(), 9);
    assert!(told.iter().all(|it| it.0), "{told:?}");
    // Asked for in the window only: M1 falls, too.
    let told = found(&story(window(), false), &["C4", "C7", "M3", "M1"], |_| ());
    assert_eq!(told.len(), 12);
    assert!(told.iter().all(|it| it.0), "{told:?}");
}

/// perf's NMI asks in the window, and an instance asked before, at an event of its own: it was owed an answer.
#[test]
fn a_request_at_an_event_of_the_instance_is_not_perfs() {
    let asker = Some(Asker::SyscallEnter);
    let told = found(&story(window(), false), &["M1"], |it| {
        if let TracefsKind::Request { asker: made, .. } = &mut it.kind {
            *made = asker;
        }
    });
    let of_instances: Vec<bool> = { told.iter() }.filter(|it| it.1).map(|it| it.0).collect();
    assert!(!of_instances.is_empty());
    assert!(of_instances.iter().all(|is_f001| !is_f001), "{told:?}");
}

#[test]
fn another_walk_of_an_instance_is_not() {
    let changes: [fn(&mut TracefsEvent); 4] = [
        // In the next entry, behind perf's request there.
        |it| it.time += if of_zero(it) { 15 } else { 0 },
        // On another CPU.
        |it| it.cpu += u32::from(of_zero(it)),
        // Another stack.
        |it| {
            if let TracefsKind::Stack {
                cookie: 0, frames, ..
            } = &mut it.kind
            {
                frames[0] += 1;
            }
        },
        // Another cookie that nobody has asked for.
        |it| {
            if let TracefsKind::Stack { cookie, .. } = &mut it.kind {
                *cookie += if *cookie == 0 { 5 << 32 | 2 } else { 0 };
            }
        },
    ];
    for change in changes {
        let told = found(&story(window(), true), &CALLED, change);
        assert!(told.iter().any(|it| it.1), "{told:?}");
        assert!(told.iter().all(|it| it.0 != it.1), "{told:?}");
    }
}

#[test]
fn what_is_not_perfs_is_not_an_instances() {
    let told = found(
        &story(Built::at("do_syscall_64", 0x40), true),
        &CALLED,
        |_| (),
    );
    assert_eq!(told.len(), 9);
    assert!(told.iter().all(|it| !it.0), "{told:?}");
    // perf's answer is right.
    let mut kit = Kit::new(2);
    kit.nmi(0, 1001, C);
    kit.deferred(0, 1001, C, &[0x40, 0x80]);
    let told = found(&kit, &CALLED, |it| {
        if let TracefsKind::Stack { cookie, .. } = &mut it.kind {
            *cookie = 0;
        }
    });
    assert_eq!(told, [(false, true); 6]);
}
