//! Files that machines share: a folder, which is read and written, or a place behind an HTTP server, which is only read.

mod url;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use crate::cache::{Cache, CacheError, Unfit};
use crate::debian::apt::AptError;
use crate::input;
use crate::progress::Progress;
use crate::unnamed::{self, Unnamed};
use url::Url;

/// Names the store: a folder, or a URL of `http` or `https`.
pub const STORE_VARIABLE: &str = "UNWINDLAB_KERNEL_STORE";

/// Most bytes of a description.
const MOST_TEXT: u64 = 4 << 20;

/// Where kernels are shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Store {
    /// A folder.
    Folder(PathBuf),
    /// What an HTTP server has.
    Url(Url),
}

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum StoreError {
    /// The variable names no place.
    #[error("{STORE_VARIABLE} is neither a folder nor a URL of http or https: {0}")]
    NoPlace(String),
    /// A file of the folder.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The server, or the way to it.
    #[error("{url}: {message}")]
    Url { url: String, message: String },
    /// apt, which fetches what a URL names.
    #[error(transparent)]
    Apt(#[from] AptError),
    /// What is there is not what it is to be.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// A file of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// Its path in the store.
    pub name: &'a str,
    /// Bytes that it may have.
    pub most: u64,
    /// What it is to be, if that is known.
    pub sha256: Option<&'a str>,
}

impl Store {
    /// The store that the environment names, if it names one.
    pub(crate) fn of_environment() -> Result<Option<Self>, StoreError> {
        let set = std::env::var_os(STORE_VARIABLE).filter(|it| !it.is_empty());
        set.map(|it| Self::parse(&it.to_string_lossy())).transpose()
    }

    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        if let Some(url) = Url::parse(text) {
            return Ok(Self::Url(url));
        }
        match std::path::absolute(text) {
            Ok(folder) if !text.contains("://") => Ok(Self::Folder(folder)),
            _ => Err(StoreError::NoPlace(text.to_owned())),
        }
    }

    /// What messages call it.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Folder(folder) => folder.display().to_string(),
            Self::Url(url) => url.shown(),
        }
    }

    /// Copies a file to `into`; whether it is there.
    pub(crate) fn fetch(
        &self,
        wanted: Wanted<'_>,
        into: &Path,
        progress: &dyn Progress,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Folder(folder) => copy(&folder.join(wanted.name), wanted.most, into),
            Self::Url(url) => url.fetch(wanted, into, progress),
        }
    }

    /// The text of a description, if it is there.
    pub(crate) fn text(
        &self,
        name: &str,
        cache: &Cache,
        progress: &dyn Progress,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let scratch = cache.scratch()?;
        let into = scratch.path().join("text");
        let wanted = Wanted {
            name,
            most: MOST_TEXT,
            sha256: None,
        };
        if !self.fetch(wanted, &into, progress)? {
            return Ok(None);
        }
        let text = input::read(&into, MOST_TEXT);
        text.map(Some)
            .map_err(|source| StoreError::File { path: into, source })
    }

    /// Puts a file there, complete or not at all. One of the same content stays as it is. Nothing is put behind a URL.
    pub(crate) fn put(&self, name: &str, content: &[u8]) -> Result<(), StoreError> {
        let Self::Folder(folder) = self else {
            return Ok(());
        };
        let path = folder.join(name);
        let most = content.len() as u64;
        if input::read(&path, most).is_ok_and(|there| there == content) {
            return Ok(());
        }
        replace(&path, content).map_err(|source| StoreError::File { path, source })
    }
}

/// Gives a file this content, complete or not at all.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    fs::create_dir_all(unnamed::folder(path))?;
    let mut file = Unnamed::beside(path)?;
    file.write(content)?;
    match file.replace(path) {
        // Another machine is putting the same.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        replaced => replaced.map(drop),
    }
}

/// Copies a regular file of at most `most` bytes; whether it is there.
fn copy(path: &Path, most: u64, into: &Path) -> Result<bool, StoreError> {
    let from = match input::open(path, most) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        from => from,
    };
    let copied = from.and_then(|from| io::copy(&mut from.take(most), &mut File::create(into)?));
    copied.map(|_| true).map_err(|source| StoreError::File {
        path: path.to_path_buf(),
        source,
    })
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::serve;
