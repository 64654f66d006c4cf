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

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

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
fn a_log_that_lost_its_beginning_says_nothing_of_what_the_kernel_reported() {
    let (outcome, code, told) = outcome_of(&["tests/scenarios/log-lost.yaml"], "log-lost");
    assert_eq!((outcome.as_str(), code), ("fail", Some(1)), "{told}");
    assert!(
        told.contains("undecided: the kernel's log has a gap"),
        "{told}"
    );
    let log = concat!(env!("CARGO_TARGET_TMPDIR"), "/log-lost/log-lost/kernel.log");
    let log = std::fs::read_to_string(log).unwrap();
    assert!(
        log.starts_with("(lines lost") && !log.contains("Linux version"),
        "{log}"
    );
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

#[test]
fn a_file_that_is_no_recording_is_a_usage_error_and_no_pipe_is_waited_for() {
    for file in ["Cargo.toml", "/dev/zero", "tests", "no-such-file"] {
        let output = unwindlab(&["check", file]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    }
    let recording = "oracle/src/trace/fixtures/debian-7.3/reset.perf.data";
    let output = unwindlab(&["check", recording]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    for part in [
        "F001",
        "C4 violated",
        "held: ",
        "to exercise M6: record with --switch-events",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// A gcc that makes programs which end in other ways than those of the findings.
const OTHER_GCC: &str = r#"#!/bin/sh
for source; do :; done
case $(grep -o 'F0[0-9][0-9]' "$source" | head -n 1) in
F007) body='puts("F007: another end"); return 3;' ;;
F008) body='puts("F008: not tried: nothing to try"); return 2;' ;;
*) body='puts("F009: before the trap"); fflush(stdout); __builtin_trap();' ;;
esac
printf '#include <stdio.h>\nint main(void) { %s }\n' "$body" > "$source"
PATH=${PATH#*:} exec gcc "$@"
"#;

#[test]
fn a_program_that_ends_in_another_way_is_told_with_its_last_line() {
    let folder = scratch("programs");
    let gcc = folder.join("gcc");
    fs::write(&gcc, OTHER_GCC).unwrap();
    fs::set_permissions(&gcc, fs::Permissions::from_mode(0o755)).unwrap();
    let mut path = OsString::from(&folder);
    path.push(":");
    path.push(env::var_os("PATH").unwrap());
    let output = Command::new(env!("CARGO_BIN_EXE_unwindlab"))
        .args(["run", "program-f007", "program-f008", "program-f009"])
        .arg("--artifacts")
        .arg(folder.join("guests"))
        .env("PATH", path)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    for line in [
        "fail              program-f007 ",
        "  f007 ended with exit code 3: F007: another end",
        "guest-skip        program-f008  F008: not tried: nothing to try",
        "fail              program-f009 ",
        "  a signal ended f009: F009: before the trap",
    ] {
        assert!(
            told.lines().any(|it| it.starts_with(line)),
            "{line}: {told}"
        );
    }
}
