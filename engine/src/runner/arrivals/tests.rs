//! Sequences of arms, hits and ends, and what they call for.

use unwindlab_vmm::DataAccess;

use super::*;
use crate::plan::{ArrivalPlan, CodePlace, TaskFilter};

const TASK: u64 = 0xffff_8880_0000_1000;
const OTHER: u64 = 0xffff_8880_0000_2000;
const STACK: u64 = 0xffff_c900_0000_3f00;

fn plan() -> ArrivalPlan {
    ArrivalPlan::first(CodePlace::Kernel { address: 0x10 })
}

fn of(plan: &ArrivalPlan) -> Arrivals {
    Arrivals::new(vec![Arrival::new(0, Place::Code(0x10), plan, false)])
}

fn one(first: u64, hit: u64, repeat: u64, times: u32) -> Arrivals {
    of(&ArrivalPlan {
        first,
        hit,
        repeat,
        times,
        ..plan()
    })
}

fn sweep(repeat: u64) -> Arrivals {
    of(&ArrivalPlan {
        repeat,
        sweep: true,
        ..plan()
    })
}

const fn by(thread: u32, iteration: u64) -> ThreadIteration {
    ThreadIteration {
        thread: Some(thread),
        iteration: Some(iteration),
    }
}

impl Arrivals {
    /// A hit on vCPU 0, outside of NMIs.
    fn at(&mut self, pc: u64, task: u64, leads_on: bool) -> Vec<Due> {
        self.hit(&Standing {
            pc,
            data: None,
            vcpu: 0,
            task,
            stack_pointer: STACK,
            in_nmi: false,
            leads_on,
        })
    }
}

#[test]
fn only_the_armed_task_counts() {
    let mut arrivals = one(1, 1, 1, 1);
    assert_eq!(arrivals.at(0x10, TASK, true), [], "not armed");
    arrivals.arm(0, TASK);
    assert_eq!(arrivals.at(0x10, OTHER, true), [], "another task");
    assert_eq!(arrivals.at(0x20, TASK, true), [], "another place");
    assert_eq!(
        arrivals.at(0x10, TASK, true),
        [Due::Inject {
            spec: 0,
            by: by(0, 1),
            again: false
        }]
    );
    assert!(arrivals.complete());
    assert!(arrivals.addresses().is_empty());
}

#[test]
fn a_burst_goes_from_boundary_to_boundary() {
    let mut arrivals = one(1, 1, 2, 3);
    arrivals.arm(0, TASK);
    let due = |iteration, again| Due::Inject {
        spec: 0,
        by: by(0, iteration),
        again,
    };
    assert_eq!(arrivals.at(0x10, TASK, true), [due(1, true)]);
    arrivals.go_on_at(0, by(0, 1), vec![0x14]);
    assert_eq!(arrivals.addresses(), [0x10, 0x14]);
    assert_eq!(arrivals.at(0x14, OTHER, true), [], "another task");
    assert_eq!(arrivals.at(0x14, TASK, true), [due(1, true)]);
    arrivals.go_on_at(0, by(0, 1), vec![0x16, 0x30]);
    assert_eq!(arrivals.addresses(), [0x10, 0x16, 0x30]);
    assert_eq!(arrivals.at(0x30, TASK, true), [due(1, false)]);
    assert!(arrivals.addresses().is_empty(), "nothing is armed");
    arrivals.arm(0, TASK);
    assert_eq!(arrivals.addresses(), [0x10]);
    assert_eq!(arrivals.at(0x10, TASK, true), [due(2, true)]);
}

#[test]
fn a_burst_that_was_broken_off_begins_again_at_its_place() {
    let mut arrivals = one(1, 1, 1, 3);
    arrivals.arm(0, TASK);
    let due = |again| Due::Inject {
        spec: 0,
        by: by(0, 1),
        again,
    };
    assert_eq!(arrivals.at(0x10, TASK, true), [due(true)]);
    arrivals.go_on_at(0, by(0, 1), vec![0x14]);
    assert_eq!(arrivals.at(0x14, TASK, true), [due(true)]);
    arrivals.go_on_at(0, by(0, 1), vec![0x16]);
    // The boundary at 0x16 was passed by without a stop, and the next system call is made.
    for (pc, again) in [(0x10, true), (0x14, true), (0x16, false)] {
        assert_eq!(arrivals.at(pc, TASK, true), [due(again)]);
        if again {
            arrivals.go_on_at(0, by(0, 1), vec![if pc == 0x10 { 0x14 } else { 0x16 }]);
        }
    }
    assert!(arrivals.complete());
}

