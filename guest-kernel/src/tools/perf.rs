//! The distribution's own `perf`, with the libraries that it is linked with: a client of deferred
//! unwinding that was not written to test it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cache::{Cache, CacheError, Entry};
use crate::debian::apt::{Apt, AptError, Offer};
use crate::debian::closure::{self, ClosureError};
use crate::debian::deb::DebError;
use crate::progress::Progress;

/// perf itself, in the folder of a [`PerfTool`].
pub const PROGRAM: &str = "perf";
const PACKAGE: &str = "linux-perf";
const KIND: &str = "perf-tool";
/// The first version that knows `--call-graph fp,defer`: that of the first kernel with deferred
/// user unwinding.
const OLDEST: [u64; 2] = [7, 0];

/// An unpacked perf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerfTool {
    /// Its folder: [`PROGRAM`], and the libraries in [`closure::LIBRARIES`].
    pub dir: PathBuf,
    /// Such as `7.3.4-1`.
    pub version: String,
}

/// Why there is no perf.
#[derive(Debug, thiserror::Error)]
pub enum PerfToolError {
    /// The archive has no version that is new enough.
    #[error(
        "the archive has no {PACKAGE} {}.{} or later, which `--call-graph fp,defer` needs",
        OLDEST[0],
        OLDEST[1]
    )]
    TooOld,
    /// Its libraries are not complete.
    #[error("the packages of {PACKAGE} are not complete: {0}")]
    Incomplete(#[from] ClosureError),
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

#[derive(Debug, Serialize, Deserialize)]
struct About {
    version: String,
}

/// The perf to use: the one in the cache, else the newest in the archive.
///
/// # Errors
/// [`PerfToolError`].
pub fn perf_tool(cache: &Cache, progress: &dyn Progress) -> Result<PerfTool, PerfToolError> {
    cache.known_or_make(
        KIND,
        progress,
        || Ok(cache.noted(KIND)?.map(unpacked)),
        || {
            let apt = Apt::open(cache, progress)?;
            let gone = |error: &PerfToolError| {
                matches!(
                    error,
                    PerfToolError::TooOld | PerfToolError::Apt(AptError::Gone(_))
                )
            };
            let entry = apt.with_new_lists_if(gone, progress, || fetch(&apt, cache, progress))?;
            Ok(unpacked(entry))
        },
    )
}

fn unpacked(entry: Entry<About>) -> PerfTool {
    PerfTool {
        dir: entry.dir,
        version: entry.about.version,
    }
}

/// The newest offer, if it is new enough.
fn choose(offers: &[Offer]) -> Option<&Offer> {
    offers
        .iter()
        .filter(|offer| offer.version.numbers().as_slice() >= OLDEST.as_slice())
        .max_by(|a, b| a.version.cmp(&b.version))
}

fn fetch(apt: &Apt, cache: &Cache, progress: &dyn Progress) -> Result<Entry<About>, PerfToolError> {
    let offers = apt.offers(|name| name == PACKAGE)?;
    let offer = choose(&offers).ok_or(PerfToolError::TooOld)?;
    let (version, suite) = (offer.version.to_string(), offer.suite.as_str());
    progress.step(&format!(
        "downloading {PACKAGE} {version} of Debian {suite} with its libraries"
    ));
    let downloads = cache.scratch()?;
    let wanted = format!("{PACKAGE}={version}");
    let debs = apt.download_closure(&[&wanted], suite, downloads.path(), progress)?;
    let id = closure::identity(&debs);
    if let Some(entry) = cache.find(KIND, &id)? {
        cache.set_note(KIND, &id)?;
        return Ok(entry);
    }
    progress.step("unpacking perf into the cache");
    let scratch = cache.scratch()?;
    closure::unpack(&debs, scratch.path(), place, progress)?;
    closure::prune(scratch.path(), &[PROGRAM])?;
    let entry = cache.publish(scratch, KIND, &id, About { version })?;
    cache.set_note(KIND, &id)?;
    Ok(entry)
}

/// Where a file of a package goes.
fn place(path: &Path) -> Option<PathBuf> {
    match path == Path::new("usr/bin/perf") {
        true => Some(PathBuf::from(PROGRAM)),
        false => closure::place_library(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debian::version::Version;

    #[test]
    fn the_newest_that_can_defer_is_chosen() {
        let offers: Vec<Offer> = [
            "6.12.107-1",
            "7.3~rc7-1~exp1",
            "7.3.4-1~bpo13+1",
            "7.2.13-1",
        ]
        .into_iter()
        .map(|version| Offer {
            name: PACKAGE.to_owned(),
            version: Version::new(version),
            suite: "sid".to_owned(),
        })
        .collect();
        let chosen = choose(&offers).map(|offer| offer.version.to_string());
        assert_eq!(chosen.as_deref(), Some("7.3.4-1~bpo13+1"));
        assert_eq!(choose(&offers[..1]), None);
    }

    #[test]
    fn perf_and_libraries_are_kept() {
        let place = |path: &str| place(Path::new(path));
        assert_eq!(place("usr/bin/perf"), Some(PathBuf::from("perf")));
        assert_eq!(place("usr/bin/python3"), None);
        assert!(place("usr/lib/x86_64-linux-gnu/libdw.so.1").is_some());
    }
}
