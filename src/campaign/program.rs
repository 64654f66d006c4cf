//! Which build of this program makes trials and judges them.

use std::fs::File;
use std::io;

use sha2::{Digest as _, Sha256};

/// SHA-256 of the running program, in hexadecimal digits.
pub(super) fn hash() -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open("/proc/self/exe")?, &mut hasher)?;
    Ok(format!("{:x}", hasher.finalize()))
}
