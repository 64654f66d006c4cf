//! Kernels that are wrong on purpose.

use super::common::{said, scratch, unwindlab};
use super::turn;

/// A few that are quick to build; `unwindlab mutants` runs all of them.
#[test]
fn mutants_are_killed_by_their_own_invariants() {
    let _turn = turn();
    let output = unwindlab(&[
        "mutants",
        "--only",
        "torn-id",
        "--only",
        "cancel-without-srcu",
        "--only",
        "unwind-cannot-fault",
    ]);
    let told = said(&output);
    for line in [
        "killed by C4 M1 in nmi-in-first-request",
        "killed by R4 in lab-cancel-in-callback",
        "killed by U4 in stack-not-present",
        "3 killed",
    ] {
        assert!(told.contains(line), "no {line:?} in: {told}");
    }
    assert_eq!(output.status.code(), Some(0), "{told}");
}

#[test]
fn a_mutant_that_no_scenario_tells_is_no_success() {
    let _turn = turn();
    let output = unwindlab(&["mutants", "--only", "unwind-cannot-fault", "frames-509"]);
    let told = said(&output);
    assert!(told.contains("SURVIVED: U4 did not fall"), "{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
}

/// Of the reset at the return to user mode: `if (likely(!bits))`, `if (bits & UNWIND_PENDING)`, and the loop around the `cmpxchg`.
#[test]
fn generated_mutants_are_told_by_their_objects_and_killed() {
    let _turn = turn();
    let folder = scratch("generated");
    let json = folder.join("results.jsonl");
    let html = folder.join("score.html");
    let args = [
        "mutants",
        "--generate",
        "--source",
        "debian",
        "--only",
        "user.c:*:drop-condition*",
        "--budget",
        "0",
        "--json",
        json.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
        "nmi-in-syscall",
    ];
    let output = unwindlab(&args);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    for wanted in [
        "the kernel without a mutant passes all tests",
        "killed by S1",
        "SURVIVED",
    ] {
        assert!(told.contains(wanted), "{wanted}: {}", said(&output));
    }
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("unwind_user_next_common"));

    let last = |text: &str| -> Vec<String> {
        let lines = text.lines().skip_while(|it| !it.contains("generated; "));
        lines.take(4).map(str::to_owned).collect()
    };
    let merged = unwindlab(&["merge", json.to_str().unwrap()]);
    let merged_text = String::from_utf8_lossy(&merged.stdout).into_owned();
    assert_eq!(last(&merged_text), last(&told), "{}", said(&merged));
    assert_eq!(merged.status.code(), output.status.code());

    // All of it stands in the file.
    let before = std::fs::read(&json).unwrap();
    let again = unwindlab(&args);
    assert_eq!(
        again.status.code(),
        output.status.code(),
        "{}",
        said(&again)
    );
    assert_eq!(std::fs::read(&json).unwrap(), before);
}