#[test]
fn a_burst_steps_over_what_leads_anywhere() {
    let mut arrivals = one(1, 1, 1, 2);
    arrivals.arm(0, TASK);
    let step = Due::StepFirst {
        spec: 0,
        by: by(0, 1),
        anchor: None,
        steps: 1,
    };
    assert_eq!(arrivals.at(0x10, TASK, false), [step]);
    arrivals.go_on_at(0, by(0, 1), vec![0x50]);
    let due = |again| Due::Inject {
        spec: 0,
        by: by(0, 1),
        again,
    };
    assert_eq!(arrivals.at(0x50, TASK, true), [due(true)]);
    arrivals.go_on_at(0, by(0, 1), vec![0x52]);
    assert_eq!(
        arrivals.at(0x52, TASK, false),
        [due(false)],
        "the last may stand anywhere"
    );
}

#[test]
fn hits_and_iterations_are_counted_from_one() {
    let mut arrivals = one(2, 2, 1, 1);
    arrivals.arm(0, TASK);
    assert_eq!(
        arrivals.at(0x10, TASK, true),
        [],
        "iteration 1 does not count"
    );
    arrivals.arm(0, TASK);
    assert_eq!(arrivals.at(0x10, TASK, true), [], "first hit");
    assert_eq!(
        arrivals.at(0x10, TASK, true),
        [Due::Inject {
            spec: 0,
            by: by(0, 2),
            again: false
        }]
    );
}

#[test]
fn a_sweep_goes_one_boundary_further_each_time() {
    let mut arrivals = sweep(4);
    for iteration in 1..=4 {
        arrivals.arm(0, TASK);
        let pc = 0x10 + 4 * (iteration - 1);
        let anchor = (iteration > 2).then_some(Anchor {
            pc: pc - 4,
            stack_pointer: None,
        });
        if iteration > 1 {
            let step = Due::StepFirst {
                spec: 0,
                by: by(0, iteration),
                anchor,
                steps: 1,
            };
            assert_eq!(arrivals.at(0x10, TASK, true), [step]);
            arrivals.came_to_anchor(0, by(0, iteration));
            arrivals.go_on_at(0, by(0, iteration), vec![pc]);
        }
        let due = Due::Inject {
            spec: 0,
            by: by(0, iteration),
            again: false,
        };
        assert_eq!(arrivals.at(pc, TASK, true), [due]);
    }
    assert!(arrivals.complete());
}

/// A sweep after two injections, about to go on to the third. `follows`: each is released by another one.
fn about_to_go_to_the_third(follows: bool) -> (Arrivals, Vec<Due>) {
    let plan = ArrivalPlan {
        repeat: 9,
        sweep: true,
        ..plan()
    };
    let mut arrivals = Arrivals::new(vec![Arrival::new(0, Place::Code(0x10), &plan, follows)]);
    for pc in [0x10, 0x14] {
        arrivals.arm(0, TASK);
        arrivals.release(0);
        if pc != 0x10 {
            arrivals.at(0x10, TASK, true);
            arrivals.go_on_at(0, by(0, 1), vec![pc]);
        }
        arrivals.at(pc, TASK, true);
    }
    arrivals.arm(0, TASK);
    arrivals.release(0);
    let due = arrivals.at(0x10, TASK, true);
    (arrivals, due)
}

/// Where to run before the steps, and how many are left.
fn way(due: &[Due]) -> (Option<u64>, u64) {
    match due {
        [Due::StepFirst { anchor, steps, .. }] => (anchor.map(|it| it.pc), *steps),
        _ => (None, 0),
    }
}

#[test]
fn an_iteration_that_does_not_come_by_ends_no_sweep() {
    let (mut arrivals, due) = about_to_go_to_the_third(false);
    assert_eq!(way(&due), (Some(0x14), 1));
    arrivals.disarm(0);
    assert!(!arrivals.points()[0].swept && !arrivals.complete());
    // From now on by steps, whose end is that of the sweep.
    arrivals.arm(0, TASK);
    assert_eq!(way(&arrivals.at(0x10, TASK, true)), (None, 2));
    arrivals.disarm(0);
    assert!(arrivals.points()[0].swept && arrivals.complete());
}

