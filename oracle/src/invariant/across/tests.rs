//! T1 and T2, and what is judged of each client of tracefs: perf's records of the model kernel, written a
//! second and a third time as two instances of tracefs would.

use std::collections::BTreeSet;

use crate::invariant::testkit::entry_text::EntryText;
use crate::invariant::testkit::model_kernel::{Bug, Model};
use crate::invariant::testkit::tracefs::mirrored;
use crate::invariant::testkit::{Kit, check, user};
use crate::invariant::{Check, EntryCode, Evidence, INVARIANTS};
use crate::trace::Trace;
use crate::trace::tracefs::{TracefsEvent, TracefsKind};

mod endings;

const C: u64 = 3 << 32 | 1;

/// The invariants that fall, each with its first message, and those that hold.
fn judge(trace: &Trace) -> (Vec<(&'static str, String)>, BTreeSet<&'static str>) {
    let code = EntryCode::new(EntryText);
    let evidence = Evidence::new(trace).knowing(&code);
    let (mut fallen, mut held) = (Vec::new(), BTreeSet::new());
    for invariant in INVARIANTS {
        match invariant.check(&evidence) {
            Check::Violated(list) => {
                let told = list.into_iter().map(|it| (invariant.id, it.message));
                fallen.extend(told);
            }
            Check::Holds { .. } => {
                held.insert(invariant.id);
            }
            Check::NotExercised { .. } => {}
        }
    }
    (fallen, held)
}

/// Whether it falls by what an instance wrote.
fn falls(fallen: &[(&str, String)], id: &str) -> bool {
    let of = |it: &&(&str, String)| it.0 == id && it.1.contains("instance a");
    fallen.iter().any(|it| of(&it))
}

fn model(seed: u64, bug: Option<Bug>) -> Trace {
    let mut model = Model::new(seed, bug);
    model.run(400);
    mirrored(model.trace())
}

/// Two entries of a task: two requests in the second, a stack for each entry.
fn two_entries() -> Trace {
    let mut kit = Kit::new(1);
    kit.witness();
    kit.sys_enter(0, 1001);
    kit.nmi(0, 1001, C);
    kit.sys_exit(0, 1001);
    kit.deferred(0, 1001, C, &[0x40, 0x80]);
    kit.returns(0, 1001);
    kit.sys_enter(0, 1001);
    kit.nmi(0, 1001, C + (2 << 32));
    kit.nmi(0, 1001, C + (2 << 32));
    kit.sys_exit(0, 1001);
    kit.deferred(0, 1001, C + (2 << 32), &[0x48, 0x80]);
    kit.returns(0, 1001);
    kit.sys_enter(0, 1001);
    kit.trace()
}

fn change(change: impl Fn(&mut Vec<TracefsEvent>)) -> Vec<(&'static str, String)> {
    let mut trace = mirrored(two_entries());
    change(&mut trace.tracefs.as_mut().unwrap().events);
    judge(&trace).0
}

fn of_a(event: &TracefsEvent, stack: bool) -> bool {
    event.client == 0 && matches!(event.kind, TracefsKind::Stack { .. }) == stack
}

#[test]
fn instances_beside_a_right_kernels_perf_violate_nothing() {
    let mut exercised = BTreeSet::new();
    for seed in 1..=60 {
        let (fallen, held) = judge(&model(seed, None));
        assert!(fallen.is_empty(), "seed {seed}: {fallen:#?}");
        exercised.extend(held);
    }
    for id in ["T1", "T2", "C1", "C2", "C3", "M1", "M2", "M4", "S1"] {
        assert!(exercised.contains(id), "{id}");
    }
}

/// The witness did not see all that an instance wrote, so one of the two may have its place and the other not.
#[test]
fn it_does_not_matter_which_of_two_records_is_named_first() {
    let mut kinds = BTreeSet::new();
    for trace in (1..=20)
        .map(|seed| model(seed, None))
        .chain([mirrored(two_entries())])
    {
        let evidence = Evidence::new(&trace);
        for view in evidence.views() {
            let seen = evidence.of_view(view);
            let (facts, events) = (seen.facts(), &view.trace.events);
            for (at, one) in events.iter().enumerate() {
                for other in events.iter().skip(at + 1).take(12) {
                    let relation = facts.relation(one, other);
                    assert_eq!(relation, facts.relation(other, one), "{one:?} {other:?}");
                    kinds.insert(format!("{:?}", std::mem::discriminant(&relation)));
                }
            }
        }
    }
    assert!(kinds.len() >= 3, "{kinds:?}");
}

#[test]
fn bugs_of_the_model_fall_by_what_an_instance_wrote() {
    for (bug, id) in [
        (Bug::PerTaskCounter, "C3"),
        (Bug::ConstantCount, "C2"),
        (Bug::CounterNotStored, "M2"),
    ] {
        let mut seeds = 1..=40;
        let fell = seeds.any(|seed| falls(&judge(&model(seed, Some(bug))).0, id));
        assert!(fell, "{bug:?} {id}");
    }
}

#[test]
fn t1_another_cookie_than_perfs() {
    let fallen = change(|events| {
        let first = events.iter_mut().find(|it| of_a(it, false)).unwrap();
        first.kind = TracefsKind::Request {
            cookie: C + (8 << 32),
            asker: None,
        };
    });
    assert!(fallen.iter().any(|it| it.0 == "T1"), "{fallen:#?}");
}

/// What a right kernel shows where records are lost, and where its clock stands still.
#[test]
fn t1_holds_of_a_right_kernel_whatever_is_lost_and_however_coarse_the_clock() {
    for seed in 1..=40_u64 {
        let mut trace = model(seed, None);
        let mut random = seed;
        let mut is_kept = move || {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            random >> 33 & 3 != 0
        };
        let coarse = |time: u64| time / 200 * 200;
        // Markers are not lost in silence: a ring that was cut is said to be.
        let cut = seed % 2 == 0;
        trace.corrupt.extend(cut.then(|| "ring 1".to_owned()));
        trace
            .events
            .retain(|it| (!cut && it.cookie().is_none()) || is_kept());
        for (index, event) in trace.events.iter_mut().enumerate() {
            event.index = index;
            event.time = event.time.map(coarse);
        }
        let tracefs = trace.tracefs.as_mut().unwrap();
        tracefs.events.retain(|_| is_kept());
        for event in &mut tracefs.events {
            event.time = coarse(event.time);
        }
        let (fallen, _) = judge(&trace);
        assert!(fallen.iter().all(|it| it.0 != "T1"), "{seed}: {fallen:#?}");
    }
}

/// Two entries at one time of the clock: perf's records of both come first in the trace.
#[test]
fn t1_a_tie_is_no_order() {
    let mut tied = mirrored(two_entries());
    let time = tied.events.iter().filter_map(|it| it.time).max();
    for event in &mut tied.events {
        event.time = time;
    }
    for event in &mut tied.tracefs.as_mut().unwrap().events {
        event.time = time.unwrap();
    }
    let of_stack = |it: &mut TracefsEvent| matches!(it.kind, TracefsKind::Stack { .. });
    let mut late = tied.clone();
    for event in &mut late.tracefs.as_mut().unwrap().events {
        event.time += u64::from(of_stack(event));
    }
    for trace in [tied, late] {
        let (fallen, _) = judge(&trace);
        assert!(fallen.iter().all(|it| it.0 != "T1"), "{fallen:#?}");
    }
}

/// An answer behind the other cookie is wrong even where an earlier one may be lost.
#[test]
fn t1_another_cookie_where_answers_are_lost() {
    for lost in 0..2 {
        let mut trace = mirrored(two_entries());
        trace.events.retain(|it| {
            let stack = it.deferred_chain().map(|it| it.cookie);
            stack != Some(C) || lost == 1
        });
        let tracefs = trace.tracefs.as_mut().unwrap();
        let at = tracefs.events.iter().position(|it| of_a(it, false));
        tracefs.events[at.unwrap()].kind = TracefsKind::Request {
            cookie: C + (8 << 32),
            asker: None,
        };
        tracefs.events.retain(|it| !of_a(it, true) || lost == 0);
        let (fallen, _) = judge(&trace);
        assert!(fallen.iter().any(|it| it.0 == "T1"), "{fallen:#?}");
    }
}

/// The markers prove one system call, in which no reset is; nothing is answered in it.
#[test]
fn t1_another_cookie_in_one_system_call() {
    let mut kit = Kit::new(1);
    kit.sys_enter(0, 1001);
    kit.nmi(0, 1001, C);
    kit.nmi(0, 1001, C);
    kit.sys_exit(0, 1001);
    let right = mirrored(kit.trace());
    assert!(judge(&right).0.iter().all(|it| it.0 != "T1"));
    let mut wrong = right;
    let tracefs = wrong.tracefs.as_mut().unwrap();
    tracefs.events[0].kind = TracefsKind::Request {
        cookie: C + (8 << 32),
        asker: None,
    };
    let (fallen, _) = judge(&wrong);
    assert!(fallen.iter().any(|it| it.0 == "T1"), "{fallen:#?}");
}

#[test]
fn t1_requests_of_unknown_entries_do_not_exercise_it() {
    let mut kit = Kit::new(1);
    kit.nmi(0, 1001, C);
    let (fallen, held) = judge(&mirrored(kit.trace()));
    assert!(!held.contains("T1"), "{held:?} {fallen:?}");
}

#[test]
fn t2_another_stack_than_perfs() {
    for wrong in [vec![0x40, 0x88], vec![0x40]] {
        let fallen = change(|events| {
            let first = events.iter_mut().find(|it| of_a(it, true)).unwrap();
            first.kind = TracefsKind::Stack {
                cookie: C,
                nr: wrong.len() as u64,
                frames: wrong.clone(),
            };
        });
        assert!(fallen.iter().any(|it| it.0 == "T2"), "{fallen:#?}");
    }
}

#[test]
fn t2_the_stacks_of_one_client_do_not_exercise_it() {
    let mut trace = mirrored(two_entries());
    trace.events.retain(|it| it.deferred_chain().is_none());
    let tracefs = trace.tracefs.as_mut().unwrap();
    tracefs.events.retain(|it| it.client == 0);
    assert!(!judge(&trace).1.contains("T2"));
}

/// An NMI into the leaf of a deep stack, with what perf and instance a write of it; and perf's D dropped where it is no client.
fn deep(
    perf: bool,
    change: impl Fn(&mut u64, &mut Vec<u64>),
) -> (Vec<(&'static str, String)>, bool) {
    let mut kit = Kit::new(1);
    kit.deep_thread(0, 1001, 600);
    let mut chain = vec![0x2000; 510];
    chain[0] = 0x1004;
    kit.inject(0, 1001, C, user(0x1004));
    kit.deferred(0, 1001, C, &chain);
    let mut trace = mirrored(kit.trace());
    trace
        .events
        .retain(|it| perf || it.deferred_chain().is_none());
    let tracefs = trace.tracefs.as_mut().unwrap();
    tracefs.events.retain(|it| it.client == 0);
    for event in &mut tracefs.events {
        if let TracefsKind::Stack { nr, frames, .. } = &mut event.kind {
            change(nr, frames);
        }
    }
    let (fallen, held) = judge(&trace);
    (fallen, held.contains("T2"))
}

/// An event has room for some 500 frames.
#[test]
fn a_stack_that_is_cut_is_the_same_as_far_as_it_goes() {
    for room in [510, 500, 480] {
        let (fallen, held) = deep(true, |_, frames| frames.truncate(room));
        assert!(
            fallen.iter().all(|it| !["T2", "S1"].contains(&it.0)),
            "{fallen:#?}"
        );
        assert!(held);
    }
}

/// `tracefs-cuts-last-frame`, where the number is right or is not, and instances are alone or beside perf.
#[test]
fn a_stack_that_is_cut_though_there_is_room_falls() {
    for perf in [true, false] {
        for of in [479, 12, 0] {
            let (fallen, held) = deep(perf, |_, frames| frames.truncate(of));
            assert!(falls(&fallen, "S1") || of == 0, "{fallen:#?}");
            assert!(fallen.iter().any(|it| it.0 == "T2"), "{fallen:#?}");
            assert!(!held);
        }
        let (fallen, _) = deep(perf, |nr, frames| {
            frames.pop();
            *nr -= 1;
        });
        assert!(falls(&fallen, "S1"), "{fallen:#?}");
    }
}

/// No frame of it is compared with a marker's.
#[test]
fn another_stack_of_an_instance_falls_where_perf_has_none() {
    let (fallen, _) = deep(false, |_, frames| frames.truncate(500));
    assert!(fallen.iter().all(|it| it.0 != "S1"), "{fallen:#?}");
    for at in [1, 499] {
        let (fallen, _) = deep(false, |_, frames| {
            frames.truncate(500);
            frames[at] += 8;
        });
        assert!(falls(&fallen, "S1"), "{at}: {fallen:#?}");
    }
}

#[test]
fn an_empty_stack_of_an_instance_at_exit_falls() {
    let mut kit = Kit::new(1);
    kit.nmi(0, 1001, C);
    kit.exit(0, 1001);
    kit.deferred(0, 1001, C, &[0x40, 0x80]);
    let right = mirrored(kit.trace());
    assert!(!falls(&judge(&right).0, "X1"));
    let mut empty = right;
    for event in &mut empty.tracefs.as_mut().unwrap().events {
        if let TracefsKind::Stack { nr, frames, .. } = &mut event.kind {
            *nr = 0;
            frames.clear();
        }
    }
    assert!(falls(&judge(&empty).0, "X1"));
}

#[test]
fn t2_two_stacks_without_a_frame_do_not_exercise_it() {
    let mut trace = mirrored(two_entries());
    trace.events.retain(|it| it.deferred_chain().is_none());
    for event in &mut trace.tracefs.as_mut().unwrap().events {
        if let TracefsKind::Stack { nr, frames, .. } = &mut event.kind {
            *nr = 0;
            frames.clear();
        }
    }
    assert!(!judge(&trace).1.contains("T2"));
}

#[test]
fn what_an_instance_lacks_or_has_twice_is_noticed() {
    let lost = change(|events| {
        let at = events.iter().position(|it| of_a(it, true)).unwrap();
        events.remove(at);
    });
    assert!(falls(&lost, "M1"), "{lost:#?}");
    let twice = change(|events| {
        let mut again = events.iter().find(|it| of_a(it, true)).unwrap().clone();
        again.position += 1;
        events.push(again);
    });
    assert!(falls(&twice, "M2"), "{twice:#?}");
    let unasked = change(|events| events.retain(|it| !of_a(it, false)));
    assert!(falls(&unasked, "C7"), "{unasked:#?}");
}

/// A second answer in the same entry is right where the instance was registered anew in between, and wrong elsewhere.
#[test]
fn a_cookie_that_an_instance_may_have_been_given_first_has_no_order() {
    let mut kit = Kit::new(1);
    kit.nmi(0, 1001, C + (2 << 32));
    kit.nmi(0, 1002, C);
    let plain = kit.trace();
    assert!(judge(&plain).0.iter().any(|it| it.0 == "C6"));
    let (fallen, _) = judge(&mirrored(plain.clone()));
    assert!(fallen.iter().all(|it| it.0 != "C6"), "{fallen:#?}");
    // An instance that was removed may have got any.
    let mut removed = mirrored(plain);
    let tracefs = removed.tracefs.as_mut().unwrap();
    tracefs.events.clear();
    assert!(judge(&removed).0.iter().any(|it| it.0 == "C6"));
    removed.tracefs.as_mut().unwrap().clients[0].ends_early = true;
    assert!(judge(&removed).0.iter().all(|it| it.0 != "C6"));
}
