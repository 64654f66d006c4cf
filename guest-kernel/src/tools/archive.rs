//! What a program of the archive needs to be in the cache: its packages are downloaded with all that they depend
//! on, and unpacked, if exactly these are not there yet.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cache::{Cache, CacheError, Entry};
use crate::debian::apt::{Apt, AptError};
use crate::debian::closure::{self, ClosureError};
use crate::debian::deb::DebError;
use crate::progress::Progress;

/// Why a program of the archive is not in the cache.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The archive has none that will do.
    #[error("the archive has no {0}")]
    NotOffered(String),
    /// It was fetched and does not run: which it is, and why.
    #[error("the {0} that was unpacked into the cache does not work: {1}")]
    Broken(&'static str, String),
    /// A file that it needs is in none of its packages.
    #[error("packages of the archive are not complete: {0}")]
    Closure(#[from] ClosureError),
    /// It cannot be fetched from the archive.
    #[error(transparent)]
    Apt(#[from] AptError),
    /// A package cannot be unpacked.
    #[error(transparent)]
    Deb(#[from] DebError),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Packages of one program.
pub(super) struct Wanted<'a> {
    /// What its entry in the cache and the note of its identity are called.
    pub(super) kind: &'static str,
    /// What progress calls it.
    pub(super) name: &'a str,
    /// `NAME` or `NAME=VERSION`.
    pub(super) packages: &'a [&'a str],
    pub(super) suite: &'a str,
    /// Where a file of a package goes, if it is kept.
    pub(super) place: fn(&Path) -> Option<PathBuf>,
}

impl Wanted<'_> {
    /// Downloads and unpacks them, and notes that they are what is used. `finish` gets the folder with the files and the
    /// packages: it removes and tries what is to be, and says what is to be known of the program.
    pub(super) fn fetch<About: Serialize + DeserializeOwned>(
        &self,
        (apt, cache): (&Apt, &Cache),
        progress: &dyn Progress,
        finish: impl FnOnce(&Path, &[PathBuf]) -> Result<About, ArchiveError>,
    ) -> Result<Entry<About>, ArchiveError> {
        let downloads = cache.scratch()?;
        let debs = apt.download_closure(self.packages, self.suite, downloads.path(), progress)?;
        let id = closure::identity(&debs);
        let entry = match cache.find(self.kind, &id)? {
            Some(entry) => entry,
            None => {
                progress.step(&format!("unpacking {} into the cache", self.name));
                let scratch = cache.scratch()?;
                closure::unpack(&debs, scratch.path(), self.place, progress)?;
                let about = finish(scratch.path(), &debs)?;
                cache.publish(scratch, self.kind, &id, about)?
            }
        };
        cache.set_note(self.kind, &id)?;
        Ok(entry)
    }
}

/// The entry of this kind that is noted in the cache, else what `fetch` gets: once more with new lists of packages, if
/// the error can come from old ones.
pub(super) fn noted_or_fetched<About: DeserializeOwned>(
    cache: &Cache,
    kind: &str,
    progress: &dyn Progress,
    fetch: impl Fn(&Apt) -> Result<Entry<About>, ArchiveError>,
) -> Result<Entry<About>, ArchiveError> {
    cache.known_or_make(
        kind,
        progress,
        || Ok(cache.noted(kind)?),
        || {
            let apt = Apt::open(cache, progress)?;
            let stale = |error: &ArchiveError| {
                use ArchiveError::{Apt, NotOffered};
                matches!(error, NotOffered(_) | Apt(AptError::Gone(_)))
            };
            apt.with_new_lists_if(stale, progress, || fetch(&apt))
        },
    )
}

/// The version of a package among the files of packages.
pub(super) fn version_of(package: &str, debs: &[PathBuf]) -> Option<String> {
    let mut names = debs.iter().filter_map(|deb| deb.file_name());
    names.find_map(|name| closure::package_version(package, name))
}
