//! Debian's binutils with the libraries that they are linked with: the assembler writes SFrame
//! sections, the newest one of version 3.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::archive::{self, ArchiveError, Wanted};
use crate::cache::{Cache, Entry};
use crate::child;
use crate::debian::apt::Apt;
use crate::debian::closure;
use crate::progress::Progress;

const PACKAGE: &str = "binutils-x86-64-linux-gnu";
/// The programs' names begin with it.
const TARGET: &str = "x86_64-linux-gnu-";
/// What is kept.
const PROGRAMS: [&str; 3] = ["as", "ld.bfd", "readelf"];

/// A suite of the archive, by what its assembler writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// SFrame version 2 (binutils 2.44).
    Trixie,
    /// SFrame version 3 (binutils 2.46 and newer).
    Sid,
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Trixie => "binutils-trixie",
            Self::Sid => "binutils-sid",
        }
    }
}

/// Unpacked binutils.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binutils {
    dir: PathBuf,
    /// Such as `2.44-3`.
    pub version: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct About {
    version: String,
}

impl Binutils {
    /// The assembler.
    #[must_use]
    pub fn assembler(&self) -> Command {
        self.program("as")
    }

    /// The linker.
    #[must_use]
    pub fn linker(&self) -> Command {
        self.program("ld.bfd")
    }

    /// What prints sections.
    #[must_use]
    pub fn readelf(&self) -> Command {
        self.program("readelf")
    }

    /// Run by the libraries' own loader.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.dir.join(closure::LOADER));
        command
            .arg("--inhibit-cache")
            .arg("--library-path")
            .arg(self.dir.join(closure::LIBRARIES))
            .arg(self.dir.join(name));
        child::end_with_us(&mut command);
        command
    }
}

/// The binutils of a suite: those in the cache, else the archive's.
///
/// # Errors
/// [`ArchiveError`].
pub fn binutils(
    cache: &Cache,
    suite: Suite,
    progress: &dyn Progress,
) -> Result<Binutils, ArchiveError> {
    let fetch = |apt: &Apt| fetch(apt, cache, suite, progress);
    let entry = archive::noted_or_fetched(cache, suite.kind(), progress, fetch)?;
    Ok(Binutils {
        dir: entry.dir,
        version: entry.about.version,
    })
}

fn fetch(
    apt: &Apt,
    cache: &Cache,
    suite: Suite,
    progress: &dyn Progress,
) -> Result<Entry<About>, ArchiveError> {
    let suite_name = suite.name();
    progress.step(&format!(
        "downloading {PACKAGE} of Debian {suite_name} with its libraries"
    ));
    let wanted = Wanted {
        kind: suite.kind(),
        name: "binutils",
        packages: &[PACKAGE],
        suite: suite_name,
        place,
    };
    wanted.fetch((apt, cache), progress, |dir, debs| {
        closure::prune(dir, &PROGRAMS)?;
        let version = archive::version_of(PACKAGE, debs).unwrap_or_default();
        Ok(About { version })
    })
}

/// Where a file of a package goes.
fn place(path: &Path) -> Option<PathBuf> {
    let (folder, file) = (path.parent()?, path.file_name()?.to_str()?);
    let program = file.strip_prefix(TARGET);
    match program.filter(|name| PROGRAMS.contains(name)) {
        Some(name) if folder == Path::new("usr/bin") => Some(PathBuf::from(OsString::from(name))),
        _ => closure::place_library(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_and_libraries_are_kept() {
        let place = |path: &str| place(Path::new(path));
        assert_eq!(
            place("usr/bin/x86_64-linux-gnu-as"),
            Some(PathBuf::from("as"))
        );
        assert_eq!(place("usr/bin/x86_64-linux-gnu-gprofng"), None);
        assert_eq!(place("usr/lib/x86_64-linux-gnu/x86_64-linux-gnu-as"), None);
        assert!(place("usr/lib/x86_64-linux-gnu/libsframe.so.3").is_some());
    }
}
