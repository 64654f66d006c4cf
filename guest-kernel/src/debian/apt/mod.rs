//! A private apt: Debian's packages, verified by apt, without a change to the system.
//!
//! The private apt has its own lists, caches and (empty) dpkg status in the cache folder, and runs
//! without root. It takes the mirror, the archive's keys, and settings such as proxies from the
//! system. Because the status is empty, apt lists all dependencies of a package, down to libc.

mod helper;
mod run;
mod sources;

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::cache::{At, Cache, CacheError, Lock};
use crate::debian::version::Version;
use crate::progress::Progress;

pub(crate) use helper::fetch_file;
use run::run;
pub use sources::MIRROR_VARIABLE;
use sources::{Mirror, TARGET_FORMAT};

/// The suite of the outer kernel and of QEMU.
pub(crate) const STABLE: &str = "trixie";

/// The suites to search. Those that the mirror lacks are left out, except for [`STABLE`].
const SUITES: &[&str] = &[STABLE, "trixie-backports", "forky", "sid", "experimental"];

/// Lists older than this are fetched again before use.
const LISTS_GOOD_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// Read after the system's own configuration. It resets what concerns the system's packages: hooks,
/// pins, further index files. Signatures and hashes are checked, even where the system does not (apt.conf(5), apt-secure(8)).
///
/// `APT::Sandbox::User`: apt run by root would fetch as another user, who cannot enter a cache folder
/// in root's home. For other users the option has no effect.
const CONFIG: &str = r#"
#clear APT::Update;
#clear DPkg;
#clear APT::Default-Release;
#clear APT::Architectures;
#clear Acquire::IndexTargets::deb;
Acquire::IndexTargets::deb::Packages {
  MetaKey "$(COMPONENT)/binary-$(ARCHITECTURE)/Packages";
  ShortDescription "Packages";
  Description "$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Packages";
  Optional "0";
};
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Get::Assume-Yes "true";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Check-Valid-Until "true";
APT::Status-Fd "1";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::PDiffs "false";
Dir::State::lists "lists/";
Dir::Cache::archives "archives/";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "";
Dir::Etc::SourceList "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
"#;

/// Why a package cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum AptError {
    /// No apt on this system.
    #[error("apt-get is missing: a stock kernel needs a Debian system; give --kernel path:FILE")]
    Missing,
    /// The system's apt knows no Debian archive.
    #[error(
        "this system's apt has no source for Debian's main archive: \
         set {MIRROR_VARIABLE} to the URI of a mirror"
    )]
    NoArchive,
    /// `UNWINDLAB_MIRROR` does not contain a URI.
    #[error("{MIRROR_VARIABLE} is not the URI of a mirror: {0:?}")]
    BadMirror(String),
    /// The mirror cannot be reached.
    #[error("cannot reach the Debian mirror: check the network, or set {MIRROR_VARIABLE}: {0}")]
    Network(String),
    /// The system does not trust the archive's signature.
    #[error("apt does not trust the Debian mirror: update debian-archive-keyring: {0}")]
    Signature(String),
    /// A file is not what the signed lists say.
    #[error(
        "a download is not what Debian's lists say: try again, or set {MIRROR_VARIABLE} to another mirror: {0}"
    )]
    Hash(String),
    /// No such package, or no longer: superseded versions are removed from the archive.
    #[error("the archive has no such package (any more): {0}")]
    Gone(String),
    /// Not a mirror of Debian, or an incomplete one.
    #[error("the mirror has no Debian {STABLE}: set {MIRROR_VARIABLE} to another: {0}")]
    NoSuite(String),
    /// apt failed in another way.
    #[error("{command} failed: {message}")]
    Failed { command: String, message: String },
    /// apt could not be run or read.
    #[error("cannot run {command}: {source}")]
    Run { command: String, source: io::Error },
    /// The cache folder cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// A package that a suite offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub name: String,
    pub version: Version,
    pub suite: String,
}

/// The private apt root. Other processes wait until it is dropped.
#[derive(Debug)]
pub(crate) struct Apt {
    root: PathBuf,
    mirror: Mirror,
    fresh: Cell<bool>,
    _lock: Lock,
}

