//! The distribution's perf as a part of the guest's initial file system: a second archive behind
//! the agent's, for the scenarios that use it.

use std::io;
use std::path::Path;

use unwindlab_abi::PERF_TOOL_DIR;
use unwindlab_guest_kernel::perf_tool;

use super::closure;
use crate::driver::image::cpio::Archive;

/// Its path in the outer machine's initramfs.
pub const FILE: &str = "/perf-tool.cpio";

/// Makes the archive of an unpacked perf.
///
/// # Errors
/// When a file cannot be read, named in the error.
pub fn archive(dir: &Path) -> io::Result<Vec<u8>> {
    let programs = [perf_tool::PROGRAM];
    closure::add(Archive::default(), PERF_TOOL_DIR, dir, &programs, &[])?.finish()
}

/// An initial file system with another one behind it. Archives start at multiples of four bytes;
/// the kernel skips zeros between them
/// (Documentation/driver-api/early-userspace/buffer-format.rst).
#[must_use]
pub fn behind(first: &[u8], second: &[u8]) -> Vec<u8> {
    let mut both = first.to_vec();
    both.resize(first.len().next_multiple_of(4), 0);
    both.extend_from_slice(second);
    both
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_library_goes_in_once_by_the_name_that_is_looked_for() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib");
        fs::create_dir(&lib).unwrap();
        fs::write(dir.path().join("perf"), "program").unwrap();
        fs::write(lib.join("libx.so.1.2"), "library").unwrap();
        std::os::unix::fs::symlink("libx.so.1.2", lib.join("libx.so.1")).unwrap();
        let archive = archive(dir.path()).unwrap();
        let text = String::from_utf8_lossy(&archive);
        assert!(text.contains("perf/perf\0") && text.contains("perf/lib/libx.so.1\0"));
        assert!(!text.contains("libx.so.1.2"));
        assert_eq!(text.matches("library").count(), 1);
    }

    #[test]
    fn a_second_archive_starts_at_a_word() {
        assert_eq!(behind(b"first", b"second"), b"first\0\0\0second");
        assert_eq!(behind(b"four", b"x"), b"fourx");
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = archive(Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/perf"), "{error}");
    }
}
