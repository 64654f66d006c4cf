//! The outer machine's initramfs: this binary, the KVM modules, and the kernel under test where it cannot come later.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, memfd_create};
use sha2::{Digest as _, Sha256};
use unwindlab_guest_kernel::qemu;

use crate::driver::image::cpio::Archive;
use crate::host::{closure, perf_tool};

/// Folder of the kernels under test, each named by its content hash.
pub const KERNELS: &str = "/kernels";
/// File that lists the modules to load, a path and its parameters a line, in order.
pub const MODULE_ORDER: &str = "/modules/order";
/// Folder of the QEMU that measurements are compared with.
pub const PEER: &str = "/peer";

/// What the initramfs contains.
#[derive(Debug)]
pub struct Contents {
    /// The program that becomes `/init`: this one.
    pub init: PathBuf,
    /// The modules that make /dev/kvm, in load order, uncompressed.
    pub modules: Vec<Module>,
    /// Content hash and ELF of each kernel under test.
    pub kernels: Vec<(String, PathBuf)>,
    /// The folder of the distribution's perf, where a scenario uses it.
    pub perf_tool: Option<PathBuf>,
    /// The folder of a QEMU to compare with, where something is measured.
    pub peer: Option<PathBuf>,
}

/// A module of the outer kernel.
#[derive(Debug)]
pub struct Module {
    /// Its file.
    pub path: PathBuf,
    /// Such as `name=value`, or nothing.
    pub parameters: &'static str,
}

/// An initramfs, packed when a machine first boots into it: one that goes on from a saved state never does.
#[derive(Debug)]
pub struct Initramfs {
    contents: Contents,
    packed: OnceLock<OwnedFd>,
}

impl Initramfs {
    /// Of these contents.
    #[must_use]
    pub const fn new(contents: Contents) -> Self {
        Self {
            contents,
            packed: OnceLock::new(),
        }
    }

    /// The initramfs as a memfd; QEMU reads it from the descriptor.
    ///
    /// # Errors
    /// When a file cannot be read, named in the error, or memory cannot be had.
    pub fn packed(&self) -> io::Result<BorrowedFd<'_>> {
        let packed = match self.packed.get() {
            Some(packed) => packed,
            None => {
                let packed = self.contents.pack()?;
                self.packed.get_or_init(|| packed)
            }
        };
        Ok(packed.as_fd())
    }

    /// Adds all that the initramfs is packed from. `digest` is that of a file.
    ///
    /// # Errors
    /// Those of `digest`, and of reading the folders.
    pub fn add_to(
        &self,
        hash: &mut Sha256,
        digest: &dyn Fn(&Path) -> io::Result<String>,
    ) -> io::Result<()> {
        let Contents {
            init,
            modules,
            kernels,
            perf_tool,
            peer,
        } = &self.contents;
        let mut parts = vec![digest(init)?];
        for module in modules {
            parts.extend([digest(&module.path)?, module.parameters.to_owned()]);
        }
        for (id, kernel) in kernels {
            parts.extend([id.clone(), digest(kernel)?]);
        }
        for part in &parts {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        if let Some(dir) = perf_tool {
            hash.update(perf_tool::archive(dir)?);
        }
        if let Some(dir) = peer {
            // Measurements start no machine from a state.
            hash.update(dir.as_os_str().as_encoded_bytes());
        }
        Ok(())
    }
}

impl Contents {
    fn pack(&self) -> io::Result<OwnedFd> {
        let mut archive = Archive::default()
            .standard_devices()?
            .file("init", &read(&self.init)?)?
            .directory("modules")?;
        let mut order = String::new();
        for (number, module) in self.modules.iter().enumerate() {
            let path = format!("modules/{number}.ko");
            archive = archive.file(&path, &read(&module.path)?)?;
            order.push_str(&format!("/{path} {}\n", module.parameters));
        }
        archive = archive
            .file(MODULE_ORDER.trim_start_matches('/'), order.as_bytes())?
            .directory(KERNELS.trim_start_matches('/'))?;
        for (id, kernel) in &self.kernels {
            let path = format!("{}/{id}", KERNELS.trim_start_matches('/'));
            archive = archive.file(&path, &read(kernel)?)?;
        }
        if let Some(dir) = &self.perf_tool {
            let file = perf_tool::FILE.trim_start_matches('/');
            archive = archive.file(file, &perf_tool::archive(dir)?)?;
        }
        if let Some(dir) = &self.peer {
            archive = closure::add(archive, PEER, dir, &[qemu::PROGRAM], &[qemu::FIRMWARE])?;
        }
        let memfd = memfd_create("unwindlab-initramfs", MemfdFlags::CLOEXEC)?;
        let mut file = fs::File::from(memfd);
        file.write_all(&archive.finish()?)?;
        Ok(file.into())
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}
