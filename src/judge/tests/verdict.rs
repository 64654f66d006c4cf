//! Every outcome, with its reasons.

use std::time::Duration;

use super::{HOLDS, Kernel, NOT_EXERCISED, PID, Trial, VIOLATED, push, sample};
use crate::judge::Outcome;
use crate::judge::snapshot::SnapshotComparison;
use unwindlab_oracle::invariant::{Evidence, Invariant, Tally};
use unwindlab_oracle::trace::canonical::canonical;
use unwindlab_oracle::trace::recording::{Point, StoodStill, TrialEnd, VcpuPlace};
use unwindlab_oracle::trace::{EventKind, SnapshotStyle, UserModeTrace};
use unwindlab_scenario::KernelSymbols as _;

/// Checks the outcome and all reasons.
#[track_caller]
fn gives(trial: &Trial, outcome: Outcome, reasons: &[&str]) {
    let result = trial.judged();
    assert_eq!(
        (result.outcome, result.reasons.as_slice()),
        (outcome, &strings(reasons)[..])
    );
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

#[test]
fn pass() {
    let trial = Trial::good(
        "\
expect:
  { progress: 15, samples: 2, deferred: 2, cookies: 2, late: 0, frames: 3 }
require: [H1]
",
    );
    gives(&trial, Outcome::Pass, &[]);
    let result = trial.judged();
    assert_eq!(result.counts.samples, 2);
    assert_eq!(result.counts.injections, 2);
    assert!(result.trace.is_some());
}

#[test]
fn violation() {
    let mut trial = Trial::good("");
    trial.invariants.push(VIOLATED);
    gives(&trial, Outcome::Fail, &["V1 violated: two cookies"]);
}

#[test]
fn finding() {
    let mut trial = Trial::good("");
    trial.invariants.push(VIOLATED);
    trial.finding = "two cookies";
    gives(
        &trial,
        Outcome::ExpectedFailure,
        &["V1 violated: two cookies"],
    );
    assert_eq!(trial.judged().findings(), ["F-1"]);
}

const SLOW: Duration = Duration::from_secs(1);

fn slow(_: &Evidence<'_>, tally: &mut Tally) {
    std::thread::sleep(SLOW);
    for _ in 0..3 {
        tally.violated("two cookies".to_owned(), [], None);
    }
}

#[test]
fn judging_has_a_time_limit() {
    let events = Trial::good("").trace.events.len();
    let ended = |at: &str| {
        format!(
            "judging the trace of {events} records ended at {at}: it took more than 0 s, the most \
             that is allowed"
        )
    };
    let mut trial = Trial::good("");
    trial.judging = Duration::ZERO;
    let nothing = "no invariant was exercised";
    gives(&trial, Outcome::InfraError, &[&ended("H1"), nothing]);
    // What was found stays found, if it is no finding.
    trial.judging = SLOW - Duration::from_millis(1);
    let slow = Invariant::new("V1", "holds slowly", "nothing", slow);
    trial.invariants = vec![slow, HOLDS];
    let (shown, found) = (ended("V1"), "V1 violated: two cookies");
    gives(&trial, Outcome::Fail, &[&shown, found]);
    trial.finding = "two cookies";
    gives(&trial, Outcome::InfraError, &[&shown]);
}

/// What is counted is judged, too, also where the scenario has not chosen it.
#[test]
fn counting_has_the_time_limit_of_judging() {
    let without_end = |_: &Evidence<'_>, tally: &mut Tally| {
        loop {
            tally.holds();
        }
    };
    let mut trial = Trial::good("invariants: [H1]\n");
    trial.invariants = vec![
        HOLDS,
        Invariant::new("N2", "never ends", "nothing", without_end),
    ];
    trial.judging = SLOW;
    gives(&trial, Outcome::Pass, &[]);
    trial.trace.user_mode = Some(UserModeTrace::default());
    let events = trial.trace.events.len();
    let ended = format!(
        "judging the trace of {events} records ended at N2: it took more than 1 s, the most that \
         is allowed"
    );
    gives(&trial, Outcome::InfraError, &[&ended]);
}

