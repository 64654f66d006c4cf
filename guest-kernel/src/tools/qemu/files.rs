//! Which files of QEMU's packages and their dependencies are kept: the program, its libraries, and
//! the firmware that starts a kernel on a PC without a display.

use std::path::{Path, PathBuf};

use crate::debian::closure::{self, ClosureError};

pub(super) use crate::debian::closure::{LIBRARIES, LOADER};
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

/// Where a file of a package goes.
pub(super) fn place(path: &Path) -> Option<PathBuf> {
    let (folder, name) = (path.parent()?.to_str()?, path.file_name()?.to_str()?);
    match folder {
        "usr/bin" if name == PROGRAM => Some(PathBuf::from(PROGRAM)),
        "usr/share/qemu" | "usr/share/seabios" if FIRMWARE_FILES.contains(&name) => {
            Some(Path::new(FIRMWARE).join(name))
        }
        _ => closure::place_library(path),
    }
}

/// Removes the libraries that the program does not need, and checks that nothing else is missing.
pub(super) fn prune(dir: &Path) -> Result<(), ClosureError> {
    closure::prune(dir, &[PROGRAM])?;
    let missing = FIRMWARE_FILES
        .iter()
        .find(|file| !dir.join(FIRMWARE).join(file).exists());
    match missing {
        Some(file) => Err(ClosureError::Missing((*file).to_owned())),
        None => Ok(()),
    }
}
