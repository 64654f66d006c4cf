//! The commits of a user's repository, which is only read.

use std::path::{Path, PathBuf};

use super::BuildError;
use super::git::{self, Call, Object};

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Its full id, in hexadecimal.
    pub id: String,
    /// The first line of its message.
    pub subject: String,
}

impl Commit {
    /// The first digits of the id.
    #[must_use]
    pub fn short(&self) -> &str {
        self.id.get(..12).unwrap_or(&self.id)
    }
}

/// A git repository of the user's.
#[derive(Debug, Clone)]
pub struct History {
    tree: PathBuf,
}

impl History {
    /// The repository that this folder is in.
    ///
    /// # Errors
    /// [`BuildError::Git`] if it is in none.
    pub fn open(tree: &Path) -> Result<Self, BuildError> {
        let full = tree.canonicalize().map_err(|source| BuildError::Tree {
            path: tree.to_path_buf(),
            source,
        })?;
        Call::in_tree(&full, "rev-parse").arg("--git-dir").run()?;
        Ok(Self { tree: full })
    }

    /// The commit that a revision names.
    ///
    /// # Errors
    /// [`BuildError::Revision`].
    pub fn commit(&self, revision: &str) -> Result<Commit, BuildError> {
        let id = git::resolve(&self.tree, revision, Object::Commit)?;
        let subject = Call::in_tree(&self.tree, "log")
            .args(["-1", "--format=%s", &id])
            .run()?;
        Ok(Commit { id, subject })
    }

    /// The commits of a range (`A..B`), the oldest first. At a merge, only the first parent is
    /// followed.
    ///
    /// # Errors
    /// [`BuildError::Revision`] if this repository has no such range.
    pub fn range(&self, range: &str) -> Result<Vec<Commit>, BuildError> {
        let lines = Call::in_tree(&self.tree, "log")
            .args(["--first-parent", "--reverse", "--format=%H %s"])
            .args(["--end-of-options", range, "--"])
            .run()
            .map_err(|failure| BuildError::Revision {
                tree: self.tree.clone(),
                revision: range.to_owned(),
                message: failure.message,
            })?;
        Ok(lines.lines().filter_map(commit).collect())
    }

    /// Ids of the commits that can be the first bad one: `bad` and its ancestors, without those of
    /// any `good` commit. The one that halves them best comes first (`--bisect-all` of
    /// git-rev-list(1), as in `git bisect`).
    ///
    /// # Errors
    /// [`BuildError::Git`].
    pub fn suspects(&self, bad: &str, good: &[String]) -> Result<Vec<String>, BuildError> {
        let list = Call::in_tree(&self.tree, "rev-list")
            .args(["--bisect-all", bad])
            .args(good.iter().map(|good| format!("^{good}")))
            .run()?;
        // `ID (dist=N)`, with names of branches where there are some.
        let ids = list.lines().filter_map(|line| line.split(' ').next());
        Ok(ids.map(str::to_owned).collect())
    }
}

/// Parses a line `ID SUBJECT`.
fn commit(line: &str) -> Option<Commit> {
    let (id, subject) = line.split_once(' ').unwrap_or((line, ""));
    let is_id = id.len() >= 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| Commit {
        id: id.to_owned(),
        subject: subject.to_owned(),
    })
}