impl Apt {
    /// Sets up the root, and fetches the lists unless they are less than a day old.
    pub fn open(cache: &Cache, progress: &dyn Progress) -> Result<Self, AptError> {
        let lock = cache.lock("apt", progress)?;
        let root = cache.root().join("apt");
        for folder in ["sources", "state/lists/partial", "cache/archives/partial"] {
            let path = root.join(folder);
            fs::create_dir_all(&path).at(&path)?;
        }
        let targets = run(
            Command::new("apt-get")
                .args(["indextargets", "--no-release-info", "--format"])
                .arg(TARGET_FORMAT),
            &root,
            None,
        )?;
        let apt = Self {
            mirror: Mirror::choose(&targets)?,
            root,
            fresh: Cell::new(false),
            _lock: lock,
        };
        apt.write("apt.conf", CONFIG)?;
        apt.write("status", "")?;
        if !apt.lists_are_good()? {
            apt.refresh(progress)?;
        }
        Ok(apt)
    }

    /// Fetches the lists of all suites.
    pub fn refresh(&self, progress: &dyn Progress) -> Result<(), AptError> {
        progress.step("fetching Debian's package lists");
        let stamp = self.root.join("lists-of");
        match fs::remove_file(&stamp) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(CacheError::new(&stamp, error).into());
            }
            _ => {}
        }
        let mut suites = SUITES.to_vec();
        loop {
            self.write("sources/debian.sources", &self.mirror.source(&suites))?;
            let update = run(self.apt_get().arg("update"), &self.root, Some(progress));
            match update {
                Ok(_) => break,
                Err(AptError::Failed { message, .. })
                    if message.contains("does not have a Release file") =>
                {
                    let missing = suites.iter().position(|suite| {
                        *suite != STABLE && message.contains(&format!(" {suite} Release'"))
                    });
                    let Some(missing) = missing else {
                        return Err(AptError::NoSuite(message));
                    };
                    let suite = suites.remove(missing);
                    progress.step(&format!("the mirror has no {suite}: continuing without it"));
                }
                Err(error) => return Err(error),
            }
        }
        self.write("lists-of", &self.mirror.source(&[]))?;
        self.fresh.set(true);
        Ok(())
    }

    /// Calls `fetch`, and once more with new lists if the error can come from old ones: a version
    /// in them may have left the archive, and the requested one may be newer.
    pub(crate) fn with_new_lists_if<T, E: From<AptError>>(
        &self,
        stale: impl FnOnce(&E) -> bool,
        progress: &dyn Progress,
        fetch: impl Fn() -> Result<T, E>,
    ) -> Result<T, E> {
        match fetch() {
            Err(error) if stale(&error) && !self.is_fresh() => {
                self.refresh(progress)?;
                fetch()
            }
            result => result,
        }
    }

    /// Whether the lists were fetched since [`Apt::open`]. Fetching them again would not help.
    pub fn is_fresh(&self) -> bool {
        self.fresh.get()
    }

    /// The packages in all suites whose name is `wanted`.
    pub fn offers(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<Offer>, AptError> {
        let names = run(
            self.apt_cache().args(["pkgnames", "linux-"]),
            &self.root,
            None,
        )?;
        let names: Vec<&str> = names.lines().filter(|name| wanted(name)).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let table = run(
            self.apt_cache().arg("madison").args(names),
            &self.root,
            None,
        )?;
        Ok(table.lines().filter_map(offer).collect())
    }

    /// Downloads these packages into the empty folder `into`.
    pub fn download(
        &self,
        packages: &[&Offer],
        into: &Path,
        progress: &dyn Progress,
    ) -> Result<Vec<PathBuf>, AptError> {
        let packages = packages
            .iter()
            .map(|offer| format!("{}={}", offer.name, offer.version));
        run(
            self.apt_get()
                .current_dir(into)
                .arg("download")
                .args(packages),
            &self.root,
            Some(progress),
        )?;
        debs(into)
    }

    /// Downloads packages (`NAME` or `NAME=VERSION`) of a suite and all their dependencies into the
    /// folder `into`.
    pub fn download_closure(
        &self,
        packages: &[&str],
        suite: &str,
        into: &Path,
        progress: &dyn Progress,
    ) -> Result<Vec<PathBuf>, AptError> {
        let partial = into.join("partial");
        fs::create_dir_all(&partial).at(&partial)?;
        let mut archives = OsString::from("Dir::Cache::archives=");
        archives.push(into);
        run(
            self.apt_get()
                .arg("-o")
                .arg(archives)
                .args(["-t", suite, "--download-only", "--no-install-recommends"])
                .arg("install")
                .args(packages),
            &self.root,
            Some(progress),
        )?;
        debs(into)
    }

    /// Downloads the newest source package `name` that is wanted and that the archive still has, into the empty
    /// folder `into`: the files that its `.dsc` names, verified by apt. The lists of sources are fetched for it.
    pub fn download_source(
        &self,
        name: &str,
        wanted: impl Fn(&Version) -> bool,
        into: &Path,
        progress: &dyn Progress,
    ) -> Result<(Version, Vec<PathBuf>), AptError> {
        progress.step("fetching Debian's lists of sources");
        let list = "sources/debian-src.sources";
        self.write(list, &self.mirror.sources_of(SUITES))?;
        let fetched = self.newest_source(name, wanted, into, progress);
        // Nobody else needs these lists, which every update would fetch.
        let path = self.root.join(list);
        fs::remove_file(&path).at(&path)?;
        fetched
    }

    fn newest_source(
        &self,
        name: &str,
        wanted: impl Fn(&Version) -> bool,
        into: &Path,
        progress: &dyn Progress,
    ) -> Result<(Version, Vec<PathBuf>), AptError> {
        run(self.apt_get().arg("update"), &self.root, Some(progress))?;
        let mut show = self.apt_cache();
        show.args(["showsrc", "--only-source", name]);
        let known = run(&mut show, &self.root, None)?;
        let lines = known
            .lines()
            .filter_map(|line| line.strip_prefix("Version: "));
        let mut versions: Vec<Version> = lines.map(Version::new).filter(wanted).collect();
        versions.sort();
        versions.dedup();
        // The pool may lack what the lists still have.
        let mut gone = AptError::Gone(format!("the source of {name}"));
        for version in versions.into_iter().rev() {
            progress.step(&format!("downloading the source of {name} {version}"));
            let mut fetch = self.apt_get();
            fetch.current_dir(into).args(["source", "--download-only"]);
            fetch.arg(format!("{name}={version}"));
            match run(&mut fetch, &self.root, Some(progress)) {
                Ok(_) => return Ok((version, files(into, "xz")?)),
                Err(error @ AptError::Gone(_)) => gone = error,
                Err(error) => return Err(error),
            }
        }
        Err(gone)
    }

    fn apt_get(&self) -> Command {
        let mut command = self.program("apt-get");
        command.arg("-q");
        command
    }

    fn apt_cache(&self) -> Command {
        self.program("apt-cache")
    }

    /// A program of apt, on this root. The folders are options, because strings in the
    /// configuration file cannot be quoted.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.arg("-c").arg(self.root.join("apt.conf"));
        for (option, folder) in [
            ("Dir::State=", "state/"),
            ("Dir::State::status=", "status"),
            ("Dir::Cache=", "cache/"),
            ("Dir::Etc::SourceParts=", "sources/"),
            ("Dir::Log=", "log/"),
        ] {
            let mut setting = OsString::from(option);
            setting.push(self.root.join(folder));
            command.arg("-o").arg(setting);
        }
        command
    }

    fn write(&self, name: &str, text: &str) -> Result<(), AptError> {
        let path = self.root.join(name);
        Ok(fs::write(&path, text).at(&path)?)
    }

    /// Whether the last refresh succeeded, is recent, and used this mirror.
    fn lists_are_good(&self) -> Result<bool, AptError> {
        let stamp = self.root.join("lists-of");
        let of = match fs::read_to_string(&stamp) {
            Ok(of) => of,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(CacheError::new(&stamp, error).into()),
        };
        let made = fs::metadata(&stamp)
            .and_then(|stamp| stamp.modified())
            .at(&stamp)?;
        let age = SystemTime::now()
            .duration_since(made)
            .unwrap_or(Duration::MAX);
        Ok(of == self.mirror.source(&[]) && age < LISTS_GOOD_FOR)
    }
}

/// One line of `apt-cache madison`: `NAME | VERSION | URI SUITE/COMPONENT ARCH Packages`.
fn offer(line: &str) -> Option<Offer> {
    let mut fields = line.split('|').map(str::trim);
    let (name, version, source) = (fields.next()?, fields.next()?, fields.next()?);
    let suite = source.split_ascii_whitespace().nth(1)?.split('/').next()?;
    Some(Offer {
        name: name.to_owned(),
        version: Version::new(version),
        suite: suite.to_owned(),
    })
}

/// The .deb files in a folder.
fn debs(folder: &Path) -> Result<Vec<PathBuf>, AptError> {
    files(folder, "deb")
}

/// The files with an extension in a folder, by name.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, AptError> {
    let mut found = Vec::new();
    for item in fs::read_dir(folder).at(folder)? {
        let path = item.at(folder)?.path();
        if path.extension() == Some(OsStr::new(extension)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests;
