//! Whether the patches of a series apply, one after the other, without a build.

use std::collections::BTreeSet;

use super::git::Failure;
use super::patch::{self, Patch};
use super::workspace::Workspace;
use super::{BuildError, BuildSpec, tools, tree};
use crate::cache::Cache;
use crate::progress::Progress;

/// What came of one patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// How it applies.
    pub application: Application,
    /// The patch as it applies to this tree exactly: another text than its author's if it needs fuzz.
    pub patch: Patch,
    /// The files that it changes.
    pub files: Vec<String>,
}

/// How a patch applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Application {
    /// At the lines that it names.
    Exactly,
    /// By at most so many lines before or behind these.
    WithOffset(u32),
    /// With one or two lines of context instead of three in these files, as patch(1) does: it may be at the
    /// wrong place.
    WithFuzz(Vec<String>),
    /// Not at all, since the tree has what it adds and lacks what it removes.
    IsIn,
    /// Not: `FILE:LINE` of the first hunk that fails in each file, or a file and what is the matter with it.
    Conflicts(Vec<String>),
}

impl Application {
    /// Whether the tree is another one after it.
    #[must_use]
    pub const fn changes(&self) -> bool {
        matches!(
            self,
            Self::Exactly | Self::WithOffset(_) | Self::WithFuzz(_)
        )
    }
}

/// Applies patches in order to the kernel of `spec`; a conflicting one is left out. Ends after the first patch of
/// which `go_on` says so.
///
/// # Errors
/// [`BuildError`] for a kernel that cannot be had.
pub fn attempt<'a>(
    spec: &BuildSpec,
    patches: impl Iterator<Item = &'a Patch>,
    mut go_on: impl FnMut(&Application) -> bool,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<Vec<Attempt>, BuildError> {
    tools::need_git()?;
    let (workspace, base) = tree::open(&spec.source, cache, progress)?;
    let mut tree = patch::apply_all(&workspace, base, &spec.source.to_string(), &spec.patches)?;
    let mut attempts = Vec::new();
    for patch in patches {
        progress.step(&format!("applying {}", patch.name));
        let attempt = one(&workspace, &mut tree, patch)?;
        let ends = !go_on(&attempt.application);
        attempts.push(attempt);
        if ends {
            break;
        }
    }
    Ok(attempts)
}

/// Applies a patch to a tree, which becomes the tree with it.
pub(super) fn one(
    workspace: &Workspace,
    tree: &mut String,
    patch: &Patch,
) -> Result<Attempt, BuildError> {
    let before = tree.clone();
    let mut application = Application::IsIn;
    *tree = workspace.derive(&before, |index| {
        let apply = |options: &[&str]| patch::apply_verbosely(workspace, index, patch, options);
        application = match apply(&[]) {
            Ok(messages) => exact(&messages),
            Err(failure) => match apply(&["-C1"]) {
                Ok(messages) => Application::WithFuzz(with_less_context(&messages)),
                Err(_) if apply(&["--check", "--reverse"]).is_ok() => Application::IsIn,
                Err(_) => Application::Conflicts(conflicts(&failure)),
            },
        };
        Ok(())
    })?;
    let mut exact_patch = patch.clone();
    if matches!(application, Application::WithFuzz(_)) {
        let diff = workspace
            .git()
            .call("diff")
            .args(["--binary", "--full-index", &before, tree]);
        exact_patch.content = diff.bytes()?;
    }
    Ok(Attempt {
        application,
        patch: exact_patch,
        files: files(workspace, patch),
    })
}

/// The files that a patch changes; none if git cannot read it.
fn files(workspace: &Workspace, patch: &Patch) -> Vec<String> {
    let call = workspace.git().call("apply").args(["--numstat", "-"]);
    let lines = call.input(patch.content.clone()).run().unwrap_or_default();
    let path = |line: &str| line.splitn(3, '\t').nth(2).map(str::to_owned);
    lines.lines().filter_map(path).collect()
}

/// `Hunk #1 succeeded at 23 (offset -6 lines).`
fn exact(messages: &str) -> Application {
    let offset = |line: &str| -> Option<u32> {
        let (_, behind) = line.strip_prefix("Hunk #")?.split_once("(offset ")?;
        let number: i64 = behind.split(' ').next()?.parse().ok()?;
        u32::try_from(number.unsigned_abs()).ok()
    };
    match messages.lines().filter_map(offset).max() {
        None => Application::Exactly,
        Some(lines) => Application::WithOffset(lines),
    }
}