/// Finds a violation and goes on for ever.
fn endless(_: &Evidence<'_>, tally: &mut Tally) {
    tally.violated("two cookies".to_owned(), [], None);
    loop {
        tally.holds();
    }
}

#[test]
fn judging_ends_within_an_invariant() {
    let mut trial = Trial::good("");
    trial.judging = SLOW;
    let endless = Invariant::new("V1", "never ends", "nothing", endless);
    trial.invariants = vec![endless, HOLDS];
    let result = trial.judged();
    assert_eq!(result.outcome, Outcome::Fail, "{:?}", result.reasons);
    let [cut, found] = &result.reasons[..] else {
        panic!("{:?}", result.reasons);
    };
    assert!(
        cut.contains("records ended at V1: it took more than 1 s"),
        "{cut}"
    );
    assert_eq!(found, "V1 violated: two cookies");
    // A finding says nothing of what was not judged.
    trial.finding = "two cookies";
    assert_eq!(trial.judged().outcome, Outcome::InfraError);
}

#[test]
fn judging_can_be_interrupted() {
    let trial = Trial::good("");
    trial.interrupt.set();
    let result = trial.judged();
    assert_eq!(result.outcome, Outcome::InfraError);
    let said = "records ended at H1: it was interrupted";
    assert!(result.reasons[0].ends_with(said), "{:?}", result.reasons);
}

#[test]
fn finding_and_something_else() {
    let mut trial = Trial::good("expect: { samples: 3 }\n");
    trial.invariants.push(VIOLATED);
    trial.finding = "two cookies";
    gives(&trial, Outcome::Fail, &["2 samples, expected 3"]);
}

#[test]
fn required_but_not_exercised() {
    let mut trial = Trial::good("require: [H1, N1]\n");
    trial.invariants.push(NOT_EXERCISED);
    gives(
        &trial,
        Outcome::Fail,
        &["N1 is required but was not exercised: nothing to see"],
    );
    trial.invariants.pop();
    gives(
        &trial,
        Outcome::Fail,
        &["N1 is required but was not checked"],
    );
}

#[test]
fn nothing_exercised() {
    let mut trial = Trial::good("");
    trial.invariants = vec![NOT_EXERCISED];
    gives(&trial, Outcome::Fail, &["no invariant was exercised"]);
    // No warning and rings that can be read: of unwinding that says nothing.
    let quiet = Invariant::new("W0", "no warning", "nothing", |_, tally| tally.holds_on(2));
    trial.invariants = vec![quiet];
    gives(&trial, Outcome::Fail, &["no invariant was exercised"]);
    trial.invariants.push(HOLDS);
    gives(&trial, Outcome::Pass, &[]);
}

/// An event that never fires leaves a trace in which nothing can be wrong.
#[test]
fn nothing_requested() {
    let mut trial = Trial::good("");
    let mut plan = trial.plan();
    for spec in &mut plan.guest.tracing.events {
        spec.defer_callchain = true;
        spec.sample_period = 1;
    }
    trial.trace.tracing = Some(plan.guest.tracing.clone());
    gives(&trial, Outcome::Pass, &[]);
    trial.trace.events.clear();
    let reason =
        "no request was made: no event gave a sample; if that is right, expect `samples: 0`";
    gives(&trial, Outcome::Fail, &[reason]);
}

#[test]
fn only_chosen_invariants() {
    let mut trial = Trial::good("invariants: [H1]\n");
    trial.invariants = vec![VIOLATED, HOLDS];
    gives(&trial, Outcome::Pass, &[]);
    assert_eq!(trial.judged().checks.len(), 1);
}

#[test]
fn point_not_reached() {
    let mut trial = Trial::good("");
    trial.trace.injections.pop();
    gives(
        &trial,
        Outcome::Fail,
        &["point not reached: injection 1 (nmi) was made 1 times of 2"],
    );
}

