//! The QEMU that emulates the KVM host: the system's, if it is new enough, else Debian's, unpacked
//! into the cache and run there with its own libraries. Nothing is installed.

mod files;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::archive::{self, ArchiveError, Wanted};
use crate::cache::{Cache, Entry};
use crate::child;
use crate::confine::Allowed;
use crate::debian::apt::{Apt, STABLE};
use crate::progress::Progress;

/// Names the QEMU to use: a path, or a name that is searched in `PATH`.
pub const QEMU_VARIABLE: &str = "UNWINDLAB_QEMU";

/// Oldest version that computes correctly: in 7.2, TCG corrupts EFLAGS in about one of eight kernel
/// boots; 10.0 booted 12 of 12. The versions in between were not measured.
pub const OLDEST: (u32, u32) = (10, 0);

/// The program's name.
pub const PROGRAM: &str = files::PROGRAM;
/// The folder of the firmware, beside it.
pub const FIRMWARE: &str = files::FIRMWARE;
const PACKAGE: &str = "qemu-system-x86";
const KIND: &str = "qemu";
/// What messages call it.
const NAME: &str = "QEMU";

/// QEMU's own seccomp filter: it starts no process, gets no privileges, and does not change its scheduling
/// (qemu(1), `-sandbox`). A guest that breaks out of it is left with that.
const SANDBOX: [&str; 2] = [
    "-sandbox",
    "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
];

/// A QEMU for x86-64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qemu {
    /// What to execute.
    pub program: PathBuf,
    /// The first arguments, before the caller's options.
    pub args: Vec<OsString>,
    /// The folder of its firmware, if QEMU does not find it by itself. `args` has it, as `-L`.
    pub firmware: Option<PathBuf>,
    /// Such as `10.0.13`.
    pub version: String,
    /// Which QEMU it is and where it lies, for messages.
    pub origin: String,
    /// Whether it confines itself. One that was built without libseccomp cannot.
    pub is_confined: bool,
}

impl Qemu {
    /// A command that runs this QEMU, confined if it can be. The caller adds options.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        if self.is_confined {
            command.args(SANDBOX);
        }
        command
    }

    /// The files that it has to read: itself, its libraries and its firmware. One that is not the distribution's
    /// may have the firmware in its own folder, or where an installation has it.
    #[must_use]
    pub fn files(&self) -> Allowed {
        let folder = self.program.parent().unwrap_or(Path::new("/usr/bin"));
        let own = match &self.firmware {
            Some(firmware) => firmware.parent().unwrap_or(folder).to_path_buf(),
            None => folder.to_path_buf(),
        };
        let system = Allowed::system().and_read(&own);
        let beside = ["../pc-bios", "../share/qemu", "../lib"].map(|it| folder.join(it));
        beside.iter().fold(system, |all, it| all.and_read(it))
    }
}

/// Why there is no QEMU.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum QemuError {
    /// The QEMU in `UNWINDLAB_QEMU` cannot be used.
    #[error("{QEMU_VARIABLE}: {program} {source}")]
    Chosen { program: String, source: Unusable },
    /// Debian's cannot be fetched or run.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

