//! The disk that Bochs boots: the [`loader`](super::loader), the outer kernel and its initramfs, and a table that says what goes where.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};

use unwindlab_guest_kernel::image::{self, ImageError};

use super::loader::{
    CMDLINE, ENTRY, GDT_OPERAND, MAP, PARTS, SECTOR, START_INFO, TABLE, TABLE_SECTORS, code,
};

/// Sectors of a cylinder: Bochs takes disks of whole ones only, of 16 tracks of 63 sectors.
pub(super) const CYLINDER_SECTORS: u32 = 16 * 63;
/// Its bytes.
const CYLINDER: u64 = CYLINDER_SECTORS as u64 * SECTOR as u64;
/// The initramfs begins at a multiple of this.
const PAGE: u64 = 2 << 20;
/// `XEN_HVM_START_MAGIC_VALUE`.
const MAGIC: u32 = 0x336e_c578;
/// Where the list of modules is in the table: the initramfs.
const MODULES: usize = START_INFO + 0x40;
/// Bytes of a part in the table.
const PART: usize = 12;

/// Why there is no disk.
#[derive(Debug, thiserror::Error)]
pub(super) enum BootDiskError {
    /// The kernel cannot be loaded.
    #[error("the outer kernel cannot be loaded: {0}")]
    Kernel(#[from] ImageError),
    /// It cannot be entered.
    #[error("the outer kernel has no PVH entry point")]
    NoEntry,
    /// There is too much of something.
    #[error("{0} does not fit")]
    TooLarge(&'static str),
    /// It cannot be written, or the initramfs not read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Writes the disk into an empty file, for a machine with so many bytes of memory.
///
/// # Errors
/// [`BootDiskError`].
pub(super) fn write(
    disk: &mut File,
    kernel: &[u8],
    initramfs: &mut File,
    cmdline: &str,
    memory: u64,
) -> Result<(), BootDiskError> {
    let mut table = Table::new(cmdline)?;
    let entry = image::pvh_entry(kernel).ok_or(BootDiskError::NoEntry)?;
    table.put(ENTRY, &entry.to_le_bytes())?;
    disk.seek(SeekFrom::Start(table.end()))?;
    let mut kernel_end = 0;
    for segment in image::load_segments(kernel)? {
        let length = segment.content.len() as u64;
        let end = segment.address.checked_add(segment.size.max(length));
        let end = end.filter(|end| *end <= memory);
        kernel_end = kernel_end.max(end.ok_or(BootDiskError::TooLarge("the outer kernel"))?);
        table.add(length, segment.address)?;
        disk.write_all(segment.content)?;
        pad(disk, SECTOR as u64)?;
    }
    let address = kernel_end.next_multiple_of(PAGE);
    let length = initramfs.metadata()?.len();
    // The kernel unpacks it before it frees it.
    let end = length.checked_mul(2).and_then(|it| it.checked_add(address));
    if end.is_none_or(|end| end > memory) {
        return Err(BootDiskError::TooLarge("the initramfs"));
    }
    table.add(length, address)?;
    for (number, word) in [address, length, 0, 0].into_iter().enumerate() {
        table.put(MODULES + 8 * number, &word.to_le_bytes())?;
    }
    initramfs.seek(SeekFrom::Start(0))?;
    let copied = io::copy(&mut initramfs.take(length), disk)?;
    if copied != length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    pad(disk, CYLINDER)?;
    disk.seek(SeekFrom::Start(0))?;
    disk.write_all(code())?;
    disk.write_all(&table.bytes)?;
    Ok(())
}

/// Makes the file's length a multiple of this, and goes to its end.
fn pad(disk: &mut File, unit: u64) -> io::Result<()> {
    let at = disk.stream_position()?.next_multiple_of(unit);
    disk.set_len(at)?;
    disk.seek(SeekFrom::Start(at))?;
    Ok(())
}

/// What the loader reads first.
struct Table {
    bytes: Vec<u8>,
    parts: usize,
    /// The sector at which the next part begins.
    next: u64,
}

impl Table {
    fn new(cmdline: &str) -> Result<Self, BootDiskError> {
        let size = usize::from(TABLE_SECTORS) * SECTOR;
        let mut table = Self {
            bytes: vec![0; size],
            parts: 0,
            next: 1 + u64::from(TABLE_SECTORS),
        };
        let base = u64::from(TABLE);
        let at = |offset: usize| base + offset as u64;
        let mut info = Vec::new();
        // Version 1 has the map of the memory.
        for word in [MAGIC, 1, 0, 1] {
            info.extend(word.to_le_bytes());
        }
        for word in [at(MODULES), at(CMDLINE), 0, at(MAP), 0] {
            info.extend(word.to_le_bytes());
        }
        table.put(START_INFO, &info)?;
        // Behind the operand of LGDT: nothing, and segments of 4 GiB at 0, for code and for data.
        let segments = [0, 0x00cf_9b00_0000_ffff_u64, 0x00cf_9300_0000_ffff];
        let limit = 23_u16.to_le_bytes();
        let operand = usize::from(GDT_OPERAND);
        table.put(operand, &limit)?;
        let address = u32::from(TABLE) + u32::from(GDT_OPERAND) + 8;
        table.put(operand + 2, &address.to_le_bytes())?;
        for (number, segment) in segments.into_iter().enumerate() {
            table.put(operand + 8 * (number + 1), &segment.to_le_bytes())?;
        }
        let end = CMDLINE + cmdline.len();
        if end >= size {
            return Err(BootDiskError::TooLarge("the command line"));
        }
        table.put(CMDLINE, cmdline.as_bytes())?;
        Ok(table)
    }

    /// Where the first part begins on the disk, in bytes.
    fn end(&self) -> u64 {
        (1 + u64::from(TABLE_SECTORS)) * SECTOR as u64
    }

    /// Adds a part of so many bytes, which begins where the part before it ended, and goes to this address.
    fn add(&mut self, length: u64, address: u64) -> Result<(), BootDiskError> {
        const WHAT: BootDiskError = BootDiskError::TooLarge("a part of the disk");
        let sectors = length.div_ceil(SECTOR as u64);
        // One without sectors would be the end.
        if sectors == 0 {
            return Ok(());
        }
        let at = PARTS + PART * self.parts;
        // The end has room too.
        if at + 2 * PART > ENTRY {
            return Err(WHAT);
        }
        for (number, word) in [self.next, sectors, address].into_iter().enumerate() {
            let word = u32::try_from(word).map_err(|_| WHAT)?;
            self.put(at + 4 * number, &word.to_le_bytes())?;
        }
        self.parts += 1;
        self.next += sectors;
        Ok(())
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> Result<(), BootDiskError> {
        let place = self.bytes.get_mut(at..at + bytes.len());
        let place = place.ok_or(BootDiskError::TooLarge("the table of the disk"))?;
        place.copy_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    const MEMORY: u64 = 64 << 20;

    /// A kernel of two parts with a PVH entry point: 700 bytes at 16 MiB, and a note, which is not loaded.
    fn kernel() -> Vec<u8> {
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(16, 0);
        elf.extend(2_u16.to_le_bytes());
        elf.extend(62_u16.to_le_bytes());
        elf.extend(1_u32.to_le_bytes());
        for word in [0_u64, 64, 0] {
            elf.extend(word.to_le_bytes());
        }
        elf.extend(0_u32.to_le_bytes());
        for half in [64_u16, 56, 2, 0, 0, 0] {
            elf.extend(half.to_le_bytes());
        }
        // Type and flags; offset, virtual and physical address, sizes in the file and in memory, alignment.
        let headers = [
            (1_u32, [0x200_u64, 0, 16 << 20, 700, 5000, 0]),
            (4, [0x180, 0, 0, 20, 20, 4]),
        ];
        for (kind, words) in headers {
            elf.extend(kind.to_le_bytes());
            elf.extend(0_u32.to_le_bytes());
            for word in words {
                elf.extend(word.to_le_bytes());
            }
        }
        elf.resize(0x180, 0);
        for word in [4_u32, 4, 18, u32::from_le_bytes(*b"Xen\0"), 0x0100_0040] {
            elf.extend(word.to_le_bytes());
        }
        elf.resize(0x200, 0);
        elf.extend([7; 700]);
        elf
    }

    fn disk(initramfs: &[u8], cmdline: &str, memory: u64) -> Result<Vec<u8>, BootDiskError> {
        let mut file = tempfile::tempfile().unwrap();
        let mut packed = tempfile::tempfile().unwrap();
        packed.write_all(initramfs).unwrap();
        write(&mut file, &kernel(), &mut packed, cmdline, memory)?;
        let length = file.metadata().unwrap().len();
        let mut disk = vec![0; usize::try_from(length).unwrap()];
        file.read_exact_at(&mut disk, 0).unwrap();
        Ok(disk)
    }

    fn words<const N: usize>(disk: &[u8], at: usize) -> [u32; N] {
        let word = |at: usize| u32::from_le_bytes(disk[at..at + 4].try_into().unwrap());
        std::array::from_fn(|number| word(SECTOR + at + 4 * number))
    }

    #[test]
    fn the_table_says_what_lies_where() {
        let disk = disk(&[9; 1000], "quiet", MEMORY).unwrap();
        assert_eq!(disk.len() as u64 % CYLINDER, 0);
        assert_eq!(&disk[..SECTOR], code());
        let [kernel_sector, kernel_sectors, kernel_address] = words(&disk, PARTS);
        assert_eq!((kernel_sectors, kernel_address), (2, 16 << 20));
        let begin = kernel_sector as usize * SECTOR;
        assert_eq!(disk[begin..begin + 700], [7; 700]);
        let [sector, sectors, address] = words(&disk, PARTS + PART);
        assert_eq!((sector, sectors, address), (kernel_sector + 2, 2, 18 << 20));
        let begin = sector as usize * SECTOR;
        assert_eq!(disk[begin..begin + 1000], [9; 1000]);
        assert_eq!(words(&disk, PARTS + 2 * PART), [0, 0]);
        assert_eq!(words(&disk, ENTRY), [0x0100_0040]);
        assert_eq!(words(&disk, MODULES), [18 << 20, 0, 1000, 0]);
        assert_eq!(words(&disk, START_INFO), [MAGIC, 1, 0, 1]);
        let text = SECTOR + CMDLINE;
        assert_eq!(&disk[text..text + 6], b"quiet\0");
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let error = |result: Result<Vec<u8>, BootDiskError>| result.unwrap_err().to_string();
        assert_eq!(
            error(disk(b"x", "", 16 << 20)),
            "the outer kernel does not fit"
        );
        assert_eq!(
            error(disk(&[0; 600], "", 18 << 20)),
            "the initramfs does not fit"
        );
        let long = "x".repeat(4096);
        assert_eq!(
            error(disk(b"x", &long, MEMORY)),
            "the command line does not fit"
        );
        let mut table = Table::new("").unwrap();
        let added = (0..100).map(|_| table.add(1, 0));
        assert!(added.into_iter().any(|it| it.is_err()));
    }
}
