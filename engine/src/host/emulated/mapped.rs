//! A saved state whose RAM is mapped copy-on-write instead of being read.
//!
//! QEMU has put the pages of each block of RAM to fixed places of the file, behind a header and a bitmap that says which of them are there
//! (capability `mapped-ram`; `mapped_ram_setup_ramblock()`, migration/ram.c of QEMU 10.0). To read them is to zero and to fill all
//! of them, before the machine goes on. So QEMU gets the file as the machine's memory, private to it, and a copy of all
//! that is around the pages, with an empty bitmap: it reads none, and takes over those that the machine touches.
//!
//! QEMU writes pages while the machine still runs, and those that changed meanwhile once more. One that is zero by then is only taken out of the bitmap:
//! its place keeps what it was (`save_zero_page()`, migration/ram.c of QEMU 10.0). So a state is [cleared](clear_absent_pages) of such
//! pages before it is kept.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use unwindlab_guest_kernel::next_data;

use super::qemu::inherited_path;

/// The block of RAM of a machine of type `pc`, as QEMU calls it.
pub(super) const BLOCK: &str = "pc.ram";
/// Bytes of a page in the bitmap.
const PAGE: u64 = 4096;
/// Bytes at the start of a file in which the header of the largest block, which is the first, must be.
const START: usize = 4096;
/// Most bytes around the pages: state of devices, and small blocks. QEMU 10.0.13 writes 6.2 MiB.
const MOST_AROUND: u64 = 256 << 20;

/// Where a state has the pages of [`BLOCK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RamPlace {
    bitmap: u64,
    /// Of the first page; a multiple of a page.
    pub(super) pages: u64,
    /// Bytes.
    pub(super) len: u64,
}

impl RamPlace {
    /// That of a machine with so much RAM. `None` if the file is laid out in another way.
    pub(super) fn find(file: &File, mib: u32) -> io::Result<Option<Self>> {
        let size = file.metadata()?.len();
        let mut start = vec![0; START.min(usize::try_from(size).unwrap_or(START))];
        file.read_exact_at(&mut start, 0)?;
        let place = Self::in_header(&start, u64::from(mib) << 20);
        Ok(place.filter(|it| it.end() <= size && size - it.len <= MOST_AROUND))
    }

    /// A header has the block's name and length, then a version, the size of a page, and the places of the bitmap, which
    /// is next, and of the pages; big-endian.
    fn in_header(start: &[u8], len: u64) -> Option<Self> {
        let mut before = vec![u8::try_from(BLOCK.len()).ok()?];
        before.extend(BLOCK.as_bytes());
        before.extend(len.to_be_bytes());
        before.extend(1_u32.to_be_bytes());
        before.extend(PAGE.to_be_bytes());
        let at = { start.windows(before.len()) }.position(|it| it == before)?;
        let (words, _) = start.get(at + before.len()..)?.as_chunks::<8>();
        let [bitmap, pages, ..] = words else {
            return None;
        };
        let (bitmap, pages) = (u64::from_be_bytes(*bitmap), u64::from_be_bytes(*pages));
        let behind = u64::try_from(at + before.len() + 16).ok()?;
        let room = pages.checked_sub(bitmap)?;
        let fits = bitmap == behind && room >= len / PAGE / 8 && pages.is_multiple_of(PAGE);
        (fits && pages.checked_add(len).is_some()).then_some(Self { bitmap, pages, len })
    }

    /// The places in the file of pages that are not in the bitmap: first byte and length of each row of them.
    fn absent(&self, bitmap: &[u8]) -> Vec<(u64, u64)> {
        let mut rows: Vec<(u64, u64)> = Vec::new();
        for number in 0..self.len / PAGE {
            let byte = usize::try_from(number / 8)
                .ok()
                .and_then(|it| bitmap.get(it));
            // An unsigned long's lowest bit is its first page's (include/qemu/bitmap.h), on a little-endian machine that of the first byte.
            if byte.is_some_and(|byte| byte >> (number % 8) & 1 == 1) {
                continue;
            }
            let place = self.pages + number * PAGE;
            match rows.last_mut() {
                Some((first, len)) if *first + *len == place => *len += PAGE,
                _ => rows.push((place, PAGE)),
            }
        }
        rows
    }

    const fn end(&self) -> u64 {
        self.pages + self.len
    }

    /// All that is around the pages, at the same places, with no page in the bitmap. The file is open for reading only, as
    /// QEMU wants it.
    pub(super) fn stream(&self, file: &File) -> io::Result<File> {
        let stream = File::from(memfd_create("unwindlab-state", MemfdFlags::CLOEXEC)?);
        let size = file.metadata()?.len();
        stream.set_len(size)?;
        for (from, to) in [(0, self.bitmap), (self.end(), size)] {
            copy_data(file, &stream, from, to)?;
        }
        File::open(inherited_path(stream.as_fd()))
    }
}

/// Copies what a file has between two places to the same places of another one, which has nothing there. Its holes, most of
/// what is around the pages, are left out.
fn copy_data(file: &File, to: &File, mut at: u64, end: u64) -> io::Result<()> {
    while let Some((begin, behind)) = next_data(file, at)?.filter(|(begin, _)| *begin < end) {
        at = behind.min(end);
        let mut bytes = vec![0; usize::try_from(at - begin).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, begin)?;
        to.write_all_at(&bytes, begin)?;
    }
    Ok(())
}

