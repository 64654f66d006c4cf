//! A fix as maintainers take it: a mail of `git format-patch` for a named tree, to whom the tree's own
//! scripts/get_maintainer.pl says, in which its scripts/checkpatch.pl finds no fault
//! (Documentation/process/submitting-patches.rst). Nothing is sent, and nothing is signed off.

use std::fs;
use std::path::Path;

use crate::build::application::{self, Application};
use crate::build::git::{self, Call, Object};
use crate::build::patch::{self, Patch};
use crate::build::recipients::{self, Recipients};
use crate::build::script::{self, ScriptError};
use crate::build::workspace::Workspace;
use crate::build::{BuildError, Source, tools, tree};
use crate::cache::{At, Cache, CacheError};
use crate::progress::Progress;

/// What the mail says beside the diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The subject, without `[PATCH]`.
    pub subject: String,
    /// The changelog, with tags at its end.
    pub changelog: String,
}

/// Who sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// As in `From:`.
    pub name: String,
    /// The address.
    pub address: String,
}

impl Sender {
    /// Where git knows nobody.
    pub const NOBODY: (&'static str, &'static str) = ("Your Name", "you@example.org");

    /// Whether git knows who it is.
    #[must_use]
    pub fn is_known(&self) -> bool {
        (self.name.as_str(), self.address.as_str()) != Self::NOBODY
    }
}

impl std::fmt::Display for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} <{}>", self.name, self.address)
    }
}

/// A fix, ready for a human to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// The mail with the patch.
    pub patch: Vec<u8>,
    /// How the fix applies to the tree. The patch in the mail applies to it exactly.
    pub application: Application,
    /// The release of the tree, by its Makefile: `7.3.4`.
    pub release: String,
    /// The commit that the patch applies to, if the tree is one.
    pub base: Option<String>,
    /// What checkpatch.pl says at its end: `total: 0 errors, 0 warnings, 49 lines checked`.
    pub checked: String,
    /// Whether the commit of the tag `Fixes:` is in the repository of the tree, with that subject.
    pub fixes_confirmed: bool,
    /// By get_maintainer.pl.
    pub recipients: Recipients,
    /// By git's configuration.
    pub sender: Sender,
}

/// Why a fix is not ready.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum SubmissionError {
    /// The tree cannot be had.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The tree has it.
    #[error("{name} is in {tree} already")]
    IsIn { name: String, tree: String },
    /// The tree is another one.
    #[error("{name} does not apply to {tree}: {}", .places.join(", "))]
    Conflicts {
        name: String,
        tree: String,
        places: Vec<String>,
    },
    /// What was written is not what was made.
    #[error("the mail with {name} does not make the tree that {name} makes")]
    Differs { name: String },
    /// The repository knows better.
    #[error("the tag `Fixes:` of {name} says ({said:?}), and {tree} has {found:?}")]
    Fixes {
        name: String,
        tree: String,
        said: String,
        found: String,
    },
    /// checkpatch.pl objects.
    #[error("{name} does not pass scripts/checkpatch.pl of {tree}:\n{said}")]
    Style {
        name: String,
        tree: String,
        said: String,
    },
    /// A script does not do what it is there for.
    #[error("scripts/{script} of {tree}: {what}")]
    Script {
        script: &'static str,
        tree: String,
        what: String,
    },
}

impl From<CacheError> for SubmissionError {
    fn from(error: CacheError) -> Self {
        Self::Build(error.into())
    }
}

impl From<git::Failure> for SubmissionError {
    fn from(failure: git::Failure) -> Self {
        Self::Build(failure.into())
    }
}

