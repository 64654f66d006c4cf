//! The commits of a user's repository: read, never written.

use std::path::{Path, PathBuf};

use super::BuildError;
use super::git::{self, Call, Object};

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Its whole id, in hexadecimal.
    pub id: String,
    /// The first line of its message.
    pub subject: String,
}

impl Commit {
    /// Enough of the id for people.
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
    /// [`BuildError::Git`] where it is in none.
    pub fn open(tree: &Path) -> Result<Self, BuildError> {
        let full = tree.canonicalize().map_err(|source| BuildError::Tree {
            path: tree.to_path_buf(),
            source,
        })?;
        Call::in_tree(&full, "rev-parse").arg("--git-dir").run()?;
        Ok(Self { tree: full })
    }

    /// The commit that a revision means.
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

    /// The commits of a range (`A..B`), the oldest first; of a merge, the side it was made on.
    ///
    /// # Errors
    /// [`BuildError::Revision`] where it is no range of this repository.
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

    /// Whether `ancestor` is an ancestor of `commit`, or it itself.
    #[must_use]
    pub fn is_ancestor(&self, ancestor: &Commit, commit: &Commit) -> bool {
        Call::in_tree(&self.tree, "merge-base")
            .args(["--is-ancestor", &ancestor.id, &commit.id])
            .run()
            .is_ok()
    }

    /// Ids of the commits that can be the first bad one: those that `bad` has and no `good` one.
    /// The one that halves them best comes first (git-rev-list(1), `--bisect-all`, as `git bisect`
    /// uses it); `bad` itself is among them.
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

/// A line `ID SUBJECT`; anything else is none.
fn commit(line: &str) -> Option<Commit> {
    let (id, subject) = line.split_once(' ').unwrap_or((line, ""));
    let is_id = id.len() >= 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| Commit {
        id: id.to_owned(),
        subject: subject.to_owned(),
    })
}
