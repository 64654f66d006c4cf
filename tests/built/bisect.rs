//! `unwindlab bisect` on a history with obstacles: commits that do not build, that panic, that have
//! another bug, and many that are unrelated.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use unwindlab_guest_kernel::build::embedded::{self, PatchKind};

use super::common::{said, scratch, unwindlab};
use super::source::{self, Fallible, state};

/// The mutant whose commit the search must find.
const PLANTED: &str = "counter-not-stored";
/// The scenario that shows it: C2 falls if two entries have the same cookie.
const SCENARIO: &str = "nmi-in-syscall";

/// What a commit changes.
#[derive(Clone, Copy)]
enum Change {
    /// Adds a comment to a file.
    Comment(&'static str),
    /// Replaces the first text in a file by the second.
    Replace(&'static str, &'static str, &'static str),
    /// Applies a mutant.
    Mutant(&'static str),
}
use Change::{Comment, Mutant, Replace};

const UNWINDER: &str = "kernel/unwind/user.c";
const BROKEN: (&str, &str) = (
    "#include <linux/sched.h>\n",
    "#include <linux/sched.h>\n#error broken\n",
);
const PANIC: (&str, &str) = (
    "#include <linux/uaccess.h>\n",
    "#include <linux/uaccess.h>\n#include <linux/init.h>\n\
     static int __init planted(void) { panic(\"planted\"); }\nlate_initcall(planted);\n",
);

/// Commits 1 to 16. Halving them tests the 8th first, which panics, and then the 12th or 13th, which
/// do not build.
const HISTORY: [(&str, Change); 16] = [
    ("docs: a word", Comment("README")),
    ("unwind: a comment", Comment(UNWINDER)),
    ("mm: a comment", Comment("mm/util.c")),
    (
        "unwind: does not build",
        Replace(UNWINDER, BROKEN.0, BROKEN.1),
    ),
    (
        "unwind: builds again",
        Replace(UNWINDER, BROKEN.1, BROKEN.0),
    ),
    ("lib: a comment", Comment("lib/bitmap.c")),
    ("docs: another word", Comment("README")),
    ("unwind: panics", Replace(UNWINDER, PANIC.0, PANIC.1)),
    (
        "unwind: panics no more",
        Replace(UNWINDER, PANIC.1, PANIC.0),
    ),
    ("mm: another comment", Comment("mm/util.c")),
    (
        "unwind: does not build either",
        Replace(UNWINDER, BROKEN.0, BROKEN.1),
    ),
    ("lib: another comment", Comment("lib/bitmap.c")),
    ("docs: last word", Comment("README")),
    (
        "unwind: builds once more",
        Replace(UNWINDER, BROKEN.1, BROKEN.0),
    ),
    ("unwind: the one", Mutant(PLANTED)),
    ("perf: wrong in another way", Mutant("short-record")),
];

/// A user's repository without a checked-out tree.
struct Repository {
    folder: PathBuf,
    index: PathBuf,
}

impl Repository {
    /// A repository with Debian's source, whose objects it borrows from the cache.
    fn of_debian(folder: &Path) -> Fallible<Self> {
        let repository = Self {
            folder: folder.join("linux"),
            index: folder.join("index"),
        };
        let tree = source::repository(&repository.folder)?;
        repository.git(&["read-tree", &tree], "")?;
        Ok(repository)
    }

    fn git(&self, args: &[&str], input: &str) -> Fallible<String> {
        use std::io::Write as _;
        let mut child = Command::new("git")
            .current_dir(&self.folder)
            .args(["-c", "user.name=Test", "-c", "user.email=test@example.org"])
            .args(args)
            .env("GIT_INDEX_FILE", &self.index)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("git {args:?}: {}", output.status).into());
        }
        Ok(String::from_utf8(output.stdout)?
            .trim_end_matches('\n')
            .to_owned())
    }

    /// Commits a change; the commit.
    fn commit(&self, parent: Option<&str>, subject: &str, change: Change) -> Fallible<String> {
        match change {
            Comment(file) => {
                let old = self.git(&["cat-file", "blob", &format!(":{file}")], "")?;
                let words = if file == "README" {
                    format!("{old}\n{subject}\n")
                } else {
                    format!("/* {subject} */\n{old}\n")
                };
                self.write(file, &words)?;
            }
            Replace(file, old, new) => {
                let content = self.git(&["cat-file", "blob", &format!(":{file}")], "")?;
                assert!(content.contains(old), "{file} has no {old:?}");
                self.write(file, &format!("{}\n", content.replacen(old, new, 1)))?;
            }
            Mutant(name) => {
                let patch = embedded::patch(PatchKind::Mutant, name).ok_or("no such mutant")?;
                self.git(
                    &["apply", "--cached", "-"],
                    &String::from_utf8(patch.content)?,
                )?;
            }
        }
        self.commit_index(parent, subject)
    }

    fn commit_index(&self, parent: Option<&str>, subject: &str) -> Fallible<String> {
        let tree = self.git(&["write-tree"], "")?;
        let mut args = vec!["commit-tree", &tree, "-m", subject];
        if let Some(parent) = parent {
            args.extend(["-p", parent]);
        }
        self.git(&args, "")
    }

    fn write(&self, file: &str, content: &str) -> Fallible<()> {
        let blob = self.git(&["hash-object", "-w", "--stdin"], content)?;
        self.git(
            &[
                "update-index",
                "--cacheinfo",
                &format!("100644,{blob},{file}"),
            ],
            "",
        )?;
        Ok(())
    }
}

#[test]
fn finds_the_planted_commit() -> Fallible<()> {
    // At the same place each time, so that the next run finds what this one has compiled.
    let folder = scratch("bisect");
    let repository = Repository::of_debian(&folder)?;
    let good = repository.commit_index(None, "good")?;
    let mut last = good.clone();
    let mut planted = String::new();
    for (subject, change) in HISTORY {
        last = repository.commit(Some(&last), subject, change)?;
        if matches!(change, Mutant(name) if name == PLANTED) {
            planted.clone_from(&last);
        }
    }
    let before = state(&repository.folder)?;
    let tree = repository.folder.display().to_string();
    let log = folder.join("log").display().to_string();
    let args = [
        "bisect",
        SCENARIO,
        "--tree",
        &tree,
        "--good",
        &good,
        "--bad",
        &last,
        "--log",
        &log,
        "--runs",
        "3",
        "--invariant",
        "C2",
    ];
    let output = unwindlab(&args);
    let told = said(&output);
    println!("{told}");
    assert!(output.status.success(), "{told}");
    let found = format!("first bad commit: {planted}  unwind: the one");
    assert!(told.contains(&found), "{told}");
    assert!(told.contains("searching for: C2 violated"), "{told}");
    assert!(
        told.contains("(guest-panic"),
        "no commit that panics: {told}"
    );
    assert!(
        told.contains("does not build (vmlinux)"),
        "none that does not build: {told}"
    );
    assert!(told.contains("also seen: A2"), "{told}");
    assert_eq!(
        state(&repository.folder)?,
        before,
        "the user's repository changed"
    );

    // The log has all results, so the second time nothing is built or run.
    let written = fs::read_to_string(&log)?;
    let again = unwindlab(&args);
    assert!(said(&again).contains(&found), "{}", said(&again));
    assert_eq!(fs::read_to_string(&log)?, written);
    Ok(())
}
