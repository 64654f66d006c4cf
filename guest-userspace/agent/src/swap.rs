//! Swapping to a disk in memory, if the kernel has one built in.

use std::fs::OpenOptions;
use std::io::{self, Seek, SeekFrom, Write};

use unwindlab_abi::mailbox::PAGE_SIZE;

/// The disk.
const DISK: &std::ffi::CStr = c"/dev/ram0";
/// Where the header's numbers are in the first page (`union swap_header`, include/linux/swap.h):
/// version, last page, bad pages.
const NUMBERS: usize = 1024;
/// The end of the first page.
const MAGIC: &[u8; 10] = b"SWAPSPACE2";

/// Enables swapping to the disk.
///
/// # Errors
/// `NotFound` if there is no such disk, otherwise the error.
pub fn on() -> io::Result<()> {
    let path = DISK.to_str().map_err(io::Error::other)?;
    let mut disk = OpenOptions::new().read(true).write(true).open(path)?;
    let pages = disk.seek(SeekFrom::End(0))? / PAGE_SIZE as u64;
    let header = header(pages).ok_or_else(|| io::Error::other("the disk is too small"))?;
    disk.rewind()?;
    disk.write_all(&header)?;
    disk.sync_all()?;
    // SAFETY: a C string; the disk is nobody else's.
    match unsafe { libc::swapon(DISK.as_ptr(), 0) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // It is enabled for another thread's stack.
            error if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
            error => Err(error),
        },
    }
}

/// The first of `pages` pages; `None` for a disk of less than two pages.
fn header(pages: u64) -> Option<Vec<u8>> {
    let last = u32::try_from(pages.checked_sub(1)?)
        .ok()
        .filter(|it| *it > 0)?;
    let mut page = vec![0; NUMBERS];
    for number in [1, last, 0] {
        page.extend(number.to_le_bytes());
    }
    page.resize(PAGE_SIZE - MAGIC.len(), 0);
    page.extend(MAGIC);
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_a_page_with_its_marks() {
        let page = header(1024).unwrap();
        assert_eq!(page.len(), PAGE_SIZE);
        assert_eq!(
            page[NUMBERS..NUMBERS + 12],
            [1, 0, 0, 0, 255, 3, 0, 0, 0, 0, 0, 0]
        );
        assert!(page.ends_with(MAGIC));
        assert!(header(1).is_none() && header(0).is_none());
    }
}
