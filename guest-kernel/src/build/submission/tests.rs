use std::path::PathBuf;

use super::*;
use crate::progress::Silent;

/// Objects to what an added line ends with.
const CHECKPATCH: &str = r#"
    my $bad = grep { /^\+.*[ \t]$/ } <STDIN>;
    print "ERROR: trailing whitespace\n" if $bad;
    print "total: $bad errors, 0 warnings, 7 lines checked\n";
    exit($bad ? 1 : 0);
"#;
/// Knows the file by the diff, and more by `-f`.
const GET_MAINTAINER: &str = r#"
    my $file = grep { $_ eq '-f' } @ARGV;
    print "P <p\@example.org> (maintainer:PERF)\n" if $file;
    exit 0 if $file;
    print "A <a\@example.org> (maintainer:F)\n" if grep { m{^\+\+\+ b/kernel/f} } <STDIN>;
    print "l\@example.org (open list)\n";
"#;

struct Ground {
    folder: tempfile::TempDir,
    cache: Cache,
}

impl Ground {
    /// A tree that passes for one of Linux, with a file of ten lines.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        let ground = Self { folder, cache };
        let lines: String = (1..=10).map(|number| format!("{number}\n")).collect();
        for (file, text) in [
            ("Kconfig", ""),
            (
                "Makefile",
                "VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 4\nEXTRAVERSION =\n",
            ),
            ("arch/x86/Kconfig", ""),
            ("kernel/f", &lines),
            ("kernel/other", ""),
            ("scripts/checkpatch.pl", CHECKPATCH),
            ("scripts/get_maintainer.pl", GET_MAINTAINER),
        ] {
            let path = ground.tree().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        ground
    }