/// A place that is not passed any more ends no sweep: the limit of time does.
#[test]
fn a_sweep_that_did_not_come_to_its_end_is_no_pass() {
    let mut trial = Trial::of_a_sweep();
    trial.trace.injections.pop();
    let few = "point not reached: injection 1 (nmi) was made 1 times of 2";
    gives(&trial, Outcome::Fail, &[few]);
    let point = |swept| Point {
        iterations: 1,
        least: 1,
        most: 1,
        swept,
        ..Point::default()
    };
    trial.trace.points = vec![point(false)];
    let passed = "; its place was passed once in each of 1 iterations";
    gives(&trial, Outcome::Fail, &[&format!("{few}{passed}")]);
    trial.trace.points = vec![point(true)];
    gives(&trial, Outcome::Pass, &[]);
    trial.trace.injections.clear();
    let none = "point not reached: injection 1 (nmi) was made 0 times of 2";
    gives(&trial, Outcome::Fail, &[&format!("{none}{passed}")]);
}

#[test]
fn more_than_was_planned_is_no_pass_but_of_a_burst() {
    let mut trial = Trial::good("");
    let again = trial.trace.injections[0].clone();
    trial.trace.injections.push(again);
    gives(
        &trial,
        Outcome::Fail,
        &["point not reached: injection 1 (nmi) was made 3 times of 2"],
    );
    let mut plan = trial.plan().injections.remove(0).trigger;
    assert!(!plan.may_break_off());
    if let unwindlab_engine::plan::TriggerPlan::Arrival(arrival) = &mut plan {
        arrival.times = 2;
    }
    assert!(plan.may_break_off());
}

#[test]
fn corrupt_ring() {
    let mut trial = Trial::good("");
    trial
        .trace
        .corrupt
        .push("ring 0: head behind tail".to_owned());
    gives(
        &trial,
        Outcome::Fail,
        &["corrupt ring: ring 0: head behind tail"],
    );
}

#[test]
fn unmet_expectations() {
    let trial = Trial::good(
        "\
expect:
  progress: 16 or more
  samples: 3 or more
  deferred: 1 or less
  cookies: 1
  late: 1
  frames: 4
",
    );
    gives(
        &trial,
        Outcome::Fail,
        &[
            "2 samples, expected 3 or more",
            "2 deferred chains, expected 1 or less",
            "2 cookies, expected 1",
            "0 late samples, expected 1",
            "2 deferred chains of 3 frames, expected 4",
            "thread 0 made 15 iterations between the first and the last injection, expected 16 \
             or more",
        ],
    );
}

#[test]
fn expectations_of_nothing() {
    let mut trial = Trial::good("expect: { progress: 0 or more, frames: 0 or more }\n");
    trial.trace.progress.clear();
    trial.trace.events.clear();
    gives(
        &trial,
        Outcome::Fail,
        &[
            "no deferred chain, expected 0 or more frames in each",
            "no progress was recorded, expected 0 or more iterations",
        ],
    );
}

#[test]
fn counts_are_of_the_workload() {
    let mut trial = Trial::good("");
    push(&mut trial.trace, PID + 1, sample(7));
    push(&mut trial.trace, PID, sample(0x3_0000_0001));
    push(&mut trial.trace, 0, EventKind::Lost { id: 1, lost: 4 });
    let counts = trial.judged().counts;
    assert_eq!((counts.samples, counts.cookies), (3, 2));
    assert_eq!((counts.late, counts.lost), (1, 4));
}

#[test]
fn snapshots() {
    let mut trial = Trial::good("snapshot: events\n");
    gives(
        &trial,
        Outcome::Fail,
        &[
            "snapshots/x.snap is missing; write this run's with --accept-snapshots, or run with --no-snapshots",
        ],
    );
    let text = canonical(&trial.trace, SnapshotStyle::Events, &|address| {
        Kernel.resolve(address)
    });
    trial.loaded.snapshot = Some(format!("---\nsource: x\n---\n{text}"));
    gives(&trial, Outcome::Pass, &[]);
    assert_eq!(trial.judged().snapshot, Some(SnapshotComparison::Same));
    trial.loaded.snapshot = Some(format!("---\nsource: x\n---\n{text}more\n"));
    gives(&trial, Outcome::Fail, &["snapshots/x.snap differs"]);
    trial.loaded.snapshot = Some(String::new());
    gives(
        &trial,
        Outcome::Fail,
        &[
            "snapshots/x.snap is not a snapshot: expected metadata between two lines `---`, then the \
           contents",
        ],
    );
}

