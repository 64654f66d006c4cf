//! What is in a file with holes, without reading them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

/// What counts as zero or not.
const BLOCK: usize = 4096;
/// Bytes that are read in one go.
const CHUNK: usize = 256 * BLOCK;

/// Adds the length of a file, and its blocks that are not zero, each behind its place: a hole and a block of zeros are the same.
pub(super) fn add(hash: &mut Sha256, file: &File) -> io::Result<()> {
    let length = file.metadata()?.len();
    hash.update(length.to_le_bytes());
    let mut chunk = vec![0; CHUNK];
    let mut at = 0;
    while let Some((data, end)) = next_data(file, at)? {
        // Blocks lie where they lie in the file.
        at = data - data % BLOCK as u64;
        while at < end {
            let wanted = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
            let read = chunk.get_mut(..wanted).unwrap_or_default();
            file.read_exact_at(read, at)?;
            for block in read.chunks(BLOCK) {
                if block.iter().any(|byte| *byte != 0) {
                    hash.update(at.to_le_bytes());
                    hash.update(block);
                }
                at += block.len() as u64;
            }
        }
    }
    Ok(())
}

/// From where to where a file has data next, from a place on. None: there are only holes.
///
/// # Errors
/// The file cannot be searched.
pub fn next_data(file: &File, from: u64) -> io::Result<Option<(u64, u64)>> {
    match seek(file, SeekFrom::Data(from)) {
        Ok(data) => Ok(Some((data, seek(file, SeekFrom::Hole(data))?))),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
