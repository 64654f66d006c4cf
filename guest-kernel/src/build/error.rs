//! Why a kernel cannot be built.

use std::io;
use std::path::PathBuf;

use crate::cache::CacheError;
use crate::confine::ConfineError;
use crate::debian::apt::AptError;
use crate::debian::deb::DebError;
use crate::kernel::FetchError;
use crate::store::StoreError;

/// Why a kernel cannot be built.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum BuildError {
    /// Programs or headers are missing.
    #[error("building a kernel needs {missing}: install with `{install}`")]
    Tools { missing: String, install: String },
    /// The source is not Linux with support for x86.
    #[error("{0} is not a Linux source tree: it lacks {1}")]
    NotLinux(String, &'static str),
    /// No such folder, or it cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Tree { path: PathBuf, source: io::Error },
    /// A revision that the repository does not have.
    #[error("{} has no revision {revision}: {message}", tree.display())]
    Revision {
        tree: PathBuf,
        revision: String,
        message: String,
    },
    /// A file or folder contains no patch.
    #[error("no patch in {}: give an mbox, a folder of *.patch files, or a range A..B", .0.display())]
    NoPatches(PathBuf),
    /// A patch does not apply.
    #[error("{name} does not apply to {to}:\n{message}")]
    Patch {
        name: String,
        to: String,
        message: String,
    },
    /// The kernel's Kconfig does not allow what a fragment asks for.
    #[error("{fragment} asks for options that this kernel's Kconfig does not allow: {options}")]
    Config { fragment: String, options: String },
    /// It does not compile or link.
    #[error("{what} does not build ({target}):\n{lines}\nthe whole log: {}", log.display())]
    Compile {
        what: String,
        target: &'static str,
        lines: String,
        log: PathBuf,
    },
    /// It cannot be confined.
    #[error(transparent)]
    Confine(#[from] ConfineError),
    /// Whoever asked for the build does not want it any more.
    #[error("the build was stopped")]
    Stopped,
    /// The archive has no such source.
    #[error("no such source: debian:{asked}; the archive offers {offered}")]
    NoSuchSource { asked: String, offered: String },
    /// git failed for a reason other than a patch.
    #[error("git {command}: {message}")]
    Git { command: String, message: String },
    /// It cannot be fetched from the archive.
    #[error(transparent)]
    Apt(#[from] AptError),
    /// A package cannot be unpacked.
    #[error(transparent)]
    Deb(#[from] DebError),
    /// The variable for the store names none.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The result of the build cannot be read as a kernel.
    #[error(transparent)]
    Image(#[from] Box<FetchError>),
}
