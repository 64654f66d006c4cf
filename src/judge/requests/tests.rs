use serde_json::json;

use super::*;
use crate::judge::result::{InvariantCheck, JudgedViolation};
use unwindlab_abi::message::{EventAnnounce, ExpectedStack, ThreadAnnounce};
use unwindlab_oracle::invariant::Check;
use unwindlab_oracle::invariant::Violation;
use unwindlab_oracle::trace::model::{CONTEXT_KERNEL, CONTEXT_USER_DEFERRED};
use unwindlab_scenario::check::check;
use unwindlab_scenario::parse::parse;
use unwindlab_scenario::resolve;

/// Every address is in a function of its own.
struct Symbols;

impl KernelSymbols for Symbols {
    fn addresses(&self, _: &str) -> Vec<u64> {
        vec![1]
    }

    fn size(&self, _: &str) -> Option<u64> {
        None
    }

    fn similar(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn current_task_offset(&self) -> Option<u64> {
        Some(0)
    }

    fn resolve(&self, address: u64) -> Option<(String, u64)> {
        Some((format!("f{address:x}"), 0))
    }
}

fn place() -> Place {
    Place {
        seat: Seat::Entry {
            function: "f".to_owned(),
        },
        company: Company::Alone,
        hits: 1,
        contexts: 1,
    }
}

/// The scenario of a trial with the event `asker` at a place.
const SCENARIO: &str = "\
name: s
description: d
workload: { kind: spin, frames: 3 }
perf:
  events:
    - { name: tracking, event: dummy, defer-output: true, task: true }
    - { name: asker, event: 'kprobe:f', period: 1, defer-callchain: true, output-to: tracking }
";

/// A trace in which events took samples of processes: by the event's number, the process, and
/// whether the kernel took the request.
fn trace(samples: &[(usize, u32, bool)]) -> Trace {
    let scenario = check("s.yaml", "s", parse("s.yaml", SCENARIO).unwrap(), &[]).unwrap();
    let plan = resolve("s.yaml", &scenario, &Symbols, "hash").unwrap();
    let chain = |cookie: bool| match cookie {
        true => vec![CONTEXT_KERNEL, 1, 2, CONTEXT_USER_DEFERRED, 7],
        false => vec![CONTEXT_KERNEL, 1, 2],
    };
    let event = |(index, &(event, pid, cookie)): (usize, &(usize, u32, bool))| -> Event {
        let sample = json!({ "ip": null, "period": null, "raw": null, "chain": chain(cookie) });
        let event = json!({
            "index": index, "ring": 0, "cpu": 0, "position": index, "time": null, "event": event,
            "pid": pid, "tid": null, "misc": 0, "size": 0, "kind": { "Sample": sample },
        });
        serde_json::from_value(event).unwrap()
    };
    let announce = |spec: u32| EventAnnounce {
        spec,
        cpu: 0,
        id: spec.into(),
        ring: 0,
    };
    Trace {
        tracing: Some(plan.guest.tracing),
        session: vec![announce(0), announce(1)],
        threads: vec![ThreadAnnounce {
            thread: 0,
            pid: 33,
            tid: 34,
            stack: ExpectedStack {
                leaf_start: 0,
                leaf_end: 0,
                syscall_return: 0,
                callers: Vec::new(),
            },
        }],
        events: samples.iter().enumerate().map(event).collect(),
        ..Trace::default()
    }
}

/// A trial with this outcome and these samples.
fn result(outcome: Outcome, samples: &[(usize, u32, bool)]) -> ScenarioResult {
    let mut result = ScenarioResult::not_run("s", outcome, "because".to_owned());
    result.trace = Some(trace(samples));
    result.checks = vec![InvariantCheck {
        invariant: "M1".to_owned(),
        check: Check::Violated(Vec::new()),
    }];
    result
}

fn violating(outcome: Outcome, finding: Option<&str>) -> ScenarioResult {
    let mut result = result(outcome, &[(1, 33, true)]);
    let violation = json!({ "invariant": "M1", "message": "no answer", "events": [] });
    result.violations = vec![JudgedViolation {
        violation: serde_json::from_value::<Violation>(violation).unwrap(),
        finding: finding.map(str::to_owned),
    }];
    result
}

fn taken(result: &ScenarioResult) -> (RequestVerdicts, Fate) {
    let mut verdicts = RequestVerdicts::default();
    verdicts.take(place(), result, &Symbols);
    let fate = verdicts.places[0].fate.clone();
    (verdicts, fate)
}

#[test]
fn a_pass_needs_a_request_of_the_workload_there() {
    let of = |samples: &[(usize, u32, bool)]| taken(&result(Outcome::Pass, samples)).1;
    assert_eq!(of(&[]), Fate::NotReached);
    // Another event's, and another task's.
    assert_eq!(of(&[(0, 33, true), (1, 1, true)]), Fate::NotReached);
    assert_eq!(of(&[(1, 33, false)]), Fate::Declined);
    assert_eq!(of(&[(1, 33, false), (1, 33, true)]), Fate::Passed);
    let (verdicts, _) = taken(&result(Outcome::Pass, &[(1, 33, true), (1, 33, true)]));
    assert_eq!(verdicts.places[0].entered_by, [("f2".to_owned(), 2)].into());
    assert_eq!(verdicts.exercised, [("M1".to_owned(), 1)].into());
    let (verdicts, _) = taken(&result(Outcome::Pass, &[]));
    assert!(verdicts.exercised.is_empty());
}

#[test]
fn what_says_nothing_is_no_pass() {
    let of = |outcome| taken(&result(outcome, &[(1, 33, true)])).1;
    let because = || "because".to_owned();
    assert_eq!(of(Outcome::Skip), Fate::Refused(because()));
    // A fail without a violation: something was not as planned.
    for outcome in [
        Outcome::Fail,
        Outcome::Timeout,
        Outcome::InfraError,
        Outcome::BootError,
    ] {
        assert_eq!(of(outcome), Fate::Untested(because()));
    }
    let mut unopened = result(Outcome::BootError, &[]);
    let why = "the guest's agent: event `asker` on CPU 0: perf_event_open: EINVAL";
    unopened.reasons = vec![why.to_owned()];
    assert_eq!(taken(&unopened).1, Fate::Refused(why.to_owned()));
}

#[test]
fn failures_are_gathered_by_what_they_violate() {
    let mut verdicts = RequestVerdicts::default();
    let bad = violating(Outcome::Fail, None);
    assert!(verdicts.take(place(), &bad, &Symbols));
    assert!(!verdicts.take(place(), &bad, &Symbols));
    assert!(verdicts.take(
        place(),
        &violating(Outcome::ExpectedFailure, Some("F1")),
        &Symbols
    ));
    assert!(verdicts.take(place(), &result(Outcome::Hang, &[]), &Symbols));
    assert!(verdicts.take(place(), &result(Outcome::GuestPanic, &[]), &Symbols));
    let fates: Vec<&Fate> = verdicts.places.iter().map(|it| &it.fate).collect();
    let (failed, known) = (&Fate::Failed, &Fate::Known);
    assert_eq!(fates, [failed, failed, known, failed, failed]);
    assert_eq!(verdicts.failures.len(), 4);
    let first = SweepSymptom {
        died: None,
        fell: [("M1".to_owned(), None)].into(),
    };
    let failure = &verdicts.failures[&first];
    assert_eq!(failure.places, ["kprobe:f (alone)", "kprobe:f (alone)"]);
    assert_eq!(failure.messages.len(), 1);
    assert!(failure.messages[0].contains("no answer"));
}