/// Why a QEMU is not used: what follows its name in a message.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// No such program.
    #[error("is not there")]
    Missing,
    /// Older than [`OLDEST`].
    #[error(
        "is version {0}, but {major}.{minor} is needed: older ones miscompute processor flags",
        major = OLDEST.0,
        minor = OLDEST.1
    )]
    TooOld(String),
    /// It does not start.
    #[error("cannot be run: {0}")]
    Run(#[from] io::Error),
    /// It starts, and is not a QEMU, or a broken one.
    #[error("does not tell its version: {0}")]
    NoVersion(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct About {
    version: String,
    package: String,
}

/// The QEMU to use: `UNWINDLAB_QEMU`, else the system's if it is at least [`OLDEST`], else one in
/// the cache, which is fetched if it is missing.
pub fn qemu(cache: &Cache, progress: &dyn Progress) -> Result<Qemu, QemuError> {
    match installed()? {
        Some(found) => Ok(found),
        None => Ok(unpacked(entry(cache, progress)?)),
    }
}

/// The folder of Debian's QEMU in the cache, even if another one is installed. It contains
/// [`PROGRAM`], its libraries and their loader (see [`crate::debian::closure`]), and [`FIRMWARE`].
pub fn debian(cache: &Cache, progress: &dyn Progress) -> Result<PathBuf, QemuError> {
    Ok(entry(cache, progress)?.dir)
}

fn entry(cache: &Cache, progress: &dyn Progress) -> Result<Entry<About>, QemuError> {
    let fetch = |apt: &Apt| fetch(apt, cache, progress);
    Ok(archive::noted_or_fetched(cache, KIND, progress, fetch)?)
}

/// The QEMU that [`qemu`] would return without fetching anything.
pub fn find(cache: &Cache) -> Result<Option<Qemu>, QemuError> {
    match installed()? {
        Some(found) => Ok(Some(found)),
        None => known(cache),
    }
}

/// The QEMU that the user names, else the system's if it is new enough.
fn installed() -> Result<Option<Qemu>, QemuError> {
    if let Some(chosen) = env::var_os(QEMU_VARIABLE).filter(|chosen| !chosen.is_empty()) {
        let found = system(&chosen).map_err(|source| QemuError::Chosen {
            program: chosen.to_string_lossy().into_owned(),
            source,
        })?;
        return Ok(Some(found));
    }
    Ok(system(OsStr::new(PROGRAM)).ok())
}

/// An installed QEMU.
fn system(program: &OsStr) -> Result<Qemu, Unusable> {
    let path = in_path(program).ok_or(Unusable::Missing)?;
    let told = version(&mut Command::new(&path))?;
    if numbers(&told) < Some(OLDEST) {
        return Err(Unusable::TooOld(told));
    }
    let is_confined = version(Command::new(&path).args(SANDBOX)).is_ok();
    if !is_confined {
        tracing::warn!("{} has no -sandbox: it runs unconfined", path.display());
    }
    Ok(Qemu {
        origin: format!("the system's {}", path.display()),
        program: path,
        is_confined,
        args: Vec::new(),
        firmware: None,
        version: told,
    })
}

fn in_path(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// What `--version` says: `QEMU emulator version 10.0.13 (Debian ...)`.
fn version(command: &mut Command) -> Result<String, Unusable> {
    command
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    child::end_with_us(command);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse_version(&text).map(str::to_owned).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        let why = errors.lines().last().unwrap_or("no version");
        Unusable::NoVersion(why.to_owned())
    })
}

fn parse_version(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("QEMU emulator version ")?;
    rest.split_ascii_whitespace().next()
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse::<u32>);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn known(cache: &Cache) -> Result<Option<Qemu>, QemuError> {
    Ok(cache.noted(KIND).map_err(ArchiveError::from)?.map(unpacked))
}

fn unpacked(entry: Entry<About>) -> Qemu {
    let firmware = entry.dir.join(files::FIRMWARE);
    let mut args = loader_args(&entry.dir);
    args.push("-L".into());
    args.push(firmware.clone().into());
    Qemu {
        // `fetch` has tried it so.
        is_confined: true,
        program: entry.dir.join(files::LOADER),
        args,
        firmware: Some(firmware),
        version: entry.about.version,
        origin: format!(
            "{}, unpacked in {}",
            entry.about.package,
            entry.dir.display()
        ),
    }
}

/// The command line of QEMU's own dynamic loader: QEMU uses no library of the system, and other
/// programs use none of QEMU's.
fn loader_args(dir: &Path) -> Vec<OsString> {
    vec![
        "--inhibit-cache".into(),
        "--library-path".into(),
        dir.join(files::LIBRARIES).into(),
        dir.join(files::PROGRAM).into(),
    ]
}

fn fetch(apt: &Apt, cache: &Cache, progress: &dyn Progress) -> Result<Entry<About>, ArchiveError> {
    progress.step(&format!(
        "downloading {PACKAGE} of Debian {STABLE} with its libraries (this system has no \
         QEMU {}.{} or later)",
        OLDEST.0, OLDEST.1
    ));
    let wanted = Wanted {
        kind: KIND,
        name: NAME,
        packages: &[PACKAGE],
        suite: STABLE,
        place: files::place,
    };
    wanted.fetch((apt, cache), progress, |dir, debs| {
        files::prune(dir)?;
        let mut command = Command::new(dir.join(files::LOADER));
        command.args(loader_args(dir)).args(SANDBOX);
        let package = match archive::version_of(PACKAGE, debs) {
            Some(version) => format!("{PACKAGE} {version} of {STABLE}"),
            None => format!("{PACKAGE} of {STABLE}"),
        };
        let version = version(&mut command)
            .map_err(|error| ArchiveError::Broken(NAME, format!("it {error}")))?;
        Ok(About { version, package })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions() {
        let text = "QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)\nCopyright";
        assert_eq!(parse_version(text), Some("10.0.13"));
        assert_eq!(parse_version("something else 10.0"), None);
        assert!(numbers("10.0.13") >= Some(OLDEST));
        assert!(numbers("11.1") >= Some(OLDEST));
        assert!(numbers("7.2.19") < Some(OLDEST));
        assert!(numbers("ten") < Some(OLDEST));
    }

    #[test]
    fn is_confined_where_it_can_be() {
        let mut qemu = Qemu {
            program: "qemu".into(),
            args: vec!["-L".into()],
            firmware: None,
            version: String::new(),
            origin: String::new(),
            is_confined: true,
        };
        let args = |qemu: &Qemu| -> Vec<_> {
            let command = qemu.command();
            command.get_args().map(OsStr::to_owned).collect()
        };
        assert_eq!(args(&qemu)[..2], ["-L", "-sandbox"]);
        qemu.is_confined = false;
        assert_eq!(args(&qemu), ["-L"]);
    }

    #[test]
    fn says_why_a_program_will_not_do() {
        let error = system(OsStr::new("/no/such/qemu")).unwrap_err();
        assert_eq!(error.to_string(), "is not there");
        let error = system(OsStr::new("true")).unwrap_err().to_string();
        assert!(error.starts_with("does not tell its version"), "{error}");
    }
}
