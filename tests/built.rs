//! Kernels built from source: the good one passes everything, including the lab client's scenarios,
//! and each deliberately broken one violates its own invariant.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::sync::{Mutex, PoisonError};

use common::{said, scratch, unwindlab};

/// Two KVM hosts at once would only slow each other down.
static TURN: Mutex<()> = Mutex::new(());

/// No kernel without the proposal reads SFrame sections.
const LACKING: &str = "sframe-";

/// One line of `run --json`, as far as it matters here.
#[derive(serde::Deserialize)]
struct Record {
    name: String,
    outcome: String,
}

impl Record {
    fn is_one_of(&self, good: &[&str]) -> bool {
        let lacking = self.name.starts_with(LACKING);
        match lacking {
            true => self.outcome == "skip",
            false => good.contains(&self.outcome.as_str()),
        }
    }
}

#[test]
fn the_good_kernel_passes_everything() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = scratch("built");
    let json = folder.join("results.jsonl");
    let output = unwindlab(&[
        "run",
        "--source",
        "debian",
        "--json",
        json.to_str().unwrap(),
        "--artifacts",
        folder.join("guests").to_str().unwrap(),
    ]);
    let text = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{}", said(&output)));
    let records: Vec<Record> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!records.is_empty(), "{}", said(&output));
    for record in &records {
        // As in tests/library.rs: only a KVM host that died is run again, and shown.
        if record.outcome == "infra-error" {
            eprintln!("FLAKY: the KVM host failed in {}", record.name);
            let again = unwindlab(&["run", "--source", "debian", &record.name]);
            assert_eq!(again.status.code(), Some(0), "{}", said(&again));
            continue;
        }
        assert!(
            record.is_one_of(&["pass", "expected-failure"]),
            "{}",
            said(&output)
        );
    }
    let lab = records.iter().filter(|it| it.name.starts_with("lab-"));
    assert!(
        lab.count() > 0,
        "the lab client is not in: {}",
        said(&output)
    );
}

/// With the fixes of all findings nothing is known to be wrong: nothing fails, and no finding
/// matches.
#[test]
fn the_kernel_with_all_fixes_passes_everything() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = scratch("fixed");
    let json = folder.join("results.jsonl");
    let output = unwindlab(&[
        "run",
        "--source",
        "debian",
        "--patch",
        "fix:all",
        "--json",
        json.to_str().unwrap(),
        "--artifacts",
        folder.join("guests").to_str().unwrap(),
    ]);
    let text = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{}", said(&output)));
    let mut records = 0;
    for line in text.lines() {
        let record: Record = serde_json::from_str(line).unwrap();
        assert!(
            record.is_one_of(&["pass"]),
            "{}: {}",
            record.name,
            said(&output)
        );
        records += 1;
    }
    assert!(records > 0, "{}", said(&output));
}

/// Everything that only a kernel with the proposal can run.
#[test]
fn the_proposal_unwinds_by_sframe() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = scratch("sframe");
    let json = folder.join("results.jsonl");
    let output = unwindlab(&[
        "run",
        "sframe-*",
        "--source",
        "debian",
        "--patch",
        "proposal:sframe",
        "--json",
        json.to_str().unwrap(),
        "--artifacts",
        folder.join("guests").to_str().unwrap(),
    ]);
    let text = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{}", said(&output)));
    let records: Vec<Record> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!records.is_empty(), "{}", said(&output));
    for record in &records {
        let told = said(&output);
        assert_eq!(record.outcome, "pass", "{}: {told}", record.name);
    }
}

/// A few that are quick to build; `unwindlab mutants` runs all of them.
#[test]
fn mutants_are_killed_by_their_own_invariants() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
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
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let output = unwindlab(&["mutants", "--only", "unwind-cannot-fault", "frames-509"]);
    let told = said(&output);
    assert!(told.contains("SURVIVED: U4 did not fall"), "{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
}

const NOTE: &str = "Subject: [PATCH 1/3] unwind: a note

---
diff --git a/kernel/unwind/NOTES b/kernel/unwind/NOTES
new file mode 100644
--- /dev/null
+++ b/kernel/unwind/NOTES
@@ -0,0 +1 @@
+A note.
";

#[test]
fn a_series_is_judged_patch_by_patch() {
    use unwindlab_guest_kernel::build::embedded::{PatchKind, patch};

    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = scratch("series");
    let patches = folder.join("patches");
    std::fs::create_dir(&patches).unwrap();
    let write = |name: &str, content: &[u8]| std::fs::write(patches.join(name), content).unwrap();
    let source = unwindlab(&["kernel", "build", "--source", "debian"]);
    assert_eq!(source.status.code(), Some(0), "{}", said(&source));
    write("0001-note.patch", NOTE.as_bytes());
    write(
        "0002-wrong.patch",
        &patch(PatchKind::Mutant, "unwind-cannot-fault")
            .unwrap()
            .content,
    );
    write(
        "0003-nowhere.patch",
        b"--- a/no/such/file.c\n+++ b/no/such/file.c\n@@ -1 +1 @@\n-a\n+b\n",
    );
    let output = unwindlab(&[
        "series",
        patches.to_str().unwrap(),
        "stack-not-present",
        "--source",
        "debian",
    ]);
    let told = said(&output);
    let lines: Vec<&str> = told
        .lines()
        .filter(|line| line.trim_start().starts_with(['0', '1', '2', '3']))
        .collect();
    let begin = |line: usize, words: &str| {
        let line = lines.get(line).copied().unwrap_or_default().trim_start();
        assert!(line.starts_with(words), "no {words:?}: {told}");
    };
    begin(0, "0  ok");
    begin(1, "1  ok");
    begin(2, "2  breaks");
    begin(3, "3  does not build");
    assert!(told.contains("stack-not-present: fail (S1 U4) "), "{told}");
    assert!(told.contains("no/such/file.c"), "{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
}
