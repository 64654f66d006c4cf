//! The kernel log as text.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Longest record of `/dev/kmsg` (`PRINTK_MESSAGE_MAX` is 2048 in Linux 7.2 and 8 KiB in older
/// versions).
const RECORD_BYTES: usize = 8192;

/// Reads the whole log that the kernel still holds, as lines `<level>[seconds.micros] text`.
///
/// # Errors
/// If `/dev/kmsg` cannot be opened or read.
pub fn read(path: &Path) -> io::Result<String> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let mut file = options.open(path)?;
    let mut log = String::new();
    let mut record = vec![0; RECORD_BYTES];
    loop {
        // Each read returns one record.
        match file.read(&mut record) {
            Ok(0) => return Ok(log),
            Ok(len) => {
                let bytes = record.get(..len).unwrap_or_default();
                push_line(&mut log, &String::from_utf8_lossy(bytes));
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(log),
                Some(libc::EPIPE) => log.push_str("(lines lost: the kernel's log was full)\n"),
                Some(libc::EINTR) => {}
                _ => return Err(error),
            },
        }
    }
}

/// A record is `priority,sequence,micros,flags[,...];text`, then lines of properties
/// (Documentation/ABI/testing/dev-kmsg). Other text is kept unchanged.
fn push_line(log: &mut String, record: &str) {
    let first = record.lines().next().unwrap_or_default();
    log.push_str(&readable(first).unwrap_or_else(|| first.to_owned()));
    log.push('\n');
}

fn readable(line: &str) -> Option<String> {
    let (head, text) = line.split_once(';')?;
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let micros: u64 = fields.nth(1)?.parse().ok()?;
    let (level, seconds, rest) = (priority & 7, micros / 1_000_000, micros % 1_000_000);
    Some(format!("<{level}>[{seconds:5}.{rest:06}] {text}"))
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
    fn records_become_lines() {
        let mut log = String::new();
        push_line(
            &mut log,
            "6,339,5140900,-;NET: Registered; PF_INET\n SUBSYSTEM=net\n",
        );
        push_line(&mut log, "30,340,12000001,c,caller=T1;from user space\n");
        push_line(&mut log, "no record");
        assert_eq!(
            log,
            "<6>[    5.140900] NET: Registered; PF_INET\n<6>[   12.000001] from user space\nno record\n"
        );
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
        assert!(read(Path::new("/nonexistent/kmsg")).is_err());
    }
}