#[test]
fn what_no_later_iteration_makes_up_for_goes_by_steps() {
    let (_, due) = about_to_go_to_the_third(true);
    assert_eq!(way(&due), (None, 2));
}

#[test]
fn one_that_was_let_go_says_nothing() {
    for follows in [false, true] {
        let (mut arrivals, due) = about_to_go_to_the_third(follows);
        arrivals.lose_way(0, by(0, 3));
        assert_eq!(arrivals.at(0x10, TASK, true), [], "the place itself");
        arrivals.disarm(0);
        assert!(!arrivals.points()[0].swept && !arrivals.complete());
        // A way to an anchor is not gone again.
        assert_eq!(way(&due).0.is_some(), !follows);
        arrivals.arm(0, TASK);
        arrivals.release(0);
        assert_eq!(way(&arrivals.at(0x10, TASK, true)), (None, 2));
    }
}

#[test]
fn the_way_to_a_boundary_may_come_by_the_place() {
    let (mut arrivals, _) = about_to_go_to_the_third(true);
    assert_eq!(arrivals.at(0x10, TASK, true), []);
    arrivals.go_on_at(0, by(0, 3), vec![0x10]);
    assert_eq!(arrivals.at(0x10, TASK, true).len(), 1, "its boundary");
}

#[test]
fn a_boundary_in_another_task_ends_no_sweep() {
    let (mut arrivals, _) = about_to_go_to_the_third(true);
    arrivals.go_on_at(0, by(0, 3), vec![0x18]);
    assert_eq!(arrivals.at(0x18, OTHER, true), []);
    arrivals.disarm(0);
    assert!(!arrivals.points()[0].swept && !arrivals.complete());
}

#[test]
fn the_end_behind_an_anchor_is_the_end() {
    let (mut arrivals, _) = about_to_go_to_the_third(false);
    arrivals.came_to_anchor(0, by(0, 3));
    arrivals.disarm(0);
    assert!(arrivals.points()[0].swept);
}

#[test]
fn nothing_is_passed_by_that_another_one_waits_for() {
    let other = ArrivalPlan {
        repeat: 9,
        ..plan()
    };
    let sweep = ArrivalPlan {
        sweep: true,
        ..other.clone()
    };
    let mut arrivals = Arrivals::new(vec![
        Arrival::new(0, Place::Code(0x10), &sweep, false),
        Arrival::new(1, Place::Code(0x18), &other, false),
    ]);
    for pc in [0x10, 0x14, 0x18] {
        arrivals.arm(0, TASK);
        if pc != 0x10 {
            let steps = (pc - 0x10) / 4;
            let due = arrivals.at(0x10, TASK, true);
            assert!(
                matches!(due[..], [Due::StepFirst { anchor: None, steps: it, .. }] if it == steps),
                "{due:?}"
            );
            arrivals.go_on_at(0, by(0, 1), vec![pc]);
        }
        arrivals.at(pc, TASK, true);
    }
}

#[test]
fn a_sweep_ends_where_the_iteration_does() {
    let mut arrivals = sweep(9);
    arrivals.arm(0, TASK);
    assert!(matches!(
        arrivals.at(0x10, TASK, true)[..],
        [Due::Inject { .. }]
    ));
    arrivals.arm(0, TASK);
    arrivals.disarm(0);
    assert!(!arrivals.complete(), "the place was not reached");
    assert!(!arrivals.points()[0].swept);
    arrivals.arm(0, TASK);
    assert!(matches!(
        arrivals.at(0x10, TASK, true)[..],
        [Due::StepFirst { .. }]
    ));
    arrivals.disarm(0);
    assert!(arrivals.complete());
    assert!(arrivals.points()[0].swept);
    arrivals.arm(0, TASK);
    assert!(arrivals.addresses().is_empty());
}

#[test]
fn an_iteration_that_never_gets_there_is_made_up_for() {
    let mut arrivals = one(1, 1, 1, 1);
    arrivals.arm(0, TASK);
    arrivals.disarm(0);
    assert_eq!(arrivals.at(0x10, TASK, true), []);
    arrivals.arm(0, TASK);
    assert_eq!(
        arrivals.at(0x10, TASK, true),
        [Due::Inject {
            spec: 0,
            by: by(0, 2),
            again: false
        }]
    );
}

