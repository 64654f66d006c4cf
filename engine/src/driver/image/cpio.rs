//! Initial RAM file systems: "newc" cpio archives
//! (Documentation/driver-api/early-userspace/buffer-format.rst), uncompressed, because an archive
//! is unpacked only once, and on an emulated CPU.

use std::io::{self, Write};

use cpio::newc::{self, ModeFileType};

/// An archive under construction. Add a directory before what it contains.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    /// Entries need different inode numbers: the kernel takes those of one number for hard links.
    inodes: u32,
}

impl Archive {
    /// Adds an empty directory, mode 755.
    ///
    /// # Errors
    /// As [`Archive::file`].
    pub fn directory(self, path: &str) -> io::Result<Self> {
        self.entry(path, ModeFileType::Directory, 0o755, (0, 0), &[])
    }

    /// Adds a regular file, mode 755.
    ///
    /// # Errors
    /// [`io::ErrorKind::FileTooLarge`] for 4 GiB or more, the format's limit.
    pub fn file(self, path: &str, content: &[u8]) -> io::Result<Self> {
        self.entry(path, ModeFileType::Regular, 0o755, (0, 0), content)
    }

    /// Adds a character device node, mode 600.
    ///
    /// # Errors
    /// As [`Archive::file`].
    pub fn character_device(self, path: &str, major: u32, minor: u32) -> io::Result<Self> {
        self.entry(path, ModeFileType::Char, 0o600, (major, minor), &[])
    }

    /// Adds the nodes that a Rust program needs before `/dev` is mounted. The kernel opens
    /// `/dev/console` for its init; where that fails, the standard library aborts unless it can
    /// open `/dev/null` instead.
    ///
    /// # Errors
    /// As [`Archive::file`].
    pub fn standard_devices(self) -> io::Result<Self> {
        self.directory("dev")?
            .character_device("dev/console", 5, 1)?
            .character_device("dev/null", 1, 3)
    }

    /// The finished archive.
    ///
    /// # Errors
    /// None in practice: it writes to memory, but the writer's interface has errors.
    pub fn finish(self) -> io::Result<Vec<u8>> {
        newc::trailer(self.bytes)
    }

    fn entry(
        mut self,
        path: &str,
        kind: ModeFileType,
        mode: u32,
        (major, minor): (u32, u32),
        content: &[u8],
    ) -> io::Result<Self> {
        let size = u32::try_from(content.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.inodes += 1;
        let mut writer = newc::Builder::new(path)
            .ino(self.inodes)
            .mode(mode)
            .set_mode_file_type(kind)
            .rdev_major(major)
            .rdev_minor(minor)
            .write(self.bytes, size);
        writer.write_all(content)?;
        self.bytes = writer.finish()?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_finds_what_was_written() {
        let archive = Archive::default()
            .standard_devices()
            .and_then(|archive| archive.file("init", b"odd length."))
            .and_then(Archive::finish)
            .unwrap();
        let mut rest = archive.as_slice();
        let mut found = Vec::new();
        loop {
            let mut reader = newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let mut content = Vec::new();
            io::copy(&mut reader, &mut content).unwrap();
            let entry = reader.entry();
            let device = (entry.rdev_major(), entry.rdev_minor());
            found.push((entry.name().to_owned(), entry.mode(), device, content));
            rest = reader.finish().unwrap();
        }
        let entry = |name: &str, mode, device, content: &[u8]| {
            (name.to_owned(), mode, device, content.to_vec())
        };
        assert_eq!(
            found,
            [
                entry("dev", 0o040_755, (0, 0), b""),
                entry("dev/console", 0o020_600, (5, 1), b""),
                entry("dev/null", 0o020_600, (1, 3), b""),
                entry("init", 0o100_755, (0, 0), b"odd length."),
            ]
        );
    }
}