/// The sign-off is the sender's. Its copy of the tree has no history in which it could look for commits:
/// [`Preparation::check_fixes`] does.
const CHECKPATCH: (&str, &[&str]) = (
    "checkpatch.pl",
    &[
        "--no-signoff",
        "--ignore",
        "UNKNOWN_COMMIT_ID",
        "--color=never",
        "-",
    ],
);
/// git's history, which the copy of the tree lacks, is not asked.
const GET_MAINTAINER: (&str, &[&str]) = (
    "get_maintainer.pl",
    &[
        "--nogit",
        "--nogit-fallback",
        "--nofixes",
        "--roles",
        "--norolestats",
    ],
);

/// Makes a mail of a fix to the tree of `source`. `concerns` are files of the tree whose maintainers are asked
/// too, beside those of the files that the fix changes.
///
/// # Errors
/// [`SubmissionError`].
pub fn prepare(
    source: &Source,
    fix: &Patch,
    message: &Message,
    concerns: &[String],
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<Submission, SubmissionError> {
    tools::need_git()?;
    let (workspace, base) = tree::open(source, cache, progress)?;
    let sender = sender(source);
    let call = Preparation {
        workspace: &workspace,
        name: &fix.name,
        named: source.to_string(),
        base: &base,
        sender: &sender,
    };
    let (application, fixed) = call.apply(fix)?;
    let scratch = cache.scratch()?;
    let root = scratch.path().join("tree");
    fs::create_dir(&root).at(&root)?;
    call.lay_out(&root, &scratch.path().join("index"), concerns)?;
    progress.step("asking scripts/get_maintainer.pl and scripts/checkpatch.pl");
    let recipients = call.recipients(&root, &fixed, concerns)?;
    let mut patch = call.mail(&fixed, message, &recipients)?;
    let commit = call.commit(source);
    if let Some(commit) = &commit {
        patch.extend_from_slice(format!("\nbase-commit: {commit}\n").as_bytes());
    }
    call.same_tree(&patch, &fixed)?;
    let fixes_confirmed = call.check_fixes(source, &message.changelog)?;
    let checked = call.check_style(&root, &patch)?;
    let release = call.release()?;
    Ok(Submission {
        patch,
        application,
        release,
        base: commit,
        checked,
        fixes_confirmed,
        recipients,
        sender,
    })
}

/// What the steps have in common.
struct Preparation<'a> {
    workspace: &'a Workspace,
    /// The fix's name.
    name: &'a str,
    /// The tree's name.
    named: String,
    /// The tree.
    base: &'a str,
    sender: &'a Sender,
}

