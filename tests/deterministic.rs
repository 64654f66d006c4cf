//! `unwindlab run --deterministic`: the same seed gives the same trace, another seed another one.
//!
//! Needs the stock kernel, QEMU and the outer kernel; a trial takes minutes.

#![allow(
    clippy::tests_outside_test_module,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use common::{said, unwindlab};

/// The hash of the trace of a scenario that passes.
fn trace_of(scenario: &str, seed: &str) -> String {
    let arguments = ["run", "--no-snapshots", scenario];
    let output = unwindlab(&[&arguments[..], &["--deterministic", "--seed", seed]].concat());
    let told = said(&output);
    println!("{told}");
    assert!(output.status.success(), "{told}");
    let hash = told
        .lines()
        .find_map(|line| line.trim().strip_prefix("trace sha256 "));
    let hash = hash.expect("the trace's hash is printed").to_owned();
    assert_eq!(hash.len(), 64, "{told}");
    hash
}

fn follows_from_its_seed(scenario: &str) {
    let once = trace_of(scenario, "1");
    assert_eq!(once, trace_of(scenario, "1"));
    assert_ne!(once, trace_of(scenario, "2"));
}

#[test]
fn a_trace_of_one_vcpu_follows_from_its_seed() {
    follows_from_its_seed("scenarios/nmi-in-syscall.yaml");
}

#[test]
fn a_trace_of_two_vcpus_follows_from_its_seed() {
    follows_from_its_seed("tests/scenarios/two-vcpus.yaml");
}

#[test]
fn a_native_host_is_not_deterministic() {
    let output = unwindlab(&["run", "--deterministic", "--kvm-host", "native"]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    let errors = told.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.count(), 1, "{told}");
    assert!(
        told.contains("--deterministic needs the emulated KVM host"),
        "{told}"
    );
}
