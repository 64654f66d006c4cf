//! The buffers of an instance that is not mapped, by `read`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use unwindlab_abi::tracefs::SUB_BUFFER;

use super::{TracefsError, failed};

/// The sub-buffers that are there now, and no more than `most`: where the instance traces system calls, each read
/// writes what the next one finds, and there is no end.
pub(super) fn pages(file: &Path, most: usize) -> Result<Vec<u8>, TracefsError> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_NONBLOCK).open(file);
    let mut opened: File = opened.map_err(failed(file))?;
    let mut bytes = Vec::new();
    for _ in 0..most {
        let mut page = [0; SUB_BUFFER];
        match opened.read(&mut page) {
            Ok(0) => break,
            Ok(_) => bytes.extend_from_slice(&page),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(file)(error)),
        }
    }
    Ok(bytes)
}

/// What a `stats` file says of events that were not read: those still there, and those that had no room.
pub(super) fn lost(stats: &str) -> u64 {
    let counted = ["entries:", "overrun:", "commit overrun:", "dropped events:"];
    let value = |line: &str| {
        let of = |key: &&str| line.trim().strip_prefix(*key)?.trim().parse::<u64>().ok();
        counted.iter().find_map(of)
    };
    stats.lines().filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use unwindlab_abi::tracefs::sub_buffers;

    use super::*;

    #[test]
    fn lost_events_are_those_of_all_kinds() {
        let stats = "entries: 7\noverrun: 2\ncommit overrun: 1\nbytes: 9\ndropped events: 4\n";
        assert_eq!(lost(stats), 14);
    }

    /// What a read causes is no part of what was there before.
    #[test]
    fn no_more_is_read_than_a_buffer_holds() {
        assert_eq!([8, 64].map(sub_buffers), [4, 18]);
        let file = std::env::temp_dir().join("unwindlab-endless-sub-buffers");
        fs::write(&file, vec![7; 20 * SUB_BUFFER]).unwrap();
        assert_eq!(
            pages(&file, sub_buffers(64)).unwrap().len(),
            18 * SUB_BUFFER
        );
        assert_eq!(pages(&file, 0).unwrap().len(), 0);
        fs::remove_file(&file).unwrap();
    }
}
