//! What people see.

use std::time::Duration;

use crate::judge::outcome::Outcome;
use crate::judge::result::ScenarioResult;
use crate::judge::tests::{Kernel, Trial, VIOLATED};
use crate::report::names::Names;
use crate::report::{failure, table};
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
        "guest-panic       x      [31mKernel panic    1.5 s"
    );
    let skip = ScenarioResult::not_run("x", Outcome::Skip, "no such kernel".to_owned());
    assert_eq!(row(&skip), "skip              x     no such kernel");
}

#[test]
fn summary() {
    let results = [Outcome::Fail, Outcome::Pass, Outcome::Pass]
        .map(|outcome| ScenarioResult::not_run("x", outcome, String::new()));
    assert_eq!(
        table::summary(&results, Duration::from_millis(12_345)),
        "2 pass, 1 fail in 12.3 s"
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
    #1 1.000000001 cpu0 100/100 deferred chain, cookie 0x300000001, 3 frames: leaf+0x4 < 0x402000 < 0x403000
  > #2 1.000000002 cpu0 100/100 sample, cookie 0x500000001 in work+0x10
    #3 1.000000003 cpu0 100/100 deferred chain, cookie 0x500000001, 3 frames: leaf+0x4 < 0x402000 < 0x403000
"
    );
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
