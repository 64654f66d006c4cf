//! `unwindlab doctor --self-test`: every check of the VMM's on a KVM host, and nothing but a pass is printed as one.
//!
//! Needs QEMU and the outer kernel, which are downloaded, and no kernel under test.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::collections::BTreeMap;

use common::{said, unwindlab};
use unwindlab_vmm::checks;

const SELF_TEST: [&str; 2] = ["doctor", "--self-test"];

/// What QEMU's TCG does otherwise than a CPU; the check says so.
const NOT_ON_TCG: &str = "a_breakpoint_that_was_not_met_is_met_behind_an_nmi";

/// The lines of the checks, by verdict and then by name. Each check must have one line, and the last line must have counted them.
fn verdicts(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        for verdict in ["ok", "FAILED", "not available"] {
            if let Some(name) = line.strip_prefix(&format!("{verdict:<14}")) {
                let end = name.find([' ', ':']).unwrap_or(name.len());
                found.entry(verdict).or_default().push(&name[..end]);
            }
        }
    }
    let mut names: Vec<&str> = found.values().flatten().copied().collect();
    let mut expected: Vec<&str> = checks::all().map(|it| it.name).collect();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected, "{text}");
    let count = |verdict| found.get(verdict).map_or(0, Vec::len);
    let counted = format!(
        "{} ok, {} failed, {} not available",
        count("ok"),
        count("FAILED"),
        count("not available")
    );
    assert!(text.trim_end().ends_with(&counted), "{counted}\n{text}");
    found
}

#[test]
fn every_check_is_ok_on_the_emulated_host() {
    let output = unwindlab(&[&SELF_TEST[..], &["--kvm-host", "emulated"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let found = verdicts(&text);
    assert_eq!(found.get("FAILED"), None, "{text}");
    assert_eq!(found["not available"], [NOT_ON_TCG], "{text}");
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    for part in [
        "commit ",
        "KVM host      emulated",
        "AuthenticAMD",
        "kvm_amd ",
        " npt=Y",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

/// Whatever it is: that of a cloud may run no kernel code, and there may be none.
#[test]
fn the_kvm_of_this_machine_is_told_as_it_is() {
    let output = unwindlab(&SELF_TEST);
    if let Err(error) = unwindlab_vmm::open_kvm() {
        assert_eq!(output.status.code(), Some(125), "{}", said(&output));
        assert!(
            said(&output).contains(&error.to_string()),
            "{}",
            said(&output)
        );
        return;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let found = verdicts(&text);
    let expected = match (found.get("FAILED"), found.get("not available")) {
        (Some(_), _) => 1,
        (None, Some(_)) => 125,
        (None, None) => 0,
    };
    assert_eq!(output.status.code(), Some(expected), "{}", said(&output));
    let failed = found.get("FAILED").map(Vec::as_slice).unwrap_or_default();
    let runs_kernels = !failed.contains(&"this_kvm_runs_kernel_code");
    // What takes kernel code is not said to be ok where there is none, and is not left out where there is.
    let ok = found["ok"].contains(&"every_nmi_is_taken_exactly_once");
    assert_eq!(ok, runs_kernels, "{text}");
    // These must be so on every KVM that this VMM has met.
    for name in [
        "a_doorbell_stops_with_size_and_value",
        "every_written_page_is_logged",
    ] {
        assert!(found["ok"].contains(&name), "{name}\n{text}");
    }
}
