//! A process's resident memory by mapping (`/proc/PID/smaps`, proc_pid_smaps(5)).

use std::fs;
use std::io;

/// Resident memory of a VMM's process, in KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// Of the file in memory that is the guest's RAM.
    pub guest_kib: u64,
    /// Of everything else: code, heap, stacks, pages of libraries.
    pub beyond_kib: u64,
    /// The part of `beyond_kib` without a file: heap, stacks, data that was written to.
    pub anonymous_kib: u64,
}

/// The memory of a process whose guest has so many MiB of RAM, which is one mapping of this size.
///
/// # Errors
/// When the process is gone or not readable, or the number of such mappings is not one.
pub fn of(pid: u32, guest_mib: u32) -> io::Result<Resident> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let found = parse(&smaps, u64::from(guest_mib) * 1024);
    found.ok_or_else(|| {
        io::Error::other("no mapping, or more than one, has the size of its guest's RAM")
    })
}

/// A mapping's first line has its addresses and name; the others are `Key: value`, `Size: N kB`
/// before `Rss: N kB` and `Anonymous: N kB`.
fn parse(smaps: &str, guest_kib: u64) -> Option<Resident> {
    let mut resident = Resident::default();
    let mut size = 0;
    let mut guests = 0;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let key = words.next();
        let value = words.next().and_then(|it| it.parse::<u64>().ok());
        let kib = value.unwrap_or(0);
        match key {
            Some("Size:") => size = kib,
            Some("Rss:") if size == guest_kib => {
                guests += 1;
                resident.guest_kib = kib;
            }
            Some("Rss:") => resident.beyond_kib += kib,
            Some("Anonymous:") if size != guest_kib => resident.anonymous_kib += kib,
            _ => {}
        }
    }
    (guests == 1).then_some(resident)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
00400000-00452000 r-xp 00000000 00:01 12    /init
Size:                328 kB
KernelPageSize:        4 kB
Rss:                 300 kB
VmFlags: rd ex mr
7f0000000000-7f0020000000 rw-s 00000000 00:01 99    /memfd:guest-memory (deleted)
Size:             524288 kB
Rss:              150000 kB
7f0030000000-7f0030100000 rw-p 00000000 00:00 0
Size:               1024 kB
Rss:                  12 kB
Anonymous:             8 kB
";

    #[test]
    fn the_guests_ram_is_told_from_the_rest() {
        let expected = Resident {
            guest_kib: 150_000,
            beyond_kib: 312,
            anonymous_kib: 8,
        };
        assert_eq!(parse(SMAPS, 512 * 1024), Some(expected));
    }

    #[test]
    fn what_may_be_the_guests_ram_or_not_is_no_figure() {
        assert_eq!(parse(SMAPS, 256 * 1024), None);
        assert_eq!(
            parse(&SMAPS.replace("1024 kB", "524288 kB"), 512 * 1024),
            None
        );
        assert!(of(std::process::id(), 1 << 30).is_err());
    }
}
