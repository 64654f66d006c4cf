//! Memory that the command and a deterministic outer machine share: a plan gets in and a recording
//! out without anything that happens at a certain time.
//!
//! The command writes its message before power-on. It reads what the machine writes whenever it
//! likes: reading leaves no trace. To the machine the memory is the BAR of a PCI device (QEMU's
//! ivshmem-plain), to the command a memfd.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Size in bytes; only what is written takes memory.
pub const SIZE: usize = 256 << 20;
/// Where the machine's answer starts, with its number of bytes (a `u64`). The command's message, at
/// the start of the region, has the same form.
const ANSWER: usize = 32 << 20;
/// Size of such a number.
const WORD: usize = 8;
/// Vendor and device of ivshmem (docs/specs/ivshmem-spec.rst of QEMU).
const IVSHMEM: [&str; 2] = ["0x1af4", "0x1110"];

/// The command's end.
#[derive(Debug)]
pub struct Outside {
    file: File,
    /// Bytes of the answer that have been read.
    read: usize,
}

impl Outside {
    /// A new region that holds `message` for the machine.
    ///
    /// # Errors
    /// When the memory cannot be allocated, or the message is too long.
    pub fn new(message: &[u8]) -> io::Result<Self> {
        if message.len() > ANSWER - WORD {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let length = message.len() as u64;
        let file = File::from(memfd_create("unwindlab-region", MemfdFlags::CLOEXEC)?);
        file.set_len(SIZE as u64)?;
        file.write_all_at(&length.to_le_bytes(), 0)?;
        file.write_all_at(message, WORD as u64)?;
        Ok(Self { file, read: 0 })
    }

    /// The memory itself, for QEMU.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What the machine wrote since the last call: whole messages.
    ///
    /// # Errors
    /// When the machine claims to have written more than fits.
    pub fn news(&mut self) -> io::Result<Vec<u8>> {
        let mut said = [0; WORD];
        self.file.read_exact_at(&mut said, ANSWER as u64)?;
        let said = usize::try_from(u64::from_le_bytes(said)).ok();
        let said = said.filter(|&said| said <= SIZE - ANSWER - WORD);
        let said = said.ok_or(io::ErrorKind::InvalidData)?;
        let new = said.checked_sub(self.read);
        let mut bytes = vec![0; new.ok_or(io::ErrorKind::InvalidData)?];
        let from = ANSWER + WORD + self.read;
        self.file.read_exact_at(&mut bytes, from as u64)?;
        self.read = said;
        Ok(bytes)
    }
}

/// The machine's end. Reading ends where the command's message does; the command sees what is
/// written once it is flushed.
#[derive(Debug)]
pub struct Inside {
    start: *mut u8,
    /// Where the command's message ends.
    told: usize,
    /// How far it has been read.
    read: usize,
    /// Bytes of the answer.
    written: usize,
}

impl Inside {
    /// Maps the region; `None` where this machine has no such device.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn open() -> io::Result<Option<Self>> {
        let Some(device) = device()? else {
            return Ok(None);
        };
        // The device has no driver that would enable its memory.
        fs::write(device.join("enable"), "1")?;
        let bar = OpenOptions::new()
            .read(true)
            .write(true)
            .open(device.join("resource2"))?;
        let mut region = Self {
            start: map(&bar)?,
            told: WORD,
            read: 0,
            written: 0,
        };
        let mut length = [0; WORD];
        region.read_exact(&mut length)?;
        let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(ANSWER);
        region.told = length.saturating_add(WORD).min(ANSWER);
        Ok(Some(region))
    }

    /// The byte at `offset`; `None` where fewer than `length` follow.
    fn at(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        (end <= SIZE).then(|| self.start.wrapping_add(offset))
    }
}

impl Read for Inside {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(self.told - self.read);
        let from = self
            .at(self.read, length)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        // SAFETY: all `length` bytes at `from` are in the mapping, which lives as long as the
        // process; the command does not write while the machine runs, nor do we write here; the
        // buffer is at least as long.
        unsafe { ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), length) };
        self.read += length;
        Ok(length)
    }
}

impl Write for Inside {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let to = self.at(ANSWER + WORD + self.written, bytes.len());
        let to = to.ok_or(io::ErrorKind::FileTooLarge)?;
        // SAFETY: as in `read`; the command does not read here before the number covers it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        self.written += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let number = self.at(ANSWER, WORD);
        let number = number.ok_or(io::ErrorKind::FileTooLarge)?;
        // SAFETY: in the mapping, aligned (pages are, and `ANSWER` is a multiple of 8), and only
        // accessed atomically.
        let number = unsafe { AtomicU64::from_ptr(number.cast()) };
        number.store((self.written as u64).to_le(), Ordering::Release);
        Ok(())
    }
}

/// Maps a region: all its bytes, for as long as the process lives.
fn map(file: &File) -> io::Result<*mut u8> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: no address is asked for, so that no mapping of ours is replaced. The BAR and the
    // memfd have this size, so that nothing beyond the end of a file is accessed.
    let start = unsafe { mmap(ptr::null_mut(), SIZE, access, MapFlags::SHARED, file, 0) }?;
    Ok(start.cast())
}

/// The device's folder in sysfs.
fn device() -> io::Result<Option<PathBuf>> {
    let devices = Path::new("/sys/bus/pci/devices");
    if !devices.exists() {
        return Ok(None);
    }
    for entry in fs::read_dir(devices)? {
        let folder = entry?.path();
        let says = |file: &str, id: &str| {
            fs::read_to_string(folder.join(file)).is_ok_and(|text| text.trim() == id)
        };
        let [vendor, device] = IVSHMEM;
        if says("vendor", vendor) && says("device", device) {
            return Ok(Some(folder));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine's end, in this process.
    fn inside(outside: &Outside) -> Inside {
        let mut told = [0; 8];
        outside.file.read_exact_at(&mut told, 0).unwrap();
        Inside {
            start: map(outside.file()).unwrap(),
            told: usize::try_from(u64::from_le_bytes(told)).unwrap() + WORD,
            read: WORD,
            written: 0,
        }
    }

    #[test]
    fn both_ends_understand_each_other() {
        let mut outside = Outside::new(b"do it").unwrap();
        let mut inside = inside(&outside);
        let mut told = Vec::new();
        inside.read_to_end(&mut told).unwrap();
        assert_eq!(told, b"do it");
        assert_eq!(outside.news().unwrap(), b"");
        inside.write_all(b"almost").unwrap();
        assert_eq!(outside.news().unwrap(), b"", "not before it is flushed");
        inside.flush().unwrap();
        assert_eq!(outside.news().unwrap(), b"almost");
        inside.write_all(b"done").unwrap();
        inside.flush().unwrap();
        assert_eq!(outside.news().unwrap(), b"done");
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        assert!(Outside::new(&vec![0; ANSWER]).is_err());
        let mut outside = Outside::new(b"").unwrap();
        let lie = u64::MAX.to_le_bytes();
        outside.file.write_all_at(&lie, ANSWER as u64).unwrap();
        assert!(outside.news().is_err());
        let mut inside = inside(&outside);
        inside.written = SIZE - ANSWER - WORD;
        assert!(inside.write_all(b"x").is_err());
    }
}