/// Makes holes of the pages of a state that its bitmap does not have, so that they are zero when the file is mapped, too. A
/// state that is laid out in another way is not mapped.
pub(super) fn clear_absent_pages(file: &File, mib: u32) -> io::Result<()> {
    let Some(place) = RamPlace::find(file, mib)? else {
        return Ok(());
    };
    let bytes = usize::try_from(place.len / PAGE / 8).map_err(io::Error::other)?;
    let mut bitmap = vec![0; bytes];
    file.read_exact_at(&mut bitmap, place.bitmap)?;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (first, len) in place.absent(&bitmap) {
        fallocate(file, hole, first, len)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 1 << 20;
    const PAGES: u64 = 1 << 20;

    /// The start of a state with 1 MiB of RAM, and where its bitmap is.
    fn header(len: u64, pages: u64) -> (Vec<u8>, u64) {
        let mut bytes = b"QEVM and so on".to_vec();
        bytes.push(6);
        bytes.extend(b"pc.ram");
        bytes.extend(len.to_be_bytes());
        bytes.extend(1_u32.to_be_bytes());
        bytes.extend(PAGE.to_be_bytes());
        let bitmap = bytes.len() as u64 + 16;
        bytes.extend(bitmap.to_be_bytes());
        bytes.extend(pages.to_be_bytes());
        (bytes, bitmap)
    }

    #[test]
    fn what_is_around_the_pages_stays_and_the_bitmap_is_empty() {
        let (mut start, bitmap) = header(LEN, PAGES);
        start.extend([0xff; 32]);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&start, 0).unwrap();
        file.write_all_at(&[7; 4096], PAGES).unwrap();
        file.write_all_at(b"devices", PAGES + LEN).unwrap();
        // Behind a hole.
        file.write_all_at(b"more", PAGES + LEN + LEN).unwrap();
        let place = RamPlace::find(&file, 1).unwrap().unwrap();
        let expected = RamPlace {
            bitmap,
            pages: PAGES,
            len: LEN,
        };
        assert_eq!(place, expected);
        let stream = place.stream(&file).unwrap();
        assert!(stream.write_all_at(&[1], 0).is_err(), "for reading only");
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut &stream, &mut bytes).unwrap();
        let (around, rest) = bytes.split_at(usize::try_from(bitmap).unwrap());
        assert_eq!(around, &start[..around.len()]);
        let behind = rest.len() - usize::try_from(LEN).unwrap() - 4;
        let (empty, devices) = rest.split_at(behind);
        assert!(empty.iter().all(|byte| *byte == 0));
        let expected = { b"devices".iter().copied() }
            .chain(std::iter::repeat_n(0, devices.len() - 11))
            .chain(*b"more");
        assert!(devices.iter().copied().eq(expected));
    }

    /// QEMU has written all pages, and found some of them to be zero later.
    #[test]
    fn a_page_that_is_not_in_the_bitmap_is_zero() {
        let (mut start, bitmap) = header(LEN, PAGES);
        let present = |page: u64| !(3..=9).contains(&page) && page != 255;
        let mut bits = [0_u8; 32];
        for page in (0..256).filter(|page| present(*page)) {
            bits[usize::try_from(page / 8).unwrap()] |= 1 << (page % 8);
        }
        start.extend(bits);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&start, 0).unwrap();
        file.write_all_at(&vec![7; usize::try_from(LEN).unwrap()], PAGES)
            .unwrap();
        file.write_all_at(b"devices", PAGES + LEN).unwrap();
        let place = RamPlace::find(&file, 1).unwrap().unwrap();
        let rows = [(PAGES + 3 * PAGE, 7 * PAGE), (PAGES + 255 * PAGE, PAGE)];
        assert_eq!((place.bitmap, place.absent(&bits)), (bitmap, rows.to_vec()));

        clear_absent_pages(&file, 1).unwrap();
        for page in 0..256 {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, PAGES + page * PAGE).unwrap();
            assert_eq!(bytes, [7 * u8::from(present(page)); 4096], "page {page}");
        }
        let mut around = vec![0; start.len()];
        file.read_exact_at(&mut around, 0).unwrap();
        assert_eq!(around, start);
        assert_eq!(file.metadata().unwrap().len(), PAGES + LEN + 7);
    }

    #[test]
    fn another_layout_has_no_place() {
        let find = |(bytes, _): (Vec<u8>, u64), size: u64| {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            file.set_len(size).unwrap();
            RamPlace::find(&file, 1).unwrap()
        };
        let whole = PAGES + LEN;
        assert!(find(header(LEN, PAGES), whole).is_some());
        assert_eq!(find(header(LEN, PAGES), whole - 1), None, "too short");
        assert_eq!(find(header(LEN + 1, PAGES), whole + 1), None, "other RAM");
        assert_eq!(find(header(LEN, PAGES + 1), whole + 1), None, "no page");
        assert_eq!(find(header(LEN, 0), whole), None, "before the bitmap");
        assert_eq!(find(header(LEN, !0xfff), whole), None, "beyond");
        let around = whole + MOST_AROUND;
        assert_eq!(find(header(LEN, PAGES), around), None, "too much around");
        let (mut cut, _) = header(LEN, PAGES);
        cut.truncate(cut.len() - 1);
        assert_eq!(find((cut, 0), 100), None);
        assert_eq!(find((Vec::new(), 0), 0), None);
    }
}
