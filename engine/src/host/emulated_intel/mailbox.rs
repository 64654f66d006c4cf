//! The mailbox between the command and an outer machine in Bochs: a disk of the machine's, to the command a memfd.
//!
//! Each side has an area to which it only appends, and in the area's first sector the number of bytes that it has written. The
//! number is written last. The other side looks at it now and then.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};

use super::boot_disk::CYLINDER_SECTORS;

/// Bytes of a sector.
pub(super) const SECTOR: usize = 512;
/// Sectors of the disk, about 1 GiB: only what is written takes memory. Whole cylinders.
const SECTORS: u32 = CYLINDER_SECTORS * 2080;
/// The areas, in sectors: the command's orders, and the machine's answers, up to the disk's end.
const ORDERS: Area = Area {
    first: 0,
    sectors: 1 << 17,
};
const ANSWERS: Area = Area {
    first: 1 << 17,
    sectors: SECTORS - (1 << 17),
};
/// From one look of the machine at its orders to the next, in its own time.
const LOOK: Duration = Duration::from_millis(10);

/// A part of the disk that one side writes.
#[derive(Debug, Clone, Copy)]
struct Area {
    /// The sector with the number of bytes; the bytes follow it.
    first: u32,
    sectors: u32,
}

impl Area {
    /// Bytes that it can hold.
    const fn room(self) -> u64 {
        (self.sectors as u64 - 1) * SECTOR as u64
    }

    /// Where the first of the bytes is on the disk.
    const fn begin(self) -> u64 {
        (self.first as u64 + 1) * SECTOR as u64
    }

    /// The number in the area's first sector. `None` while it is being written: then its complement is of another one.
    fn number(self, sector: &[u8]) -> Option<u64> {
        let number = u64::from_le_bytes(*sector.first_chunk()?);
        let check = u64::from_le_bytes(*sector.get(8..)?.first_chunk()?);
        // All is 0 before the first time.
        match (number, check) {
            (0, 0) => Some(0),
            _ => (number == !check).then_some(number),
        }
    }
}

/// Where a byte is in its sector.
fn within(position: u64) -> usize {
    // It is less than a sector's size, so that it always fits.
    usize::try_from(position % SECTOR as u64).unwrap_or_default()
}

/// The area's first sector.
fn numbered(number: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&(!number).to_le_bytes());
    bytes
}

/// The command's end.
#[derive(Debug)]
pub(super) struct Outside {
    file: File,
    /// Bytes of orders.
    told: u64,
    /// Bytes of answers that have been read.
    heard: u64,
}

impl Outside {
    /// An empty one.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub(super) fn new() -> io::Result<Self> {
        let file = File::from(memfd_create("unwindlab-mailbox", MemfdFlags::CLOEXEC)?);
        file.set_len(u64::from(SECTORS) * SECTOR as u64)?;
        Ok(Self {
            file,
            told: 0,
            heard: 0,
        })
    }

    /// The disk itself, for Bochs.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Appends to the orders.
    ///
    /// # Errors
    /// When there is no more room.
    pub(super) fn tell(&mut self, bytes: &[u8]) -> io::Result<()> {
        let told = self.told + bytes.len() as u64;
        if told > ORDERS.room() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all_at(bytes, ORDERS.begin() + self.told)?;
        self.told = told;
        let at = u64::from(ORDERS.first) * SECTOR as u64;
        self.file.write_all_at(&numbered(told), at)
    }

    /// What the machine has written since the last call, at most `limit` bytes.
    ///
    /// # Errors
    /// When the machine claims to have written more than fits, or less than before.
    pub(super) fn news(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        let mut sector = [0; SECTOR];
        let at = u64::from(ANSWERS.first) * SECTOR as u64;
        self.file.read_exact_at(&mut sector, at)?;
        let Some(said) = ANSWERS.number(&sector) else {
            return Ok(Vec::new());
        };
        let new = said.checked_sub(self.heard);
        let new = new.filter(|_| said <= ANSWERS.room());
        let new = new.ok_or(io::ErrorKind::InvalidData)?;
        let new = usize::try_from(new).map_or(limit, |it| it.min(limit));
        let mut bytes = vec![0; new];
        let from = ANSWERS.begin() + self.heard;
        self.file.read_exact_at(&mut bytes, from)?;
        self.heard += new as u64;
        Ok(bytes)
    }
}

/// A disk, as the machine uses it: whole sectors.
pub(super) trait Sectors {
    /// Reads as many as `into` has room for.
    fn read(&mut self, first: u32, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `from`.
    fn write(&mut self, first: u32, from: &[u8]) -> io::Result<()>;
}

/// The machine's end. Reading waits for the command; what is written is sent when it is flushed.
#[derive(Debug)]
pub(super) struct Inside<D> {
    disk: D,
    /// Bytes of orders that there are, and that have been read.
    told: u64,
    read: u64,
    /// Bytes of answers that have been sent.
    written: u64,
    /// What of them shares a sector with what follows, and what follows.
    pending: Vec<u8>,
}

impl<D: Sectors> Inside<D> {
    /// Of this disk.
    pub(super) const fn new(disk: D) -> Self {
        Self {
            disk,
            told: 0,
            read: 0,
            written: 0,
            pending: Vec::new(),
        }
    }