#[test]
fn threads_share_the_repeats() {
    let mut arrivals = one(1, 1, 1, 1);
    arrivals.arm(0, TASK);
    arrivals.arm(1, OTHER);
    assert_eq!(
        arrivals.at(0x10, OTHER, true),
        [Due::Inject {
            spec: 0,
            by: by(1, 1),
            again: false
        }],
        "the first to come takes the one there is"
    );
    assert_eq!(arrivals.at(0x10, TASK, true), []);
    assert!(arrivals.complete() && arrivals.addresses().is_empty());
}

#[test]
fn threads_share_the_repeats_of_bursts() {
    let mut arrivals = one(1, 1, 1, 2);
    arrivals.arm(0, TASK);
    arrivals.arm(1, OTHER);
    let due = |thread, again| Due::Inject {
        spec: 0,
        by: by(thread, 1),
        again,
    };
    assert_eq!(arrivals.at(0x10, TASK, true), [due(0, true)]);
    arrivals.go_on_at(0, by(0, 1), vec![0x14]);
    assert_eq!(arrivals.at(0x10, OTHER, true), [], "that one is under way");
    // It is over before its second NMI: the other one may begin.
    arrivals.disarm(0);
    assert_eq!(arrivals.at(0x10, OTHER, true), [due(1, true)]);
    arrivals.go_on_at(0, by(1, 1), vec![0x14]);
    assert_eq!(arrivals.at(0x14, OTHER, true), [due(1, false)]);
    assert!(arrivals.complete() && arrivals.addresses().is_empty());
    assert_eq!(arrivals.points()[0].others, 1);
}

#[test]
fn threads_share_the_repeats_of_a_sweep() {
    const THIRD: u64 = 0xffff_8880_0000_3000;
    let mut arrivals = sweep(2);
    for (thread, task) in [(0, TASK), (1, OTHER), (2, THIRD)] {
        arrivals.arm(thread, task);
    }
    assert_eq!(arrivals.at(0x10, TASK, true).len(), 1, "the first boundary");
    assert_eq!(arrivals.at(0x10, OTHER, true).len(), 1, "led to the second");
    assert_eq!(arrivals.at(0x10, THIRD, true), []);
    arrivals.go_on_at(0, by(1, 1), vec![0x14]);
    assert_eq!(arrivals.at(0x14, OTHER, true).len(), 1);
    assert!(arrivals.complete() && arrivals.addresses().is_empty());
}

#[test]
fn only_who_and_where_it_says() {
    let at = |vcpu, in_nmi| Standing {
        pc: 0x10,
        data: None,
        vcpu,
        task: TASK,
        stack_pointer: STACK,
        in_nmi,
        leads_on: true,
    };
    let mut arrivals = of(&ArrivalPlan {
        by: TaskFilter::Thread(1),
        vcpu: Some(1),
        in_nmi: true,
        ..plan()
    });
    arrivals.arm(0, TASK);
    assert!(arrivals.addresses().is_empty(), "thread 0");
    arrivals.arm(1, TASK);
    assert!(arrivals.hit(&at(0, true)).is_empty(), "vCPU 0");
    assert!(arrivals.hit(&at(1, false)).is_empty(), "outside of an NMI");
    assert_eq!(arrivals.hit(&at(1, true)).len(), 1);
}

#[test]
fn an_access_counts_on_the_field_of_the_armed_task() {
    let field = TaskField::new(0x28, 8, DataAccess::Write).unwrap();
    let mut arrivals = Arrivals::new(vec![Arrival::new(
        0,
        Place::Field(field),
        &ArrivalPlan { hit: 2, ..plan() },
        false,
    )]);
    let behind = |task, data, in_nmi| Standing {
        pc: 0x10,
        data,
        vcpu: 0,
        task,
        stack_pointer: STACK,
        in_nmi,
        leads_on: true,
    };
    assert!(arrivals.data().is_empty(), "not armed");
    arrivals.arm(0, TASK);
    let data = field.of(TASK);
    assert_eq!(arrivals.data(), [data.unwrap()]);
    assert!(arrivals.addresses().is_empty(), "no place in the code");
    let elsewhere = field.of(OTHER);
    let reads = TaskField::new(0x28, 8, DataAccess::ReadWrite).unwrap();
    for (nothing, why) in [
        (behind(TASK, data, false), "the first access"),
        (behind(TASK, None, false), "an instruction"),
        (behind(TASK, elsewhere, false), "the field of another task"),
        (behind(OTHER, data, false), "another task's access"),
        (behind(TASK, reads.of(TASK), false), "another injection's"),
        (behind(TASK, data, true), "in an NMI's handler"),
    ] {
        assert_eq!(arrivals.hit(&nothing), [], "{why}");
    }
    let due = arrivals.hit(&behind(TASK, data, false));
    let by = by(0, 1);
    let (spec, again) = (0, false);
    assert_eq!(due, [Due::Inject { spec, by, again }]);
    assert!(arrivals.complete() && arrivals.data().is_empty());
}

