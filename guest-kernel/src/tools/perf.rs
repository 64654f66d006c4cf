//! The distribution's own `perf`, with the libraries that it is linked with: a client of deferred
//! unwinding that was not written to test it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::archive::{self, ArchiveError, Wanted};
use crate::cache::{Cache, Entry};
use crate::debian::apt::{Apt, Offer};
use crate::debian::closure;
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

#[derive(Debug, Serialize, Deserialize)]
struct About {
    version: String,
}

/// The perf to use: the one in the cache, else the newest in the archive.
///
/// # Errors
/// [`ArchiveError`].
pub fn perf_tool(cache: &Cache, progress: &dyn Progress) -> Result<PerfTool, ArchiveError> {
    let fetch = |apt: &Apt| fetch(apt, cache, progress);
    let entry = archive::noted_or_fetched(cache, KIND, progress, fetch)?;
    Ok(PerfTool {
        dir: entry.dir,
        version: entry.about.version,
    })
}

/// The newest offer, if it is new enough.
fn choose(offers: &[Offer]) -> Option<&Offer> {
    offers
        .iter()
        .filter(|offer| offer.version.numbers().as_slice() >= OLDEST.as_slice())
        .max_by(|a, b| a.version.cmp(&b.version))
}

fn fetch(apt: &Apt, cache: &Cache, progress: &dyn Progress) -> Result<Entry<About>, ArchiveError> {
    let offers = apt.offers(|name| name == PACKAGE)?;
    let [major, minor] = OLDEST;
    let offer = choose(&offers).ok_or_else(|| {
        let wanted =
            format!("{PACKAGE} {major}.{minor} or later, which `--call-graph fp,defer` needs");
        ArchiveError::NotOffered(wanted)
    })?;
    let (version, suite) = (offer.version.to_string(), offer.suite.as_str());
    progress.step(&format!(
        "downloading {PACKAGE} {version} of Debian {suite} with its libraries"
    ));
    let wanted = Wanted {
        kind: KIND,
        name: "perf",
        packages: &[&format!("{PACKAGE}={version}")],
        suite,
        place,
    };
    wanted.fetch((apt, cache), progress, |dir, _| {
        closure::prune(dir, &[PROGRAM])?;
        Ok(About { version })
    })
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