    /// Looks whether there are new orders.
    fn look(&mut self) -> io::Result<()> {
        let mut sector = [0; SECTOR];
        self.disk.read(ORDERS.first, &mut sector)?;
        if let Some(told) = ORDERS.number(&sector) {
            self.told = told.min(ORDERS.room());
        }
        Ok(())
    }
}

impl<D: Sectors> Read for Inside<D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.told <= self.read {
            self.look()?;
            if self.told <= self.read {
                std::thread::sleep(LOOK);
            }
        }
        // From the sector with the first byte to the one with the last, a few at once.
        let skipped = within(self.read);
        let left = usize::try_from(self.told - self.read).unwrap_or(usize::MAX);
        let length = buffer.len().min(left).min(64 * SECTOR);
        let mut sectors = vec![0; (skipped + length).next_multiple_of(SECTOR)];
        let first = u64::from(ORDERS.first) + 1 + self.read / SECTOR as u64;
        let first = u32::try_from(first).map_err(io::Error::other)?;
        self.disk.read(first, &mut sectors)?;
        let bytes = sectors.get(skipped..skipped + length).unwrap_or_default();
        let place = buffer.get_mut(..bytes.len()).unwrap_or_default();
        place.copy_from_slice(bytes);
        self.read += bytes.len() as u64;
        Ok(bytes.len())
    }
}

impl<D: Sectors> Write for Inside<D> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let shared = within(self.written);
        let begin = self.written - shared as u64;
        let written = begin + self.pending.len() as u64;
        if written == self.written {
            return Ok(());
        }
        if written > ANSWERS.room() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let first = u64::from(ANSWERS.first) + 1 + begin / SECTOR as u64;
        let first = u32::try_from(first).map_err(io::Error::other)?;
        let length = self.pending.len();
        self.pending.resize(length.next_multiple_of(SECTOR), 0);
        self.disk.write(first, &self.pending)?;
        self.pending.truncate(length);
        self.pending.drain(..length - length % SECTOR);
        self.written = written;
        self.disk.write(ANSWERS.first, &numbered(written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Sectors for File {
        fn read(&mut self, first: u32, into: &mut [u8]) -> io::Result<()> {
            assert_eq!(into.len() % SECTOR, 0);
            self.read_exact_at(into, u64::from(first) * SECTOR as u64)
        }

        fn write(&mut self, first: u32, from: &[u8]) -> io::Result<()> {
            assert_eq!(from.len() % SECTOR, 0);
            self.write_all_at(from, u64::from(first) * SECTOR as u64)
        }
    }

    fn pair() -> (Outside, Inside<File>) {
        let outside = Outside::new().unwrap();
        let inside = Inside::new(outside.file.try_clone().unwrap());
        (outside, inside)
    }

    #[test]
    fn both_ends_understand_each_other() {
        let (mut outside, mut inside) = pair();
        outside.tell(b"do ").unwrap();
        outside.tell(b"it").unwrap();
        let mut told = [0; 5];
        inside.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"do it");
        assert_eq!(outside.news(9).unwrap(), b"");
        inside.write_all(b"almost").unwrap();
        assert_eq!(outside.news(9).unwrap(), b"", "not before it is flushed");
        inside.flush().unwrap();
        assert_eq!(outside.news(4).unwrap(), b"almo");
        assert_eq!(outside.news(4).unwrap(), b"st");
    }

    #[test]
    fn lengths_that_are_no_sectors_arrive_whole() {
        let (mut outside, mut inside) = pair();
        let (mut sent, mut heard) = (Vec::new(), Vec::new());
        for length in [1_u32, 511, 512, 513, 1024, 70_000, 3, 0, 509] {
            let part: Vec<u8> = (0..length)
                .map(|it| u8::try_from((it * 7 + length) % 251).unwrap())
                .collect();
            inside.write_all(&part).unwrap();
            inside.flush().unwrap();
            heard.extend(outside.news(usize::MAX).unwrap());
            outside.tell(&part).unwrap();
            sent.extend(part);
        }
        assert_eq!(heard, sent);
        let mut told = vec![0; sent.len()];
        inside.read_exact(&mut told).unwrap();
        assert_eq!(told, sent);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let (mut outside, _) = pair();
        outside.told = ORDERS.room();
        assert!(outside.tell(b"x").is_err());
        let at = u64::from(ANSWERS.first) * SECTOR as u64;
        let lie = numbered(ANSWERS.room() + 1);
        outside.file.write_all_at(&lie, at).unwrap();
        assert!(outside.news(1).is_err());
    }

    #[test]
    fn a_number_that_is_half_written_is_none() {
        let (mut outside, mut inside) = pair();
        inside.write_all(b"x").unwrap();
        inside.flush().unwrap();
        let at = u64::from(ANSWERS.first) * SECTOR as u64;
        outside.file.write_all_at(&[2], at).unwrap();
        assert_eq!(outside.news(9).unwrap(), b"");
    }
}
