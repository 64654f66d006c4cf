//! The report of every finding, for the tree of Debian's source: by that tree's own scripts.

#![allow(
    clippy::tests_outside_test_module,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an integration test is a test module as a whole"
)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{said, scratch, unwindlab};

/// The fixes that are built in.
fn fixes() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest-kernel/patches/fixes");
    let files = fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = files.map(|it| it.unwrap().path()).collect();
    files.sort();
    files
}

fn finding(fix: &Path) -> &str {
    fix.file_stem().unwrap().to_str().unwrap()
}

/// The mail with the patch, in this folder.
fn patch(folder: &Path) -> String {
    let files = fs::read_dir(folder).unwrap();
    let mut paths = files.map(|it| it.unwrap().path());
    let is_patch = |path: &PathBuf| path.extension().is_some_and(|it| it == "patch");
    fs::read_to_string(paths.find(is_patch).unwrap()).unwrap()
}

#[test]
fn every_finding_is_reported_as_the_trees_scripts_want() {
    let all = fixes();
    assert!(all.len() >= 15, "{all:?}");
    for fix in all {
        let id = finding(&fix);
        let folder = scratch(&format!("report-{id}"));
        let path = folder.to_str().unwrap();
        let output = unwindlab(&["report", id, "--output", path]);
        assert!(output.status.success(), "{id}: {}", said(&output));
        let mail = fs::read_to_string(folder.join("mail.txt")).unwrap();
        let one_line = mail.replace('\n', " ");
        assert!(
            one_line.contains("says: total: 0 errors, 0 warnings, "),
            "{mail}"
        );
        let patch = patch(&folder);
        println!(
            "{id}: {}",
            one_line
                .split("says: ")
                .nth(1)
                .and_then(|it| it.split('.').next())
                .unwrap_or_default()
        );
        for text in [&mail, &patch] {
            assert!(text.contains("linux-kernel@vger.kernel.org"), "{text}");
            assert!(text.contains("\nTo: "), "{text}");
            assert!(!text.contains("Signed-off-by"), "{text}");
            let tag = text.contains("\nFixes: ");
            assert_eq!(tag, !["F013", "F015"].contains(&id), "{text}");
        }
        let name = id.to_ascii_lowercase();
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("reproducers/{name}.c"));
        let reproducer = fs::read_to_string(folder.join("reproducer.c")).ok();
        assert_eq!(reproducer, fs::read_to_string(own).ok());
        if let Some(reproducer) = reproducer {
            assert!(mail.ends_with(&reproducer), "{mail}");
        }
    }
}

#[test]
fn the_maintainers_are_those_of_the_code() {
    let folder = scratch("report-maintainers");
    let path = folder.to_str().unwrap();
    // Its file has none; the finding names those whose are concerned.
    let output = unwindlab(&["report", "F004", "--output", path]);
    assert!(output.status.success(), "{}", said(&output));
    let mail = fs::read_to_string(folder.join("mail.txt")).unwrap();
    for section in ["USERSPACE STACK UNWINDING", "PERFORMANCE EVENTS SUBSYSTEM"] {
        assert!(!mail.contains(section), "a role is no address: {mail}");
    }
    let to = mail.split("\nTo: ").nth(1).unwrap();
    let to = to.split("\nCc: ").next().unwrap();
    assert!(
        to.lines().count() >= 3 && !to.contains("linux-kernel@"),
        "{to}"
    );
}

#[test]
fn a_fix_that_is_broken_on_purpose_is_refused() {
    let folder = scratch("report-broken");
    let fix = fs::read_to_string(fixes().first().unwrap()).unwrap();
    let line = "+\tUNWIND_ID_BIT,\n";
    for (name, broken, wanted) in [
        (
            "space",
            "+\tUNWIND_ID_BIT, \n",
            "ERROR: trailing whitespace",
        ),
        ("other", "+\tUNWIND_ID_BIT\n \tOTHER,\n", "does not apply"),
    ] {
        assert!(fix.contains(line));
        let file = folder.join(format!("{name}.patch"));
        fs::write(&file, fix.replace(line, broken)).unwrap();
        let file = file.to_str().unwrap();
        let output = unwindlab(&["report", "F001", "--fix", file]);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(125), "{text}");
        assert!(text.contains(wanted), "{text}");
        assert!(output.stdout.is_empty(), "{text}");
    }
}

#[test]
fn a_report_can_be_printed_and_is_a_mailbox() {
    let output = unwindlab(&["report", "f013"]);
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let mails = text.lines().filter(|line| line.starts_with("From "));
    assert_eq!(mails.count(), 2, "{text}");
    assert!(text.contains("There is no reproducer in C"), "{text}");
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("Nothing was sent."), "{notes}");
}

#[test]
fn an_unknown_finding_is_an_error_of_usage() {
    let output = unwindlab(&["report", "F999"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}