/// `Checking patch FILE...`, and behind it `Context reduced to (2/2) to apply fragment at 18`.
fn with_less_context(messages: &str) -> Vec<String> {
    let mut file = "";
    let mut files = BTreeSet::new();
    for line in messages.lines() {
        if let Some(rest) = line.strip_prefix("Checking patch ") {
            file = rest.trim_end_matches("...");
        } else if line.starts_with("Context reduced to ") {
            files.insert(file.to_owned());
        }
    }
    files.into_iter().collect()
}

/// `error: patch failed: FILE:LINE`, `error: FILE: does not exist in index`, `error: corrupt patch at line 3`.
fn conflicts(failure: &Failure) -> Vec<String> {
    let errors = failure
        .message
        .lines()
        .filter_map(|line| line.strip_prefix("error: "));
    let mut found = Vec::new();
    for error in errors {
        if let Some(place) = error.strip_prefix("patch failed: ") {
            found.push(place.to_owned());
        } else if !error.starts_with("while searching for:")
            && !error.ends_with(": patch does not apply")
        {
            found.push(error.to_owned());
        }
    }
    if found.is_empty() {
        found.extend(failure.message.lines().next().map(str::to_owned));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::build::Source;
    use crate::progress::Silent;

    /// A tree that passes for one of Linux, with a file of the lines from 1 to 60.
    fn tree(folder: &Path) -> BuildSpec {
        for (file, text) in [("Kconfig", ""), ("Makefile", ""), ("arch/x86/Kconfig", "")] {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir(folder.join("kernel")).unwrap();
        fs::write(folder.join("kernel/f"), lines(1..=60)).unwrap();
        BuildSpec {
            source: Source::Tree(folder.to_path_buf()),
            patches: Vec::new(),
            fragments: Vec::new(),
        }
    }

    fn lines(numbers: impl Iterator<Item = u32>) -> String {
        numbers.map(|number| format!("{number}\n")).collect()
    }

    /// A patch that changes line `number`, which it says to be at `at`, with these three lines before it.
    fn patch(number: u32, at: u32, before: [&str; 3]) -> Patch {
        let context =
            |lines: String| -> String { lines.lines().map(|line| format!(" {line}\n")).collect() };
        let content = format!(
            "--- a/kernel/f\n+++ b/kernel/f\n@@ -{0},7 +{0},7 @@\n{1}-{number}\n+changed\n{2}",
            at - 3,
            context(before.map(|line| format!("{line}\n")).concat()),
            context(lines(number + 1..=number + 3)),
        );
        Patch {
            name: format!("of {number}"),
            content: content.into_bytes(),
        }
    }

    #[test]
    fn each_patch_says_how_it_applies() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        let spec = tree(&folder.path().join("tree"));
        let corrupt = Patch {
            name: "corrupt".to_owned(),
            content: b"--- a/kernel/f\n+++ b/kernel/f\n@@ -1,3 +1,3 @@\n 1\n".to_vec(),
        };
        let patches = [
            patch(10, 10, ["7", "8", "9"]),
            patch(20, 15, ["17", "18", "19"]),
            patch(30, 30, ["other", "28", "29"]),
            patch(40, 40, ["37", "38", "other"]),
            patch(10, 10, ["7", "8", "9"]),
            corrupt,
            patch(50, 50, ["47", "48", "49"]),
        ];
        let attempt = |go_on: &dyn Fn(&Application) -> bool| {
            attempt(&spec, patches.iter(), go_on, &cache, &Silent).unwrap()
        };
        let all = attempt(&|_| true);
        let how: Vec<&Application> = all.iter().map(|it| &it.application).collect();
        let in_f = || vec!["kernel/f".to_owned()];
        assert_eq!(how[0], &Application::Exactly);
        assert_eq!(how[1], &Application::WithOffset(5));
        assert_eq!(how[2], &Application::WithFuzz(in_f()));
        assert_eq!(
            how[3],
            &Application::Conflicts(vec!["kernel/f:37".to_owned()])
        );
        assert_eq!(how[4], &Application::IsIn);
        assert!(matches!(how[5], Application::Conflicts(_)), "{:?}", how[5]);
        assert_eq!(how[6], &Application::Exactly, "behind those that do not");
        assert_eq!(all[0].files, in_f());
        // The patch that needed fuzz is one that does not.
        let again = [&all[0].patch, &all[1].patch, &all[2].patch];
        let again = super::attempt(&spec, again.into_iter(), |_| true, &cache, &Silent).unwrap();
        assert_eq!(again[2].application, Application::Exactly);

        let until = attempt(&|it| !matches!(it, Application::Conflicts(_)));
        assert_eq!(until.len(), 4);
    }
}
