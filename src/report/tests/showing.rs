//! What people see.

use std::time::Duration;

use crate::judge::outcome::Outcome;
use crate::judge::result::ScenarioResult;
use crate::judge::sweep::SweepSymptom;
use crate::judge::tests::{Kernel, Trial, VIOLATED};
use crate::report::names::Names;
use crate::report::sweep::what;
use crate::report::{chains, failure, table};
use unwindlab_oracle::trace::EventKind;
use unwindlab_oracle::trace::recording::TrialEnd;

/// A row without its styles.
fn row(result: &ScenarioResult) -> String {
    anstream::adapter::strip_str(&table::row(result, 4)).to_string()
}

#[test]
fn rows() {
    let mut trial = Trial::good("");
    assert_eq!(
        row(&trial.judged()),
        "pass              x          2 samples      2 deferred   0 late   0 lost  1.5 s"
    );
    trial.invariants.push(VIOLATED);
    trial.finding = "two cookies";
    assert_eq!(
        row(&trial.judged()),
        "expected-failure  x          2 samples      2 deferred   0 late   0 lost  F-1  1.5 s"
    );
    trial.end = TrialEnd::Panic {
        line: "\u{1b}[31mKernel panic\r\n".to_owned(),
    };
    assert_eq!(
        row(&trial.judged()),
        "guest-panic       x     \\u{1b}[31mKernel panic    1.5 s"
    );
    let skip = ScenarioResult::not_run("x", Outcome::Skip, "no such kernel".to_owned());
    assert_eq!(row(&skip), "skip              x     no such kernel");
}

/// The file of a part may say anything.
#[test]
fn findings_and_invariants_are_shown_as_text() {
    let title = "\u{1b}]0;x\u{7}";
    let mut trial = Trial::good("");
    trial.invariants.push(VIOLATED);
    trial.finding = "two cookies";
    let mut result = trial.judged();
    result.violations[0].finding = Some(title.to_owned());
    let shown = row(&result);
    assert!(shown.contains("lost  \\u{1b}]0;x\\u{7}  1.5 s"), "{shown}");
    let symptom = SweepSymptom {
        died: None,
        fell: [
            (title.to_owned(), None),
            ("C4".to_owned(), Some(title.to_owned())),
        ]
        .into(),
    };
    assert_eq!(what(&symptom), "\\u{1b}]0;x\\u{7} C4 (\\u{1b}]0;x\\u{7})");
}

#[test]
fn summary() {
    let results = [Outcome::Fail, Outcome::Pass, Outcome::Pass]
        .map(|outcome| ScenarioResult::not_run("x", outcome, String::new()));
    assert_eq!(
        table::summary(&results, Duration::from_millis(12_345)),
        "2 pass, 1 fail in 12.3 s"
    );
    assert_eq!(table::summary(&[], Duration::ZERO), "no result in 0.0 s");
}

#[test]
fn failures_of_a_long_run_are_listed_at_its_end() {
    let passed = || ScenarioResult::not_run("x", Outcome::Pass, String::new());
    let failed = |name, outcome| ScenarioResult::not_run(name, outcome, "M1: \u{1b}".to_owned());
    let mut results = vec![
        failed("long-name", Outcome::Fail),
        failed("y", Outcome::Skip),
        failed("z", Outcome::InfraError),
    ];
    // They are in sight.
    assert_eq!(table::failures(&results), "");
    results.extend((0..30).map(|_| passed()));
    assert_eq!(
        anstream::adapter::strip_str(&table::failures(&results)).to_string(),
        "fail              long-name  M1: \\u{1b}\n\
         infra-error       z          M1: \\u{1b}\n"
    );
}

#[test]
fn a_failure_shows_the_events_and_the_instruction() {
    let mut trial = Trial::good("");
    trial.invariants.push(VIOLATED);
    let names = Names {
        kernel: &Kernel,
        user: &trial.trace.user_symbols,
    };
    assert_eq!(
        failure::block(&trial.judged(), names),
        "  V1 violated: two cookies, at work+0x10
            us  cpu0  thread
    #1  +0.000  A!    100/100 deferred chain, cookie 0x300000001, 3 frames: leaf+0x4 < 0x402000 < 0x403000
  > #2  +0.001  B?    100/100 sample, cookie 0x500000001 in work+0x10
    #3  +0.002  B!    100/100 deferred chain, cookie 0x500000001, 3 frames: leaf+0x4 < 0x402000 < 0x403000
"
    );
}

#[test]
fn a_wrong_stack_is_shown_beside_the_known_one() {
    let mut trial = Trial::good("");
    let wrong = trial.trace.events[1].index;
    if let EventKind::CallchainDeferred(chain) = &mut trial.trace.events[1].kind {
        chain.ips.pop();
        chain.ips.push(0x40_4000);
    }
    let names = Names {
        kernel: &Kernel,
        user: &trial.trace.user_symbols,
    };
    assert_eq!(
        chains::side_by_side(&[0, wrong], &trial.trace, names),
        "    frame  expected of #1  seen in #1
        0  leaf+0x4        leaf+0x4
        1  0x402000        0x402000
  >     2  0x403000        0x404000
"
    );
    // Two that are the same, and one alone.
    assert_eq!(chains::side_by_side(&[2, 3], &trial.trace, names), "");
    assert_eq!(chains::side_by_side(&[0], &trial.trace, names), "");
}

#[test]
fn violations_that_name_no_event_there_is() {
    let mut trial = Trial::good("");
    trial.invariants.push(VIOLATED);
    let mut result = trial.judged();
    for violation in &mut result.violations {
        violation.violation.events = vec![usize::MAX, 0];
    }
    let names = Names {
        kernel: &Kernel,
        user: &[],
    };
    assert!(failure::block(&result, names).contains("> #0 "));
}
