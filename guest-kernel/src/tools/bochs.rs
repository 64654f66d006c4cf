//! Debian's Bochs, an emulator whose CPU has VMX, unpacked into the cache and run there with its own libraries.
//! Nothing is installed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::archive::{self, ArchiveError, Wanted};
use crate::cache::{Cache, Entry};
use crate::child;
use crate::confine::Allowed;
use crate::debian::apt::{Apt, STABLE};
use crate::debian::closure::{self, ClosureError};
use crate::progress::Progress;

/// The package with the display `term`; all else but the terminal's description follows from it.
const PACKAGE: &str = "bochs-term";
/// The package with the description of the terminal [`TERMINAL`].
const TERMINALS: &str = "ncurses-base";
const KIND: &str = "bochs";
/// What messages call it.
const NAME: &str = "Bochs";
/// The name of the emulator itself.
const PROGRAM: &str = "bochs-bin";
/// Folder of the devices and displays, which Bochs loads at its start.
const PLUGINS: &str = "plugins";
/// Folder of the BIOS and the VGA BIOS.
const FIRMWARE: &str = "firmware";
/// Folder of the terminal's description.
const TERMINFO: &str = "terminfo";
/// The terminal that Bochs writes its display to.
const TERMINAL: &str = "linux";
const BIOS: &str = "BIOS-bochs-latest";
const VGA_BIOS: &str = "vgabios.bin";

/// What a PC with a disk, a serial line and a display of text is made of. Bochs loads many of them unasked.
const PLUGIN_NAMES: &[&str] = &[
    "acpi",
    "biosdev",
    "cmos",
    "dma",
    "extfpuirq",
    "floppy",
    "gameport",
    "harddrv",
    "hpet",
    "ioapic",
    "iodebug",
    "keyboard",
    "parallel",
    "pci",
    "pci2isa",
    "pci_ide",
    "pic",
    "pit",
    "serial",
    "sounddummy",
    "speaker",
    "term_gui",
    "textconfig",
    "unmapped",
    "usb_uhci",
    "vga",
];

/// Bochs, unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bochs {
    dir: PathBuf,
    /// Such as `3.0+dfsg-1`.
    pub version: String,
    /// Which package it is and where it lies, for messages.
    pub origin: String,
}