#[test]
fn a_vcpu_that_nothing_let_go_on_is_told_with_all_places() {
    let mut trial = Trial::good("");
    let place = |vcpu, rip, cpl| VcpuPlace {
        vcpu,
        rip,
        cpl,
        interrupt_waits: false,
        stack_pointer: 0,
    };
    trial.trace.stood_still = Some(StoodStill {
        vcpu: 1,
        ms: 10_003,
        by: "point 1 of the schedule (`called`)".to_owned(),
        places: vec![place(0, super::KERNEL_IP, 0), place(1, super::USER_IP, 3)],
    });
    gives(
        &trial,
        Outcome::Fail,
        &[
            "vCPU 1 stood still for 10003 ms because of point 1 of the schedule (`called`), and \
           nothing let it go in time; vCPU 0 at work+0x10, vCPU 1 at 0x401004 in user mode",
        ],
    );
}

#[test]
fn other_ends() {
    let places = vec![VcpuPlace {
        vcpu: 0,
        rip: super::KERNEL_IP,
        cpl: 0,
        interrupt_waits: false,
        stack_pointer: 0,
    }];
    let ends = [
        (
            TrialEnd::Unsupported {
                reason: "no such bit".to_owned(),
            },
            Outcome::GuestSkip,
            "no such bit, says the guest",
        ),
        (
            TrialEnd::HostLacks {
                reason: "no PMU".to_owned(),
            },
            Outcome::Skip,
            "no PMU",
        ),
        (
            TrialEnd::Misbehaved {
                what: "a second Hello".to_owned(),
            },
            Outcome::GuestMisbehaved,
            "a second Hello",
        ),
        (
            TrialEnd::Panic {
                line: "Kernel panic".to_owned(),
            },
            Outcome::GuestPanic,
            "Kernel panic",
        ),
        (
            TrialEnd::Hang {
                places: places.clone(),
            },
            Outcome::Hang,
            "no progress; vCPU 0 at work+0x10",
        ),
        (
            TrialEnd::Starved {
                places: places.clone(),
                percent: 97,
            },
            Outcome::InfraError,
            "no progress; vCPU 0 at work+0x10; but the KVM host waited for a CPU in 97 % of the time that it wanted one",
        ),
        (
            TrialEnd::Timeout,
            Outcome::Timeout,
            "still running: its `timeout` is over, 20000 ms from the last place that it came to, or 80000 ms in all",
        ),
        (
            TrialEnd::BootError {
                reason: "silence".to_owned(),
                places,
            },
            Outcome::BootError,
            "silence; vCPU 0 at work+0x10",
        ),
        (
            TrialEnd::Infra {
                reason: "no memory".to_owned(),
            },
            Outcome::InfraError,
            "no memory",
        ),
        (
            TrialEnd::Unknown,
            Outcome::InfraError,
            "the trial ended without saying how",
        ),
    ];
    for (end, outcome, reason) in ends {
        let mut trial = Trial::good("");
        trial.end = end;
        gives(&trial, outcome, &[reason]);
    }
}

/// Violations in a trace that is cut short are hints and do not change the outcome.
#[test]
fn violations_of_what_was_cut_short() {
    let mut trial = Trial::good("");
    trial.invariants.push(VIOLATED);
    trial.finding = "two cookies";
    let text = || "said".to_owned();
    for (end, outcome) in [
        (TrialEnd::Timeout, Outcome::Timeout),
        (
            TrialEnd::Misbehaved { what: text() },
            Outcome::GuestMisbehaved,
        ),
        (TrialEnd::Infra { reason: text() }, Outcome::InfraError),
    ] {
        trial.end = end;
        let result = trial.judged();
        assert_eq!(result.outcome, outcome);
        assert_eq!(result.violations.len(), 1);
        let last = result.reasons.last();
        assert!(
            last.is_some_and(|it| it.contains("is cut short")),
            "{last:?}"
        );
    }
}
