//! The witness notes each return to user mode exactly once, where a ring says the same of system
//! calls, and it tells a kernel that answers late.
//!
//! Needs the stock kernel, a KVM host, native or emulated, and for one test Debian's kernel source
//! and a compiler.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::collections::BTreeMap;

use common::{said, scratch, unwindlab};
use unwindlab_abi::plan::SYSCALLS_BATCH;
use unwindlab_oracle::trace::witness::{RecordAt, Witness};
use unwindlab_oracle::trace::{Event, EventKind, Trace};

/// What a line of `run --json` has of a trace.
#[derive(serde::Deserialize)]
struct Record {
    trace: Trace,
}

/// The trace of one scenario.
fn trace(name: &str, arguments: &[&str]) -> Trace {
    let folder = scratch(name);
    let json = folder.join("results.jsonl");
    let guests = folder.join("guests");
    let mut all = vec!["run", "--no-snapshots"];
    all.extend(["--json", json.to_str().unwrap()]);
    all.extend(["--artifacts", guests.to_str().unwrap()]);
    all.extend(arguments);
    let output = unwindlab(&all);
    println!("{}", said(&output));
    let text = std::fs::read_to_string(&json).expect("it ran");
    serde_json::from_str::<Record>(&text)
        .expect("one record")
        .trace
}

/// The name of the event that wrote a record.
fn name<'a>(trace: &'a Trace, event: &Event) -> Option<&'a str> {
    let spec = trace.session.get(event.event?)?.spec;
    let events = &trace.tracing.as_ref()?.events;
    Some(events.get(spec as usize)?.name.as_str())
}

fn witness(trace: &Trace) -> &Witness {
    let witness = trace.witness.as_ref().expect("there is a witness");
    assert!(witness.complete, "{:?}", witness.why_not);
    witness
}

#[test]
fn each_return_from_a_system_call_is_noted_once() {
    let trace = trace("witness-counts", &["tests/scenarios/witness-counts.yaml"]);
    let seen = witness(&trace);
    let mut by_task: BTreeMap<u32, Vec<(&str, &Event)>> = BTreeMap::new();
    let threads: Vec<u32> = trace.threads.iter().map(|it| it.tid).collect();
    for event in &trace.events {
        let (Some(tid), Some(name)) = (event.tid, name(&trace, event)) else {
            continue;
        };
        if threads.contains(&tid) && ["sys_enter", "sys_exit"].contains(&name) {
            by_task.entry(tid).or_default().push((name, event));
        }
    }
    assert_eq!(by_task.len(), 4, "all threads made system calls");
    let (mut calls, mut gaps, mut once) = (0, 0, 0);
    for (tid, records) in by_task {
        for two in records.windows(2) {
            let [(first, from), (second, to)] = two else {
                continue;
            };
            let (from, to) = (RecordAt::of(from), RecordAt::of(to));
            // What was before the first arm mark is not known.
            let Some(returns) = seen.returns_between(tid, from, to) else {
                continue;
            };
            match (*first, *second) {
                ("sys_enter", "sys_exit") => {
                    calls += 1;
                    assert_eq!(returns, 0, "a call is one stay in the kernel: {two:?}");
                }
                ("sys_exit", "sys_enter") => {
                    gaps += 1;
                    // More where an interrupt hit user mode in between.
                    assert!(returns >= 1, "user mode was not seen: {two:?}");
                    once += usize::from(returns == 1);
                }
                other => panic!("{other:?} of {tid}"),
            }
        }
    }
    println!("{calls} calls, {gaps} gaps, {once} with one return");
    // Four threads, 80 iterations, without what is before the first arm mark.
    assert!(calls >= 4 * 79 * SYSCALLS_BATCH, "{calls}");
    // How many gaps have a tick in them depends on the machine's speed. A witness that notes each
    // return twice has none with one.
    assert!(once > 0, "none of {gaps}");
}

/// The returns between each request and its answer.
fn answers(trace: &Trace) -> Vec<usize> {
    let seen = witness(trace);
    let mut found = Vec::new();
    for sample in &trace.events {
        let Some((_, cookie)) = sample.deferred_sample() else {
            continue;
        };
        let answers = |it: &&Event| {
            matches!(&it.kind, EventKind::CallchainDeferred(d) if d.cookie == cookie)
                && it.tid == sample.tid
        };
        let answer = trace.events.iter().find(answers).expect("it is answered");
        let (from, to) = (RecordAt::of(sample), RecordAt::of(answer));
        let returns = seen.returns_between(sample.tid.unwrap(), from, to);
        found.push(returns.expect("it is decided"));
    }
    found
}

#[test]
fn a_late_answer_is_seen_where_the_stack_says_nothing() {
    let good = trace(
        "witness-good",
        &["nmi-in-syscall", "--source", "debian", "--witness"],
    );
    assert_eq!(answers(&good), [0; 20]);
    let mutant = "mutant:answer-in-next-entry";
    let late = trace(
        "witness-late",
        &["nmi-in-syscall", "--patch", mutant, "--witness"],
    );
    let late = answers(&late);
    assert_eq!(late.len(), 20);
    // On a busy machine a tick may wait when a system call returns: it comes before the first user instruction, which
    // is no return, and the mutant answers in it.
    let seen = late.iter().filter(|returns| **returns >= 1).count();
    assert!(seen > 0, "{late:?}");
    println!("{seen} of 20 are late");
}
