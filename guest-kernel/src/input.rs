//! Files that the user names, and those that a stranger's program may have made: read only if they are regular files of a
//! reasonable size. A FIFO would be waited for, a device has no end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// Most bytes of what a person writes: scenarios, configurations.
pub const WRITTEN: u64 = 4 << 20;
/// Most bytes of patches, series, and what unwindlab wrote itself: replay and resume files.
pub const RECORDED: u64 = 256 << 20;
/// Most bytes of a kernel image; one with DWARF has several hundred megabytes.
pub const IMAGE: u64 = 4 << 30;

/// Opens a regular file of at most `most` bytes. Never waits.
///
/// # Errors
/// Those of the file system, and what is wrong with the file's type or size.
pub fn open(path: &Path, most: u64) -> io::Result<File> {
    let waits_not = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(waits_not)
        .open(path)?;
    checked(file, most)
}

/// Whether it is a regular file of at most `most` bytes.
fn checked(file: File, most: u64) -> io::Result<File> {
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    match metadata.len() {
        size if size > most => Err(io::Error::other(too_large(size, most))),
        _ => Ok(file),
    }
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    all(open(path, most)?, most)
}

/// Reads a regular file of at most `most` bytes below a folder in which strangers, or their programs, can write. A symbolic
/// link is not followed: it may lead to a file of the user's.
///
/// # Errors
/// As [`open`], and if a link leads to it, or out of the folder.
pub fn below(folder: &Path, file: impl AsRef<Path>, most: u64) -> io::Result<Vec<u8>> {
    all(open_below(folder, file, most)?, most)
}

/// Opens such a file.
///
/// # Errors
/// As [`below`].
pub fn open_below(folder: &Path, file: impl AsRef<Path>, most: u64) -> io::Result<File> {
    let opened = openat2(
        File::open(folder)?,
        file.as_ref(),
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    );
    let file = opened.map_err(|errno| match errno {
        Errno::LOOP => io::Error::other("a symbolic link leads to it"),
        errno => errno.into(),
    })?;
    checked(file.into(), most)
}

fn all(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // It may grow while it is read.
    let read = file.take(most + 1).read_to_end(&mut bytes)?;
    match u64::try_from(read) {
        Ok(read) if read <= most => Ok(bytes),
        _ => Err(io::Error::other(too_large(most + 1, most))),
    }
}

/// Reads a regular file of text.
///
/// # Errors
/// As [`open`], and if it is not UTF-8.
pub fn text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

fn too_large(size: u64, most: u64) -> String {
    format!("it has {size} bytes, and {most} are the most")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_reasonable_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(text(&file, 4).unwrap(), "text");
        let told = |path: &Path, most| read(path, most).unwrap_err().to_string();
        assert_eq!(told(&file, 3), "it has 4 bytes, and 3 are the most");
        assert_eq!(told(folder.path(), 3), "is a directory");
        assert_eq!(told(Path::new("/dev/zero"), 3), "it is not a regular file");
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::from_bits_truncate(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(told(&fifo, 3), "it is not a regular file");
        let error = read(&folder.path().join("none"), 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        std::fs::write(&file, b"\xff").unwrap();
        assert_eq!(
            text(&file, 4).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    fn what_strangers_made_is_not_read_through_links() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        std::fs::create_dir_all(tree.join("real")).unwrap();
        std::fs::write(tree.join("real/file"), "text").unwrap();
        std::fs::write(folder.path().join("file"), "private").unwrap();
        symlink("../file", tree.join("link")).unwrap();
        symlink(folder.path(), tree.join("folder")).unwrap();
        assert_eq!(below(&tree, "real/file", 4).unwrap(), b"text");
        for (file, told) in [
            ("link", "a symbolic link leads to it"),
            ("folder/file", "a symbolic link leads to it"),
            ("../file", "Invalid cross-device link (os error 18)"),
            ("real", "is a directory"),
        ] {
            let error = below(&tree, file, 9).unwrap_err();
            assert_eq!(error.to_string(), told, "{file}");
        }
        let error = below(&tree, "real/file", 3).unwrap_err();
        assert_eq!(error.to_string(), "it has 4 bytes, and 3 are the most");
    }
}
