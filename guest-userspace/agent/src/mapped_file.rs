//! Which file the code at an address is mapped from, and where in it.

use std::fs::read_to_string;
use std::io;

/// The path of the file that is mapped at an address, and the address's offset in it. `None` for
/// memory that belongs to no file.
///
/// # Errors
/// `/proc/self/maps` cannot be read.
pub fn of(address: u64) -> io::Result<Option<(String, u64)>> {
    Ok(find(&read_to_string("/proc/self/maps")?, address))
}

/// Layout: Documentation/filesystems/proc.rst, `/proc/PID/maps`.
fn find(maps: &str, address: u64) -> Option<(String, u64)> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    maps.lines().find_map(|line| {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (hex(start)?, hex(end)?);
        let inside = (start..end).contains(&address);
        let offset = hex(words.nth(1)?)?;
        let path = words.nth(2)?.trim();
        let into = address.checked_sub(start)?;
        (inside && path.starts_with('/'))
            .then(|| Some((path.to_owned(), offset.checked_add(into)?)))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00400000-00401000 r--p 00000000 00:02 7                                  /init
00401000-00480000 r-xp 00001000 00:02 7                                  /init
00480000-00490000 rw-p 00000000 00:00 0 
7ffd0000-7ffd1000 r-xp 00000000 00:00 0                                  [vdso]
";

    #[test]
    fn an_address_is_found_in_its_file_and_nowhere_else() {
        let init = |offset| Some(("/init".to_owned(), offset));
        assert_eq!(find(MAPS, 0x40_1010), init(0x1010));
        assert_eq!(find(MAPS, 0x40_0fff), init(0xfff));
        assert_eq!(find(MAPS, 0x48_0000), None, "anonymous memory");
        assert_eq!(find(MAPS, 0x7ffd_0000), None, "the vdso");
        assert_eq!(find(MAPS, 0x10), None);
        assert_eq!(find("garbled\n-\n1-2\n", 1), None);
    }
}