    fn tree(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    fn git(&self, arguments: &[&str]) -> String {
        let who = ["-c", "user.name=T", "-c", "user.email=t@example.org"];
        let git = std::process::Command::new("git")
            .arg("-C")
            .arg(self.tree())
            .args(who)
            .args(arguments)
            .output()
            .unwrap();
        assert!(git.status.success(), "{git:?}");
        String::from_utf8(git.stdout).unwrap().trim().to_owned()
    }

    fn prepare(&self, fix: &Patch, concerns: &[String]) -> Result<Submission, SubmissionError> {
        let message = Message {
            subject: "f: Change line 5".to_owned(),
            changelog: "Because.\n\nFixes: 0123456789ab (\"f: Add lines\")\n".to_owned(),
        };
        let source = Source::Tree(self.tree());
        prepare(&source, fix, &message, concerns, &self.cache, &Silent)
    }
}

/// A fix that makes this of line 5.
fn fix(new: &str) -> Patch {
    let diff = format!(
        "Fix: F000\n\n--- a/kernel/f\n+++ b/kernel/f\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+{new}\n 6\n 7\n 8\n"
    );
    Patch {
        name: "fix:F000".to_owned(),
        content: diff.into_bytes(),
    }
}

#[test]
fn a_mail_has_what_maintainers_want_and_no_signature() {
    let ground = Ground::new();
    let made = ground.prepare(&fix("five"), &[]).unwrap();
    let mail = String::from_utf8(made.patch).unwrap();
    for line in [
        "Subject: [PATCH] f: Change line 5",
        "To: A <a@example.org>",
        "Cc: l@example.org",
        "Fixes: 0123456789ab (\"f: Add lines\")",
        " kernel/f | 2 +-",
        "+five",
    ] {
        assert!(mail.lines().any(|it| it == line), "{line}: {mail}");
    }
    assert!(mail.starts_with(&format!("From {}", "0".repeat(40))));
    assert!(!mail.contains("Signed-off-by"), "{mail}");
    assert_eq!(made.application, Application::Exactly);
    assert_eq!(made.release, "7.3.4");
    assert_eq!(made.base, None);
    assert_eq!(made.checked, "total: 0 errors, 0 warnings, 7 lines checked");
}

#[test]
fn a_mail_names_the_commit_that_it_applies_to() {
    let ground = Ground::new();
    ground.git(&["init", "--quiet"]);
    ground.git(&["add", "."]);
    ground.git(&["commit", "--quiet", "-m", "all"]);
    let commit = ground.git(&["rev-parse", "HEAD"]);
    let made = ground.prepare(&fix("five"), &[]).unwrap();
    assert!(
        made.patch
            .ends_with(format!("\nbase-commit: {commit}\n").as_bytes())
    );
    // One that nobody else has is none.
    fs::write(ground.tree().join("kernel/g"), "new").unwrap();
    assert_eq!(ground.prepare(&fix("five"), &[]).unwrap().base, None);
}

#[test]
fn a_tag_that_names_another_commit_is_refused() {
    let ground = Ground::new();
    ground.git(&["init", "--quiet"]);
    ground.git(&["add", "."]);
    ground.git(&["commit", "--quiet", "-m", "f: Add lines"]);
    let commit = ground.git(&["rev-parse", "--short=12", "HEAD"]);
    let prepare = |subject: &str| {
        let message = Message {
            subject: "f: Change line 5".to_owned(),
            changelog: format!("Because.\n\nFixes: {commit} (\"{subject}\")\n"),
        };
        let source = Source::Tree(ground.tree());
        prepare(&source, &fix("five"), &message, &[], &ground.cache, &Silent)
    };
    assert!(prepare("f: Add lines").unwrap().fixes_confirmed);
    let error = prepare("f: Remove lines").unwrap_err();
    assert!(matches!(error, SubmissionError::Fixes { .. }), "{error}");
    // A commit that is not there is neither.
    assert!(!ground.prepare(&fix("five"), &[]).unwrap().fixes_confirmed);
}

#[test]
fn maintainers_of_other_files_are_asked_too() {
    let concerns = ["kernel/other".to_owned()];
    let made = Ground::new().prepare(&fix("five"), &concerns).unwrap();
    let to = ["A <a@example.org>", "P <p@example.org>"];
    assert_eq!(made.recipients.to, to);
}

#[test]
fn a_fix_without_style_is_refused() {
    let error = Ground::new().prepare(&fix("five "), &[]).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, SubmissionError::Style { .. }), "{message}");
    assert!(message.contains("ERROR: trailing whitespace"), "{message}");
    assert!(message.contains("total: 1 errors"), "{message}");
}

#[test]
fn a_fix_of_another_tree_is_refused() {
    let ground = Ground::new();
    let mut other = fix("five");
    other.content = String::from_utf8(other.content)
        .unwrap()
        .replace("-5\n", "-6\n")
        .into_bytes();
    let error = ground.prepare(&other, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "fix:F000 does not apply to {}: kernel/f:2",
            ground.tree().display()
        )
    );
    fs::write(
        ground.tree().join("kernel/f"),
        "1\n2\n3\n4\nfive\n6\n7\n8\n9\n10\n",
    )
    .unwrap();
    let error = ground.prepare(&fix("five"), &[]).unwrap_err();
    assert!(matches!(error, SubmissionError::IsIn { .. }), "{error}");
}

#[test]
fn a_tree_whose_scripts_are_silent_makes_no_mail() {
    for script in ["checkpatch.pl", "get_maintainer.pl"] {
        let ground = Ground::new();
        fs::write(ground.tree().join("scripts").join(script), "exit 0;").unwrap();
        let error = ground.prepare(&fix("five"), &[]).unwrap_err();
        assert!(error.to_string().contains(script), "{error}");
    }
}

#[test]
fn a_release_is_that_of_the_makefile() {
    assert_eq!(
        release("VERSION = 7\nPATCHLEVEL = 4\nSUBLEVEL = 0\nEXTRAVERSION = -rc1\n"),
        "7.4-rc1"
    );
    assert_eq!(release(""), ".");
}
