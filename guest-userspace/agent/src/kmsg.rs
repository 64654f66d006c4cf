//! The kernel log as text.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use unwindlab_abi::LOG_GAP;

/// Actions of syslog(2): the size of the kernel's buffer, and all that it holds.
const SIZE_BUFFER: i32 = 10;
const READ_ALL: i32 = 3;
/// Bytes of the buffer that are read at most.
const MOST: usize = 1 << 24;
/// The kernel has a descriptor for each 32 bytes of its buffer (`PRB_AVGBITS`, kernel/printk/printk.c), and puts at most some
/// 60 in front of a line.
const BYTES_A_BYTE: usize = 4;
/// Longest record of `/dev/kmsg` (`PRINTK_MESSAGE_MAX` is 2048 in Linux 7.2 and 8 KiB in older
/// versions).
const RECORD_BYTES: usize = 8192;

/// Reads the whole log that the kernel still holds, as lines `<priority>[seconds.micros] text`, and in front of them a line
/// that says so if some were lost. By one system call, and not by one for each of some 300 records: each ends in an exit of
/// the witness.
///
/// # Errors
/// If the log or `kmsg` cannot be read.
pub fn read(kmsg: &Path) -> io::Result<String> {
    let size = syslog(SIZE_BUFFER, &mut [])?;
    let mut text = vec![0; size.saturating_mul(BYTES_A_BYTE).min(MOST)];
    let len = syslog(READ_ALL, &mut text)?;
    let is_cut = len.saturating_add(RECORD_BYTES) > text.len();
    text.truncate(len);
    // Behind the lines: what was lost meanwhile is told.
    let is_whole = !is_cut && first_record(kmsg)? == Some(0);
    let mut log = String::from_utf8_lossy(&text).into_owned();
    if !is_whole {
        log.insert_str(0, LOG_GAP);
    }
    Ok(log)
}

fn syslog(action: i32, into: &mut [u8]) -> io::Result<usize> {
    let len = i32::try_from(into.len()).unwrap_or(i32::MAX);
    // SAFETY: the kernel writes at most `len` bytes, which `into` has.
    let done = unsafe { libc::klogctl(action, into.as_mut_ptr().cast(), len) };
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

/// The sequence number of the first record that the kernel still holds; none where it was overwritten meanwhile, or there is none.
fn first_record(kmsg: &Path) -> io::Result<Option<u64>> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let mut record = vec![0; RECORD_BYTES];
    let len = match options.open(kmsg)?.read(&mut record) {
        Ok(len) => len,
        Err(error) => match error.raw_os_error() {
            Some(libc::EPIPE | libc::EAGAIN) => return Ok(None),
            _ => return Err(error),
        },
    };
    let record = record.get(..len).unwrap_or_default();
    Ok(sequence(&String::from_utf8_lossy(record)))
}

/// A record is `priority,sequence,micros,flags[,...];text` (Documentation/ABI/testing/dev-kmsg).
fn sequence(record: &str) -> Option<u64> {
    record.split(',').nth(1)?.parse().ok()
}

/// Cuts text into pieces of at most `limit` bytes, at line ends if possible.
#[must_use]
pub fn pieces(mut text: &str, limit: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    while !text.is_empty() {
        let longest = text.floor_char_boundary(limit.max(4));
        let (head, _) = text.split_at(longest);
        let cut = match head.rfind('\n') {
            Some(newline) if longest < text.len() => newline + 1,
            _ => longest,
        };
        let (piece, rest) = text.split_at(cut);
        pieces.push(piece);
        text = rest;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_a_sequence_number() {
        let record = "6,339,5140900,-;NET: Registered; PF_INET\n SUBSYSTEM=net\n";
        assert_eq!(sequence(record), Some(339));
        assert_eq!(sequence("no record"), None);
    }

    #[test]
    fn pieces_put_together_are_the_text() {
        for text in ["", "a\nb\nc\n", "a long line without an end", "äöü\nß\n"] {
            for limit in 0..12 {
                let pieces = pieces(text, limit);
                assert_eq!(pieces.concat(), text);
                assert!(
                    pieces
                        .iter()
                        .all(|p| !p.is_empty() && p.len() <= limit.max(4))
                );
            }
        }
        assert_eq!(pieces("ab\ncd\nef", 6), ["ab\ncd\n", "ef"]);
    }

    #[test]
    fn a_file_that_is_not_there_is_an_error() {
        assert!(first_record(Path::new("/nonexistent/kmsg")).is_err());
    }
}