#[test]
fn a_field_that_cannot_be_watched_is_none() {
    assert_eq!(TaskField::new(0x24, 8, DataAccess::Write), None);
    assert_eq!(TaskField::new(0x28, 16, DataAccess::Write), None);
}

#[test]
fn any_task_counts_without_iterations() {
    let mut arrivals = of(&ArrivalPlan {
        by: TaskFilter::Any,
        hit: 2,
        repeat: 2,
        ..plan()
    });
    assert_eq!(arrivals.addresses(), [0x10]);
    let due: Vec<usize> = (0..6)
        .map(|n| arrivals.at(0x10, TASK + n, true).len())
        .collect();
    assert_eq!(due, [0, 1, 0, 1, 0, 0]);
    assert!(arrivals.complete());
}

#[test]
fn of_any_task_one_that_was_let_go_begins_again() {
    let mut arrivals = of(&ArrivalPlan {
        by: TaskFilter::Any,
        times: 2,
        ..plan()
    });
    for _ in 0..2 {
        let due = arrivals.at(0x10, TASK, false);
        assert!(matches!(due[..], [Due::StepFirst { .. }]), "{due:?}");
        arrivals.lose_way(0, ThreadIteration::default());
    }
    assert!(!arrivals.complete());
}

#[test]
fn what_follows_counts_from_the_release_once_each() {
    let follower = ArrivalPlan {
        repeat: 2,
        hit: 2,
        ..plan()
    };
    let mut arrivals = Arrivals::new(vec![Arrival::new(7, Place::Code(0x10), &follower, true)]);
    arrivals.arm(0, TASK);
    assert!(arrivals.addresses().is_empty(), "not released");
    arrivals.release(7);
    assert_eq!(arrivals.at(0x10, TASK, true), [], "first since then");
    assert_eq!(arrivals.at(0x10, TASK, true).len(), 1);
    arrivals.arm(0, TASK);
    assert!(arrivals.addresses().is_empty(), "once a release");
    arrivals.release(7);
    assert_eq!(arrivals.addresses(), [0x10]);
}

#[test]
fn several_are_due_at_one_place() {
    let list = vec![
        Arrival::new(0, Place::Code(0x10), &plan(), false),
        Arrival::new(
            1,
            Place::Code(0x10),
            &ArrivalPlan { times: 3, ..plan() },
            false,
        ),
        Arrival::new(2, Place::Code(0x10), &plan(), false),
        Arrival::new(
            3,
            Place::Code(0x10),
            &ArrivalPlan { times: 2, ..plan() },
            false,
        ),
    ];
    let mut arrivals = Arrivals::new(list);
    arrivals.arm(0, TASK);
    let due = arrivals.at(0x10, TASK, true);
    let specs: Vec<u32> = { due.iter() }
        .map(|due| match due {
            Due::Inject { spec, .. } | Due::StepFirst { spec, .. } => *spec,
        })
        .collect();
    assert_eq!(specs, [0, 2, 1], "one that goes on, and it comes last");
}

#[test]
fn passes_are_told() {
    let mut arrivals = one(1, 3, 1, 1);
    for passes in [1, 2, 2] {
        arrivals.arm(0, TASK);
        for _ in 0..passes {
            assert_eq!(arrivals.at(0x10, TASK, true), []);
        }
        assert_eq!(arrivals.at(0x10, OTHER, true), []);
        arrivals.disarm(0);
    }
    let point = Point {
        spec: 0,
        hit: 3,
        iterations: 3,
        least: 1,
        most: 2,
        unfinished: 0,
        others: 3,
        swept: false,
    };
    assert_eq!(arrivals.points(), [point]);
}
