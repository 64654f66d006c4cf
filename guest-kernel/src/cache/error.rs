//! Errors of the file system, by what the user can do about them.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::CACHE_VARIABLE;

/// Why the cache cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum CacheError {
    /// Neither the caller nor the environment names the cache folder.
    #[error("no place for the cache: set {CACHE_VARIABLE}, XDG_CACHE_HOME or HOME")]
    NoPlace,
    /// The device is full.
    #[error("no space left for {}: free some, or point {CACHE_VARIABLE} elsewhere", .0.display())]
    NoSpace(PathBuf),
    /// What is left is kept for others. It is not enough for a saved machine.
    #[error(
        "{} has {left} MiB left, and a saved machine wants {wanted} MiB: free some, or point {CACHE_VARIABLE} elsewhere",
        folder.display()
    )]
    LittleSpace {
        folder: PathBuf,
        left: u64,
        wanted: u64,
    },
    /// Not ours to read or write.
    #[error(
        "no permission for {}: make it yours, or point {CACHE_VARIABLE} to a folder that is",
        .0.display()
    )]
    Permission(PathBuf),
    /// A read-only file system.
    #[error(
        "{} is on a read-only file system: point {CACHE_VARIABLE} to a writable folder",
        .0.display()
    )]
    ReadOnly(PathBuf),
    /// Another user's.
    #[error(
        "{} belongs to user {owner}, and this is user {ours}: what lies in the cache is executed, so point \
         {CACHE_VARIABLE} to a folder of your own",
        folder.display()
    )]
    NotOurs {
        folder: PathBuf,
        owner: u32,
        ours: u32,
    },
    /// Other users can write to it.
    #[error(
        "{folder} may be written to by others, and what lies in the cache is executed: chmod go-w {folder}",
        folder = .0.display()
    )]
    WritableByOthers(PathBuf),
    /// Ctrl-C.
    #[error("interrupted")]
    Stopped,
    /// Anything else the file system says.
    #[error("cannot use {} in the cache: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl CacheError {
    /// Classifies an error of the file system by what the user can do about it.
    pub(crate) fn new(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::NoSpace(path),
            ErrorKind::PermissionDenied => Self::Permission(path),
            ErrorKind::ReadOnlyFilesystem => Self::ReadOnly(path),
            _ => Self::Io { path, source },
        }
    }
}

/// Adds the path to an error of the file system.
pub(crate) trait At<T> {
    fn at(self, path: &Path) -> Result<T, CacheError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, CacheError> {
        self.map_err(|source| CacheError::new(path, source))
    }
}
