//! Where a kernel's source comes from.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::BuildError;
use super::git::Call;
use crate::cache::hex;
use crate::debian::version::{dotted, parse_numbers};
use crate::kernel::KernelSpec;

/// A kernel's source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The newest package `linux-source-X.Y` of Debian's archive whose version begins with these
    /// numbers.
    Debian(Vec<u64>),
    /// The upstream release under the newest source package `linux` whose version begins with these numbers, to which Debian's own patches ([`super::upstream`]) apply.
    Upstream(Vec<u64>),
    /// A folder of the user's as it is now. In a git repository: tracked files, and new ones that
    /// are not ignored.
    Tree(PathBuf),
    /// A revision of the user's git repository.
    Revision {
        /// A folder of the repository.
        tree: PathBuf,
        /// Anything that `git rev-parse` resolves to a commit.
        revision: String,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debian(numbers) => write!(f, "debian:{}", dotted(numbers)),
            Self::Upstream(numbers) => write!(f, "upstream:{}", dotted(numbers)),
            Self::Tree(path) => write!(f, "{}", path.display()),
            Self::Revision { tree, revision } => write!(f, "{} at {revision}", tree.display()),
        }
    }
}

impl Source {
    /// Parses `debian`, `upstream`, or one of them with a version: `debian:7.2`.
    #[must_use]
    pub fn packaged(text: &str) -> Option<Self> {
        let (kind, version) = match text.split_once(':') {
            None => (text, None),
            Some((kind, version)) => (kind, Some(version)),
        };
        let numbers = version.map_or(Some(KernelSpec::NEWEST.to_vec()), parse_numbers)?;
        match kind {
            "debian" => Some(Self::Debian(numbers)),
            "upstream" => Some(Self::Upstream(numbers)),
            _ => None,
        }
    }

    /// The name of its workspace. All revisions of a repository share one.
    pub(super) fn workspace(&self) -> Result<String, BuildError> {
        let Some(folder) = self.folder()? else {
            return Ok(self.to_string().replace(':', "-"));
        };
        let id = hex(&Sha256::digest(folder.as_os_str().as_encoded_bytes()));
        Ok(format!("tree-{}", id.get(..16).unwrap_or(&id)))
    }

    /// The user's folder, if the source is one.
    pub(super) fn folder(&self) -> Result<Option<PathBuf>, BuildError> {
        match self {
            Self::Debian(_) | Self::Upstream(_) => Ok(None),
            Self::Tree(tree) | Self::Revision { tree, .. } => readable(tree).map(Some),
        }
    }

    /// The objects of the user's repository, if there is one.
    pub(super) fn objects(&self) -> Result<Option<PathBuf>, BuildError> {
        let Some(folder) = self.folder()? else {
            return Ok(None);
        };
        let objects = Call::in_tree(&folder, "rev-parse")
            .args(["--git-path", "objects"])
            .run();
        Ok(objects.ok().map(|objects| folder.join(objects)))
    }
}

/// The folder's canonical path, if it can be read.
pub(super) fn readable(tree: &Path) -> Result<PathBuf, BuildError> {
    let failed = |source| BuildError::Tree {
        path: tree.to_path_buf(),
        source,
    };
    let full = tree.canonicalize().map_err(failed)?;
    fs::read_dir(&full).map_err(failed)?;
    Ok(full)
}
