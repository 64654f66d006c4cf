//! What counts as tried, and what as passed, in a sweep.

use std::time::Duration;

use super::{HOLDS, Kernel, Known, VIOLATED};
use crate::judge::sweep::Verdicts;
use crate::judge::{Judge, JudgeLimit};
use unwindlab_abi::LOG_GAP;
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_engine::plan::sweep::{Boundary, Point, SweptTrial};
use unwindlab_oracle::invariant::Invariant;
use unwindlab_oracle::trace::Recording;
use unwindlab_oracle::trace::recording::{RingBytes, TrialEnd};

/// A trial that was completed, with what could not be read of its ring.
fn trial(corrupt: Option<&str>) -> SweptTrial {
    let at = Boundary {
        rip: 16,
        occurrence: 1,
    };
    SweptTrial {
        point: Point::single(0, at),
        rings: corrupt.into_iter().map(ring).collect(),
        end: TrialEnd::Completed,
        ..SweptTrial::default()
    }
}

fn ring(corrupt: &str) -> RingBytes {
    RingBytes {
        ring: 0,
        begin: 0,
        bytes: Vec::new(),
        corrupt: Some(corrupt.to_owned()),
    }
}

/// How many points were tried, passed, failed and are not decided.
fn counts(
    trial: SweptTrial,
    invariants: &[Invariant],
    finding: &'static str,
    time: Duration,
) -> [usize; 4] {
    let judge = Judge {
        invariants,
        findings: &Known(finding),
        symbols: &Kernel,
        compare_snapshots: false,
        limit: JudgeLimit {
            interrupt: &Interrupt::default(),
            time,
        },
    };
    let mut verdicts = Verdicts::new(judge, Recording::default(), Vec::new());
    verdicts.judge(trial);
    [
        verdicts.tried.len(),
        verdicts.passed as usize,
        verdicts.failures.len(),
        verdicts.unjudged.len(),
    ]
}

#[test]
fn a_point_whose_trial_is_not_judged_to_its_end_is_not_tried() {
    let counted =
        |invariants: &[Invariant], finding, time| counts(trial(None), invariants, finding, time);
    assert_eq!(counted(&[HOLDS], "none", Duration::MAX), [1, 1, 0, 0]);
    assert_eq!(counted(&[HOLDS], "none", Duration::ZERO), [0, 0, 0, 1]);
    // What was found stays found, if it is no finding.
    let slow = Invariant::new("V1", "violated slowly", "nothing", |_, tally| {
        std::thread::sleep(Duration::from_millis(50));
        tally.violated("two cookies".to_owned(), [], None);
    });
    let limit = Duration::from_millis(49);
    assert_eq!(counted(&[slow, HOLDS], "none", limit), [1, 0, 1, 0]);
    let slow = Invariant::new("V1", "violated slowly", "nothing", |_, tally| {
        std::thread::sleep(Duration::from_millis(50));
        tally.violated("two cookies".to_owned(), [], None);
    });
    assert_eq!(counted(&[slow, HOLDS], "two cookies", limit), [0, 0, 0, 1]);
}

#[test]
fn a_log_of_which_lines_are_missing_is_no_pass() {
    let counted = |kernel_log: &str, invariants: &[Invariant]| {
        let kernel_log = kernel_log.to_owned();
        let trial = SweptTrial {
            kernel_log,
            ..trial(None)
        };
        counts(trial, invariants, "none", Duration::MAX)
    };
    let cut = format!("{LOG_GAP}<6>[    1.000000] fine\n");
    assert_eq!(counted("<6>[    1.000000] fine\n", &[HOLDS]), [1, 1, 0, 0]);
    assert_eq!(counted(&cut, &[HOLDS]), [0, 0, 0, 1]);
    // What was found stays found.
    assert_eq!(counted(&cut, &[VIOLATED]), [1, 0, 1, 0]);
}

#[test]
fn a_ring_that_cannot_be_read_is_no_pass() {
    let counted =
        |corrupt, invariants| counts(trial(corrupt), invariants, "two cookies", Duration::MAX);
    assert_eq!(counted(None, &[HOLDS]), [1, 1, 0, 0]);
    assert_eq!(counted(Some("head behind"), &[HOLDS]), [1, 0, 1, 0]);
    // Nor is it a known failure.
    assert_eq!(counted(Some("head behind"), &[VIOLATED]), [1, 0, 1, 0]);
}
