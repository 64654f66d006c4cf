//! Files that are complete or absent. A process that is killed leaves nothing beside them.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
use rustix::io::Errno;

/// The folder that a file is in.
#[must_use]
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A file without a name, with the permissions that a plain `open` would give; or with a name of its own, on
/// a file system that knows none without (`O_TMPFILE`, open(2)).
#[derive(Debug)]
pub enum Unnamed {
    /// One without a name.
    File(File),
    /// One with a name of its own.
    Named(tempfile::NamedTempFile),
}

impl Unnamed {
    /// In the folder of `path`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn beside(path: &Path) -> io::Result<Self> {
        let folder = folder(path);
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match openat(CWD, folder, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => Ok(Self::File(file.into())),
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => Ok(Self::Named(
                tempfile::Builder::new()
                    .prefix(".unwindlab-")
                    .permissions(Permissions::from_mode(0o666))
                    .tempfile_in(folder)?,
            )),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Adds this to it.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&mut self, contents: &[u8]) -> io::Result<()> {
        let file = match self {
            Self::File(file) => file,
            Self::Named(file) => file.as_file_mut(),
        };
        file.write_all(contents)?;
        file.sync_data()
    }

    /// Gives it the name `path`, in place of what has it. A name that is free comes first, because linkat(2)
    /// replaces nothing: who is killed between the two leaves a complete file, which the next one
    /// removes.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn replace(self, path: &Path) -> io::Result<File> {
        let file = match self {
            Self::File(file) => file,
            Self::Named(file) => {
                return file.persist(path).map_err(|failed| failed.error);
            }
        };
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(".unwindlab");
        let first = folder(path).join(name);
        match fs::remove_file(&first) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, opened, CWD, &first, AtFlags::SYMLINK_FOLLOW)?;
        fs::rename(&first, path)?;
        Ok(file)
    }
}
