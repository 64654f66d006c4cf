//! The outer machine's initramfs: this binary, the KVM modules, and the kernel under test where it cannot come later.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use sha2::{Digest as _, Sha256};
use unwindlab_guest_kernel::qemu;

use crate::driver::image::cpio::Archive;
use crate::host::{closure, perf_tool};

/// Folder of the kernels under test, each named by its content hash.
pub const KERNELS: &str = "/kernels";
/// File that lists the modules to load, a path a line, in order.
pub const MODULE_ORDER: &str = "/modules/order";
/// Folder of the QEMU that measurements are compared with.
pub const PEER: &str = "/peer";

/// What the initramfs contains.
#[derive(Debug)]
pub struct Contents<'a> {
    /// The program that becomes `/init`: this one.
    pub init: &'a Path,
    /// The modules that make /dev/kvm, in load order, uncompressed.
    pub modules: &'a [PathBuf],
    /// Content hash and ELF of each kernel under test.
    pub kernels: &'a [(&'a str, &'a Path)],
    /// The folder of the distribution's perf, where a scenario uses it.
    pub perf_tool: Option<&'a Path>,
    /// The folder of a QEMU to compare with, where something is measured.
    pub peer: Option<&'a Path>,
}

/// An initramfs in memory; QEMU reads it from the descriptor.
#[derive(Debug)]
pub struct Initramfs {
    /// A memfd.
    pub file: OwnedFd,
    /// SHA-256 of what is in it.
    pub sha256: [u8; 32],
}

/// Builds it.
///
/// # Errors
/// When a file cannot be read, named in the error, or memory cannot be had.
pub fn build(contents: &Contents<'_>) -> io::Result<Initramfs> {
    let mut archive = Archive::default()
        .standard_devices()?
        .file("init", &read(contents.init)?)?
        .directory("modules")?;
    let mut order = String::new();
    for (number, module) in contents.modules.iter().enumerate() {
        let path = format!("modules/{number}.ko");
        archive = archive.file(&path, &read(module)?)?;
        order.push_str(&format!("/{path}\n"));
    }
    archive = archive
        .file(MODULE_ORDER.trim_start_matches('/'), order.as_bytes())?
        .directory(KERNELS.trim_start_matches('/'))?;
    for (id, kernel) in contents.kernels {
        let path = format!("{}/{id}", KERNELS.trim_start_matches('/'));
        archive = archive.file(&path, &read(kernel)?)?;
    }
    if let Some(dir) = contents.perf_tool {
        let file = perf_tool::FILE.trim_start_matches('/');
        archive = archive.file(file, &perf_tool::archive(dir)?)?;
    }
    if let Some(dir) = contents.peer {
        archive = closure::add(archive, PEER, dir, &[qemu::PROGRAM], &[qemu::FIRMWARE])?;
    }
    let memfd = memfd_create("unwindlab-initramfs", MemfdFlags::CLOEXEC)?;
    let mut file = fs::File::from(memfd);
    let archive = archive.finish()?;
    file.write_all(&archive)?;
    Ok(Initramfs {
        file: file.into(),
        sha256: Sha256::digest(&archive).into(),
    })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}
