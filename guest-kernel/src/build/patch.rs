//! Applies patches to a tree in our repository, without writing any file of the user's.

use std::path::Path;

use super::BuildError;
use super::git::{Call, Failure};
use super::mail::has_diff;
use super::workspace::Workspace;

/// A patch in the format of `diff -u`, `git diff` or `git format-patch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// For messages: the user's file, or `mutant:NAME`.
    pub name: String,
    /// The text; anything before the first diff is a header.
    pub content: Vec<u8>,
}

impl Patch {
    /// Whether there is a diff in it.
    #[must_use]
    pub fn has_diff(&self) -> bool {
        has_diff(&self.content)
    }
}

/// The tree `base`, called `to` in messages, with all patches applied in order.
pub(super) fn apply_all(
    workspace: &Workspace,
    base: String,
    to: &str,
    patches: &[Patch],
) -> Result<String, BuildError> {
    if patches.is_empty() {
        return Ok(base);
    }
    workspace.derive(&base, |index| {
        let mut applied = Vec::new();
        for patch in patches {
            apply(workspace, index, patch, &[]).map_err(|failure| {
                let to: Vec<&str> = [to].into_iter().chain(applied.iter().copied()).collect();
                BuildError::Patch {
                    name: patch.name.clone(),
                    to: to.join(" + "),
                    message: indented(&failure.message),
                }
            })?;
            applied.push(patch.name.as_str());
        }
        Ok(())
    })
}

/// Applies a patch to an index.
pub(super) fn apply(
    workspace: &Workspace,
    index: &Path,
    patch: &Patch,
    options: &[&str],
) -> Result<(), Failure> {
    call(workspace, index, patch, options).run().map(drop)
}

/// The same; git's messages tell how.
pub(super) fn apply_verbosely(
    workspace: &Workspace,
    index: &Path,
    patch: &Patch,
    options: &[&str],
) -> Result<String, Failure> {
    call(workspace, index, patch, options)
        .arg("--verbose")
        .messages()
}

fn call(workspace: &Workspace, index: &Path, patch: &Patch, options: &[&str]) -> Call {
    workspace
        .git()
        .call("apply")
        .args(["--cached", "--whitespace=nowarn"])
        .args(options)
        .index(index)
        .input(patch.content.clone())
}

/// git's lines, indented and without their `error: `.
fn indented(message: &str) -> String {
    let lines: Vec<String> = message
        .lines()
        .map(|line| format!("  {}", line.strip_prefix("error: ").unwrap_or(line)))
        .collect();
    lines.join("\n")
}
