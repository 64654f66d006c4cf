//! `unwindlab run` reports each outcome other than a pass as such, with its exit code.
//!
//! Needs the kernels `stock` and `stock:6.12`, and a KVM host, native or emulated.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use common::{said, scratch, unwindlab};

/// The outcome column of the only scenario's line, the exit code, and everything that was printed.
fn outcome_of(arguments: &[&str], artifacts: &str) -> (String, Option<i32>, String) {
    let folder = scratch(artifacts);
    let mut all = vec!["run", "--artifacts", folder.to_str().unwrap()];
    all.extend(arguments);
    let output = unwindlab(&all);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let word = stdout
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned();
    (word, output.status.code(), said(&output))
}

#[test]
fn a_guest_that_panics_is_reported_as_such() {
    let (outcome, code, told) = outcome_of(&["tests/scenarios/panics.yaml"], "panics");
    assert_eq!((outcome.as_str(), code), ("guest-panic", Some(1)), "{told}");
    assert!(told.contains("Kernel panic - not syncing"), "{told}");
    let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/panics/panics/replay.json");
    let again = unwindlab(&["replay", file]);
    let shown = said(&again);
    assert_eq!(again.status.code(), Some(1), "{shown}");
    assert!(shown.contains("fails the same way on "), "{shown}");
    let wrong = unwindlab(&["replay", file, "--instructions", "3"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
    std::fs::write(file, "{\"version\": 2}").unwrap();
    let old = unwindlab(&["replay", file]);
    assert_eq!(old.status.code(), Some(2), "{}", said(&old));
    assert!(said(&old).contains("version 2"), "{}", said(&old));
}

#[test]
fn a_guest_that_hangs_is_reported_as_such() {
    let (outcome, code, told) = outcome_of(&["tests/scenarios/hangs.yaml"], "hangs");
    assert_eq!((outcome.as_str(), code), ("hang", Some(1)), "{told}");
    assert!(told.contains("vCPU 0 at "), "{told}");
}

#[test]
fn a_kernel_without_the_feature_is_skipped() {
    let arguments = ["scenarios/nmi-in-syscall.yaml", "--kernel", "stock:6.12"];
    let (outcome, code, told) = outcome_of(&arguments, "skips");
    assert_eq!((outcome.as_str(), code), ("skip", Some(125)), "{told}");
    assert!(told.contains("deferred unwinding"), "{told}");
}

#[test]
fn a_wrong_scenario_is_a_usage_error_with_its_place() {
    let folder = scratch("wrong");
    let file = folder.join("wrong.yaml");
    std::fs::write(&file, "name: wrong\nworkload: { kind: nap, frames: 13 }\n").unwrap();
    let output = unwindlab(&["run", file.to_str().unwrap()]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("wrong.yaml:2:19"), "{text}");
}

#[test]
fn a_missing_symbol_is_reported_with_similar_ones() {
    let folder = scratch("unknown-symbol");
    let file = folder.join("unknown.yaml");
    let text = "name: unknown\ndescription: x\nworkload: { kind: syscalls, frames: 13 }\n\
                inject:\n  - nmi: { at: { kernel: __x64_sys_getpid_ } }\n";
    std::fs::write(&file, text).unwrap();
    let output = unwindlab(&["run", file.to_str().unwrap()]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("__x64_sys_getpid"), "{text}");
}

#[test]
fn a_file_that_is_no_kernel_is_named() {
    let output = unwindlab(&["run", "--kernel", "path:Cargo.toml"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("Cargo.toml"), "{text}");
}