impl Preparation<'_> {
    /// How the fix applies, and the tree with it.
    fn apply(&self, fix: &Patch) -> Result<(Application, String), SubmissionError> {
        let mut fixed = self.base.to_owned();
        let attempt = application::one(self.workspace, &mut fixed, fix)?;
        let (name, tree) = (self.name.to_owned(), self.named.clone());
        match attempt.application {
            Application::IsIn => Err(SubmissionError::IsIn { name, tree }),
            Application::Conflicts(places) => {
                Err(SubmissionError::Conflicts { name, tree, places })
            }
            applies => Ok((applies, fixed)),
        }
    }

    /// Writes what the scripts need of the tree. They take a folder for Linux if it has all of these.
    fn lay_out(
        &self,
        root: &Path,
        index: &Path,
        concerns: &[String],
    ) -> Result<(), SubmissionError> {
        const PARTS: [&str; 20] = [
            "scripts",
            "MAINTAINERS",
            "COPYING",
            "CREDITS",
            "Kbuild",
            "Makefile",
            "README",
            ".mailmap",
            ".get_maintainer.ignore",
            "Documentation/process",
            "arch/Kconfig",
            "include/linux/kernel.h",
            "drivers/Kconfig",
            "fs/Kconfig",
            "init/Kconfig",
            "ipc/Makefile",
            "kernel/Makefile",
            "lib/Kconfig",
            "Documentation/index.rst",
            "Kconfig",
        ];
        let has = |part: &&str| self.workspace.has(self.base, part);
        self.workspace
            .git()
            .call("checkout")
            .args(["--quiet", self.base, "--"])
            .args(PARTS.into_iter().filter(has))
            .args(concerns)
            .index(index)
            .work_tree(root)
            .run()?;
        Ok(())
    }

    fn recipients(
        &self,
        root: &Path,
        fixed: &str,
        concerns: &[String],
    ) -> Result<Recipients, SubmissionError> {
        let diff = self.workspace.git().call("diff").args([self.base, fixed]);
        let mut said = self.script(root, GET_MAINTAINER, &[], &diff.bytes()?)?.text;
        if !concerns.is_empty() {
            let files: Vec<&str> = concerns.iter().flat_map(|it| ["-f", it]).collect();
            said.push_str(&self.script(root, GET_MAINTAINER, &files, b"")?.text);
        }
        recipients::read(&said).map_err(|line| SubmissionError::Script {
            script: GET_MAINTAINER.0,
            tree: self.named.clone(),
            what: format!("no recipient: {}", printable(&line)),
        })
    }

    /// The mail, by git.
    fn mail(
        &self,
        fixed: &str,
        message: &Message,
        recipients: &Recipients,
    ) -> Result<Vec<u8>, SubmissionError> {
        let text = format!("{}\n\n{}", message.subject, message.changelog);
        let base = self.commit_tree(self.base, &[], "base")?;
        let fixed = self.commit_tree(fixed, &["-p", &base], &text)?;
        let format = self.workspace.git().call("format-patch");
        let format = format.args(["--stdout", "-1", "--zero-commit", "--no-signature"]);
        let to = recipients.to.iter().map(|it| format!("--to={it}"));
        let cc = recipients.cc.iter().map(|it| format!("--cc={it}"));
        Ok(format.args(to.chain(cc)).arg(&fixed).bytes()?)
    }

    fn commit_tree(
        &self,
        tree: &str,
        arguments: &[&str],
        text: &str,
    ) -> Result<String, SubmissionError> {
        let mut call = self.workspace.git().call("commit-tree");
        for who in ["AUTHOR", "COMMITTER"] {
            call = call
                .env(&format!("GIT_{who}_NAME"), &self.sender.name)
                .env(&format!("GIT_{who}_EMAIL"), &self.sender.address);
        }
        Ok(call.args(arguments).arg(tree).input(text).run()?)
    }

    /// The patch in the mail must make the same tree as the fix.
    fn same_tree(&self, mail: &[u8], fixed: &str) -> Result<(), SubmissionError> {
        let mailed = Patch {
            name: self.name.to_owned(),
            content: mail.to_vec(),
        };
        let base = self.base.to_owned();
        let made = patch::apply_all(self.workspace, base, &self.named, &[mailed])?;
        match made == fixed {
            true => Ok(()),
            false => Err(SubmissionError::Differs {
                name: self.name.to_owned(),
            }),
        }
    }

    /// Whether the repository of the tree has the commit that `Fixes:` names.
    fn check_fixes(&self, source: &Source, changelog: &str) -> Result<bool, SubmissionError> {
        let tag = |line: &str| {
            let (id, subject) = line.strip_prefix("Fixes: ")?.split_once(" (\"")?;
            Some((id.to_owned(), subject.strip_suffix("\")")?.to_owned()))
        };
        let folder = source.folder()?;
        let (Some((id, said)), Some(folder)) = (changelog.lines().find_map(tag), folder) else {
            return Ok(false);
        };
        let commit = format!("{id}^{{commit}}");
        let log = Call::in_tree(&folder, "log").args(["-1", "--format=%s", "--end-of-options"]);
        match log.arg(commit).run() {
            Err(_) => Ok(false),
            Ok(found) if found == said => Ok(true),
            Ok(found) => Err(SubmissionError::Fixes {
                name: self.name.to_owned(),
                tree: self.named.clone(),
                said,
                found,
            }),
        }
    }

    /// What checkpatch.pl says at its end, if it finds nothing.
    fn check_style(&self, root: &Path, mail: &[u8]) -> Result<String, SubmissionError> {
        let said = self.script(root, CHECKPATCH, &[], mail)?;
        let total = said.text.lines().find(|line| line.starts_with("total: "));
        let Some(total) = total else {
            return Err(SubmissionError::Script {
                script: CHECKPATCH.0,
                tree: self.named.clone(),
                what: format!("it says nothing of errors: {}", printable(&said.text)),
            });
        };
        if said.status.success() && total.starts_with("total: 0 errors, 0 warnings, ") {
            return Ok(total.to_owned());
        }
        let lines = said.text.lines().take_while(|line| *line != total);
        let lines: Vec<String> = { lines.filter(|line| !line.is_empty()) }
            .map(|line| format!("  {}", printable(line)))
            .collect();
        Err(SubmissionError::Style {
            name: self.name.to_owned(),
            tree: self.named.clone(),
            said: format!("{}\n  {}", lines.join("\n"), printable(total)),
        })
    }

    fn script(
        &self,
        root: &Path,
        (name, arguments): (&'static str, &[&str]),
        more: &[&str],
        input: &[u8],
    ) -> Result<script::Said, SubmissionError> {
        let arguments = [arguments, more].concat();
        script::run(root, name, &arguments, input).map_err(|error| match error {
            ScriptError::Confine(error) => BuildError::from(error).into(),
            ScriptError::Io(error) => SubmissionError::Script {
                script: name,
                tree: self.named.clone(),
                what: error.to_string(),
            },
        })
    }

    /// The commit whose tree this is.
    fn commit(&self, source: &Source) -> Option<String> {
        let (folder, revision) = match source {
            Source::Debian(_) | Source::Upstream(_) => return None,
            Source::Tree(folder) => (folder, "HEAD"),
            Source::Revision { tree, revision } => (tree, revision.as_str()),
        };
        let tree = git::resolve(folder, revision, Object::Tree).ok()?;
        let commit = git::resolve(folder, revision, Object::Commit).ok()?;
        (tree == self.base).then_some(commit)
    }

    /// As the Makefile says: `7.3.4`.
    fn release(&self) -> Result<String, SubmissionError> {
        let object = format!("{}:Makefile", self.base);
        let makefile = self.workspace.git().call("cat-file").args(["-p", &object]);
        Ok(release(&makefile.run()?))
    }
}

