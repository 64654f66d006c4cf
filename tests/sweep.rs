//! `unwindlab sweep`: the finding that is hard to hit is hit each time, and a kernel that is wrong on
//! purpose is told without a scenario that was made for it.

#![allow(
    clippy::tests_outside_test_module,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use common::{said, unwindlab};

#[test]
fn a_window_of_three_instructions_is_found_on_the_stock_kernel() {
    let output = unwindlab(&[
        "sweep",
        "nmi-in-syscall",
        "--function",
        "do_syscall_64",
        "--static",
    ]);
    let told = said(&output);
    println!("{told}");
    assert!(output.status.success(), "{told}");
    assert!(told.contains("expected-failure  C4 (F001)"), "{told}");
    assert!(!told.contains("FAIL"), "{told}");
    assert!(!told.contains("were not tried"), "{told}");

    let file = told.lines().find_map(|line| line.strip_prefix("replay: "));
    let file = file.expect("a replay file is named");
    let again = unwindlab(&["replay", file]);
    assert_eq!(again.status.code(), Some(1), "{}", said(&again));
    assert!(
        said(&again).contains("fails the same way"),
        "{}",
        said(&again)
    );
    let mended = unwindlab(&["replay", file, "--source", "debian", "--patch", "fix:F001"]);
    assert!(mended.status.success(), "{}", said(&mended));
    assert!(said(&mended).contains("passes at"), "{}", said(&mended));
}

#[test]
fn machines_are_put_back_as_they_were() {
    let output = unwindlab(&[
        "sweep",
        "nmi-in-syscall",
        "--function",
        "task_work_run",
        "--static",
        "--check-restores",
        "--jobs",
        "1",
    ]);
    let told = said(&output);
    println!("{told}");
    assert!(output.status.success(), "{told}");
    assert!(told.contains("0 distinct failures"), "{told}");
}

#[test]
fn a_mutant_is_told_without_a_scenario_of_its_own() {
    let output = unwindlab(&[
        "sweep",
        "nmi-in-syscall",
        "--source",
        "debian",
        "--patch",
        "mutant:reset-ignores-pending",
        "--no-request",
    ]);
    let told = said(&output);
    println!("{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("FAIL  "), "{told}");
    assert!(told.contains("M1 violated"), "{told}");
}

#[test]
fn what_cannot_be_swept_is_said() {
    for (arguments, words) in [
        (vec!["sweep", "nmi-in-user-mode"], "the scenario has none"),
        (
            vec!["sweep", "nmi-storm-300-frames"],
            "the scenario has none",
        ),
        (
            vec!["sweep", "nmi-in-syscall", "--function", "no_such_function"],
            "the kernel has no function `no_such_function`",
        ),
        (
            vec!["sweep", "no-such-scenario"],
            "no file, folder or library scenario",
        ),
    ] {
        let output = unwindlab(&arguments);
        let told = said(&output);
        assert!(!output.status.success(), "{told}");
        assert!(told.contains(words), "{arguments:?}: {told}");
    }
}
