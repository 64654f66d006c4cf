//! Kernels built from source: the good one shows in the lab client's scenarios and the programs nothing but what is known
//! of it, and each deliberately broken one violates its own invariant.

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

/// One line of `run --json`, as far as it matters here.
#[derive(serde::Deserialize)]
struct Record {
    name: String,
    outcome: String,
}

/// What the stock kernel, of the same source, cannot run in tests/library.rs, and shows a finding. What is left passes on the
/// kernel of tests/zero_findings.rs.
#[test]
fn the_good_kernel_shows_nothing_but_what_is_known() {
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
        "lab-behind-exit-work",
        "lab-cancel*",
        "lab-io-worker",
        "lab-nmi-in-request",
        "program-*",
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
        let good = ["pass", "expected-failure"].contains(&record.outcome.as_str());
        assert!(good, "{}: {}", record.name, said(&output));
    }
    let shows = |it: &&Record| it.name.starts_with("lab-") && it.outcome == "expected-failure";
    assert!(records.iter().any(|it| shows(&it)), "{}", said(&output));
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

/// Of the reset at the return to user mode: `if (likely(!bits))`, `if (bits & UNWIND_PENDING)`, and the loop around the `cmpxchg`.
#[test]
fn generated_mutants_are_told_by_their_objects_and_killed() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
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

/// A mail of an mbox.
fn mail(subject: &str, body: &str) -> String {
    format!(
        "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\n\
         From: A <a@example.org>\nDate: Mon, 1 Jan 2024 00:00:00 +0000\n\
         Subject: {subject}\n\nText.\n\n{body}\n"
    )
}

#[test]
fn a_series_is_judged_patch_by_patch() {
    use unwindlab_guest_kernel::build::embedded::{PatchKind, patch};

    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let source = unwindlab(&["kernel", "build", "--source", "debian"]);
    assert_eq!(source.status.code(), Some(0), "{}", said(&source));
    let wrong = patch(PatchKind::Mutant, "unwind-cannot-fault").unwrap();
    let wrong = String::from_utf8(wrong.content).unwrap();
    let nowhere = "--- a/no/such/file.c\n+++ b/no/such/file.c\n@@ -1 +1 @@\n-a\n+b\n";
    let thread = [
        mail("[PATCH v2 0/5] notes", "What it is for."),
        mail("[PATCH v2 1/5] note", &format!("---\n{NOTE}")),
        mail(
            "Re: [PATCH v2 1/5] note",
            "> Text.\n\nReviewed-by: B <b@example.org>",
        ),
        mail("[PATCH v1 2/5] of another version", &format!("---\n{NOTE}")),
        mail("[PATCH v2 2/5] wrong", &format!("---\n{wrong}")),
        mail("[PATCH v2 4/5] nowhere", &format!("---\n{nowhere}")),
        mail(
            "[PATCH v2 5/5] other",
            &format!("---\n{}", NOTE.replace("NOTES", "OTHER")),
        ),
    ];
    let mbox = scratch("series").join("v2.mbox");
    std::fs::write(&mbox, thread.concat()).unwrap();
    let series = |options: &[&str]| {
        let args = ["series", mbox.to_str().unwrap(), "--source", "debian"];
        unwindlab(&[&args, options].concat())
    };

    let output = series(&["--apply-only"]);
    let told = said(&output);
    for line in [
        "v2, 5 patches; left out: 1 cover letters, 1 replies, 1 superseded patches",
        "  1  applies         [PATCH v2 1/5] note (+1 trailers in replies)",
        "  3  missing",
        "  4  not tried       [PATCH v2 4/5] nowhere",
        "       3 is not in the tree",
        "2 apply, 0 conflict, 1 missing, 2 not tried",
    ] {
        assert!(told.contains(line), "no {line:?}: {told}");
    }
    assert_eq!(output.status.code(), Some(1), "{told}");

    let output = series(&["stack-not-present", "--skip-conflicts"]);
    let told = said(&output);
    for line in [
        "  4  conflicts       [PATCH v2 4/5] nowhere\n       in no/such/file.c: does not exist",
        "3 apply, 1 conflict, 1 missing, 0 not tried",
        "  0  ok              base: ",
        "  1  ok              [PATCH v2 1/5] note: ",
        "  2  breaks          [PATCH v2 2/5] wrong: ",
        "stack-not-present: fail (S1 U4) ",
        "  5  ok              [PATCH v2 5/5] other: ",
        "4 built, 0 do not build, 1 break what passed before, 0 not tested in ",
    ] {
        assert!(told.contains(line), "no {line:?}: {told}");
    }
    assert_eq!(output.status.code(), Some(1), "{told}");
}

/// On an emulated host it is started again, and what comes again is the kernel's; a third start tells where.
#[test]
fn a_kernel_that_dies_without_a_word_is_told_with_its_place() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let output = unwindlab(&[
        "run",
        "frames-1",
        "--source",
        "debian",
        "--patch",
        "guest-kernel/tests/dies-in-initcall.patch",
        "--artifacts",
        scratch("dies").to_str().unwrap(),
    ]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in [
        "guest-panic",
        "triple fault or reset on vCPU 0, nothing on the console; as on another machine before",
        ": calling  dies_in_its_boot+",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
