//! What of QEMU's packages and of all they depend on is kept: the program, the dynamic loader,
//! the libraries that are linked, and the firmware to start a kernel on a PC without a display.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use object::read::elf::ElfFile64;

use crate::cache::{At, CacheError};

/// Folder of the libraries, below that of the unpacked QEMU.
pub(super) const LIBRARIES: &str = "lib";
/// The dynamic loader of these libraries.
pub(super) const LOADER: &str = "lib/ld-linux-x86-64.so.2";
/// QEMU itself.
pub(super) const PROGRAM: &str = "qemu-system-x86_64";
/// Folder of the firmware.
pub(super) const FIRMWARE: &str = "firmware";

/// The BIOS, and the option ROMs with which QEMU starts a kernel without a boot disk.
const FIRMWARE_FILES: &[&str] = &[
    "bios-256k.bin",
    "bios-microvm.bin",
    "kvmvapic.bin",
    "linuxboot.bin",
    "linuxboot_dma.bin",
    "multiboot.bin",
    "multiboot_dma.bin",
    "pvh.bin",
    "qboot.rom",
];

/// Loaded at run time, not linked: glibc needs it to end threads.
const LOADED_LATE: &str = "libgcc_s.so.1";

/// Why the unpacked QEMU is not complete.
#[derive(Debug, thiserror::Error)]
pub enum ClosureError {
    /// No package had a library.
    #[error("{0} is missing")]
    Missing(String),
    /// Not a program or library.
    #[error("{file} is damaged: {source}")]
    Damaged {
        /// Which file.
        file: String,
        /// What is wrong.
        source: object::Error,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Where a file of a package goes.
pub(super) fn place(path: &Path) -> Option<PathBuf> {
    let (folder, name) = (path.parent()?.to_str()?, path.file_name()?.to_str()?);
    match folder {
        "usr/bin" if name == PROGRAM => Some(PathBuf::from(PROGRAM)),
        "usr/lib/x86_64-linux-gnu" | "lib/x86_64-linux-gnu" if name.contains(".so") => {
            Some(Path::new(LIBRARIES).join(name))
        }
        "usr/share/qemu" | "usr/share/seabios" if FIRMWARE_FILES.contains(&name) => {
            Some(Path::new(FIRMWARE).join(name))
        }
        _ => None,
    }
}

/// Removes the libraries that are not linked into the program, and checks that the rest is there.
pub(super) fn prune(dir: &Path) -> Result<(), ClosureError> {
    let folder = dir.join(LIBRARIES);
    let loader = Path::new(LOADER).file_name().unwrap_or_default();
    let mut kept = BTreeSet::from([loader.to_string_lossy().into_owned()]);
    let mut open = needed(&dir.join(PROGRAM))?;
    open.push(LOADED_LATE.to_owned());
    while let Some(library) = open.pop() {
        let path = folder.join(&library);
        if !kept.insert(library) {
            continue;
        }
        open.extend(needed(&path)?);
        // A link and what it points to.
        if let Ok(target) = fs::read_link(&path) {
            open.push(target.to_string_lossy().into_owned());
        }
    }
    for file in FIRMWARE_FILES {
        let path = dir.join(FIRMWARE).join(file);
        if !path.exists() {
            return Err(ClosureError::Missing((*file).to_owned()));
        }
    }
    for item in fs::read_dir(&folder).at(&folder)? {
        let item = item.at(&folder)?;
        if !kept.contains(item.file_name().to_string_lossy().as_ref()) {
            let path = item.path();
            fs::remove_file(&path).at(&path)?;
        }
    }
    Ok(())
}

/// The libraries that a program or library is linked with (`DT_NEEDED`).
fn needed(path: &Path) -> Result<Vec<String>, ClosureError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = match fs::read(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(ClosureError::Missing(name.into_owned()));
        }
        Err(error) => return Err(CacheError::new(path, error).into()),
    };
    needed_by(&file).map_err(|source| ClosureError::Damaged {
        file: name.into_owned(),
        source,
    })
}

fn needed_by(file: &[u8]) -> object::Result<Vec<String>> {
    let elf = ElfFile64::<object::Endianness>::parse(file)?;
    let table = elf.elf_dynamic_table()?;
    table
        .iter()
        .filter(|entry| entry.tag == object::elf::DT_NEEDED)
        .map(|entry| Ok(String::from_utf8_lossy(table.string(entry)?).into_owned()))
        .collect()
}
