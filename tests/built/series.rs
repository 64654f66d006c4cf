//! `unwindlab series`: the patches of a thread, one by one.

use unwindlab_guest_kernel::build::embedded::{PatchKind, patch};

use super::common::{said, scratch, unwindlab};
use super::turn;

const NOTE: &str = "Subject: [PATCH 1/3] unwind: a note

---
diff --git a/kernel/unwind/NOTES b/kernel/unwind/NOTES
new file mode 100644
--- /dev/null
+++ b/kernel/unwind/NOTES
@@ -0,0 +1 @@
+A note.
";

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
    let _turn = turn();
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