impl Bochs {
    /// A command that runs this Bochs. The caller adds options, and gives it a terminal.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.dir.join(closure::LOADER));
        command
            .args(loader_args(&self.dir))
            .env_clear()
            .env("LTDL_LIBRARY_PATH", self.dir.join(PLUGINS))
            .env("BXSHARE", self.dir.join(FIRMWARE))
            .env("TERMINFO", self.dir.join(TERMINFO))
            .env("TERM", TERMINAL);
        command
    }

    /// The PC's BIOS.
    #[must_use]
    pub fn bios(&self) -> PathBuf {
        self.dir.join(FIRMWARE).join(BIOS)
    }

    /// The display's BIOS.
    #[must_use]
    pub fn vga_bios(&self) -> PathBuf {
        self.dir.join(FIRMWARE).join(VGA_BIOS)
    }

    /// The files that it has to read: itself, its libraries and its firmware.
    #[must_use]
    pub fn files(&self) -> Allowed {
        Allowed::system().and_read(&self.dir)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct About {
    version: String,
}

/// The Bochs in the cache, which is fetched if it is missing.
///
/// # Errors
/// [`ArchiveError`].
pub fn bochs(cache: &Cache, progress: &dyn Progress) -> Result<Bochs, ArchiveError> {
    let fetch = |apt: &Apt| fetch(apt, cache, progress);
    archive::noted_or_fetched(cache, KIND, progress, fetch).map(unpacked)
}

/// The Bochs in the cache, if there is one. Fetches nothing.
///
/// # Errors
/// [`ArchiveError`].
pub fn find(cache: &Cache) -> Result<Option<Bochs>, ArchiveError> {
    Ok(cache.noted(KIND)?.map(unpacked))
}

fn unpacked(entry: Entry<About>) -> Bochs {
    Bochs {
        origin: format!("of Debian {STABLE}, unpacked in {}", entry.dir.display()),
        dir: entry.dir,
        version: entry.about.version,
    }
}

/// The command line of Bochs' own dynamic loader: Bochs uses no library of the system.
fn loader_args(dir: &Path) -> Vec<OsString> {
    vec![
        "--inhibit-cache".into(),
        "--library-path".into(),
        dir.join(closure::LIBRARIES).into(),
        dir.join(PROGRAM).into(),
    ]
}

fn fetch(apt: &Apt, cache: &Cache, progress: &dyn Progress) -> Result<Entry<About>, ArchiveError> {
    progress.step(&format!(
        "downloading {PACKAGE} of Debian {STABLE} with its libraries"
    ));
    let wanted = Wanted {
        kind: KIND,
        name: NAME,
        packages: &[PACKAGE, TERMINALS],
        suite: STABLE,
        place,
    };
    wanted.fetch((apt, cache), progress, |dir, debs| {
        prune(dir)?;
        try_it(dir)?;
        let version = archive::version_of(PACKAGE, debs);
        let version = version.unwrap_or_else(|| "of unknown version".to_owned());
        Ok(About { version })
    })
}

/// Where a file of a package goes.
fn place(path: &Path) -> Option<PathBuf> {
    let (folder, name) = (path.parent()?.to_str()?, path.file_name()?.to_str()?);
    match folder {
        "usr/bin" if name == PROGRAM => Some(PathBuf::from(PROGRAM)),
        "usr/share/bochs" if name == BIOS => Some(Path::new(FIRMWARE).join(name)),
        "usr/share/vgabios" if name == VGA_BIOS => Some(Path::new(FIRMWARE).join(name)),
        "usr/lib/x86_64-linux-gnu/bochs/plugins" => {
            // The file, under the name that Bochs looks for; not the links to it.
            let plugin = name.strip_prefix("libbx_")?.strip_suffix(".so.0.0.0")?;
            let wanted = PLUGIN_NAMES.contains(&plugin);
            wanted.then(|| plugin_file(plugin))
        }
        // A library that only others of this folder need.
        "usr/lib/x86_64-linux-gnu/pulseaudio" if name.contains(".so") => {
            Some(Path::new(closure::LIBRARIES).join(name))
        }
        _ if is_terminal(path) => Some(Path::new(TERMINFO).join("l").join(TERMINAL)),
        _ => closure::place_library(path),
    }
}

fn plugin_file(plugin: &str) -> PathBuf {
    Path::new(PLUGINS).join(format!("libbx_{plugin}.so"))
}

/// Whether this is the terminal's description, in one of the folders where Debian has had it.
fn is_terminal(path: &Path) -> bool {
    let folders = ["usr/share/terminfo", "usr/lib/terminfo", "lib/terminfo"];
    folders
        .iter()
        .any(|folder| path == Path::new(folder).join("l").join(TERMINAL))
}

/// Removes the libraries that Bochs does not need, and checks that nothing else is missing.
fn prune(dir: &Path) -> Result<(), ClosureError> {
    let plugins: Vec<PathBuf> = PLUGIN_NAMES.iter().copied().map(plugin_file).collect();
    let others = [
        Path::new(FIRMWARE).join(BIOS),
        Path::new(FIRMWARE).join(VGA_BIOS),
        Path::new(TERMINFO).join("l").join(TERMINAL),
    ];
    for file in plugins.iter().chain(&others) {
        if !dir.join(file).exists() {
            return Err(ClosureError::Missing(file.display().to_string()));
        }
    }
    let plugins = plugins.iter().filter_map(|file| file.to_str());
    let programs: Vec<&str> = [PROGRAM].into_iter().chain(plugins).collect();
    closure::prune(dir, &programs)
}

/// Has it print its options, for which it has to load its libraries and find its plugins.
fn try_it(dir: &Path) -> Result<(), ArchiveError> {
    let bochs = Bochs {
        dir: dir.to_path_buf(),
        version: String::new(),
        origin: String::new(),
    };
    let mut command = bochs.command();
    command
        .arg("--help")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    child::end_with_us(&mut command);
    let output = command.output();
    let output = output.map_err(|error| ArchiveError::Broken(NAME, error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    match text.contains("Usage: bochs") || errors.contains("Usage: bochs") {
        true => Ok(()),
        false => {
            let why = errors
                .lines()
                .chain(text.lines())
                .find(|it| it.contains("PANIC"));
            let why = why.or(errors.lines().last()).unwrap_or("it says nothing");
            Err(ArchiveError::Broken(NAME, why.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn what_a_pc_needs_is_kept() {
        let place = |path: &str| place(Path::new(path));
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(place("usr/bin/bochs-bin"), at("bochs-bin"));
        assert_eq!(place("usr/bin/bochs"), None);
        let plugins = "usr/lib/x86_64-linux-gnu/bochs/plugins";
        assert_eq!(
            place(&format!("{plugins}/libbx_harddrv.so.0.0.0")),
            at("plugins/libbx_harddrv.so")
        );
        assert_eq!(place(&format!("{plugins}/libbx_harddrv.so")), None);
        assert_eq!(place(&format!("{plugins}/libbx_e1000.so.0.0.0")), None);
        assert_eq!(
            place("usr/share/bochs/BIOS-bochs-latest"),
            at("firmware/BIOS-bochs-latest")
        );
        assert_eq!(
            place("usr/share/vgabios/vgabios.bin"),
            at("firmware/vgabios.bin")
        );
        assert_eq!(place("lib/terminfo/l/linux"), at("terminfo/l/linux"));
        assert_eq!(place("usr/share/terminfo/x/xterm"), None);
        assert_eq!(
            place("usr/lib/x86_64-linux-gnu/pulseaudio/libpulsecommon-17.0.so"),
            at("lib/libpulsecommon-17.0.so")
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = prune(folder.path()).unwrap_err();
        assert_eq!(error.to_string(), "plugins/libbx_acpi.so is missing");
    }

    #[test]
    fn nothing_of_the_environment_reaches_it() {
        let bochs = Bochs {
            dir: PathBuf::from("/b"),
            version: String::new(),
            origin: String::new(),
        };
        let command = bochs.command();
        let names: Vec<_> = command.get_envs().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            ["BXSHARE", "LTDL_LIBRARY_PATH", "TERM", "TERMINFO"].map(OsStr::new)
        );
    }
}