/// `VERSION = 7`, `PATCHLEVEL = 3`, `SUBLEVEL = 4` and `EXTRAVERSION = -rc1` in one.
fn release(makefile: &str) -> String {
    let value = |name: &str| {
        let mut lines = makefile.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.trim().strip_prefix('='));
        value.unwrap_or_default().trim()
    };
    let numbers = ["VERSION", "PATCHLEVEL", "SUBLEVEL"].map(value);
    let extra = value("EXTRAVERSION");
    let numbers = match numbers {
        [version, level, "" | "0"] => format!("{version}.{level}"),
        numbers => numbers.join("."),
    };
    let text = format!("{numbers}{extra}");
    text.chars().filter(|c| c.is_ascii_graphic()).collect()
}

/// What a script printed, without what a terminal would obey.
fn printable(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Whom git takes for the author of a commit in the user's tree, or in general.
fn sender(source: &Source) -> Sender {
    let folder = source.folder().ok().flatten();
    let known = |key: &str| {
        let call = match &folder {
            Some(folder) => Call::in_tree(folder, "config"),
            None => Call::new("config"),
        };
        let value = call.args(["--get", key]).run().ok()?;
        (!value.is_empty()).then_some(value)
    };
    let (name, address) = Sender::NOBODY;
    match (known("user.name"), known("user.email")) {
        (Some(name), Some(address)) => Sender { name, address },
        _ => Sender {
            name: name.to_owned(),
            address: address.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests;
