//! The distribution's perf as a part of the guest's initial file system: a second archive behind that
//! of the agent, for the scenarios that use it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use unwindlab_abi::PERF_TOOL_DIR;
use unwindlab_guest_kernel::{closure, perf_tool};

use super::cpio::Archive;

/// Where the outer machine's initramfs has it.
pub const FILE: &str = "/perf-tool.cpio";

/// Makes the archive of an unpacked perf. A library that others are linked with by another name
/// goes in once, by that name.
///
/// # Errors
/// When a file cannot be read, named in the error.
pub fn archive(dir: &Path) -> io::Result<Vec<u8>> {
    let named = |path: &Path| {
        let path = path.to_path_buf();
        move |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()))
    };
    let root = PERF_TOOL_DIR.trim_start_matches('/');
    let libraries = dir.join(closure::LIBRARIES);
    let mut names = BTreeSet::new();
    let mut targets = BTreeSet::new();
    for item in fs::read_dir(&libraries).map_err(named(&libraries))? {
        let item = item?;
        names.insert(item.file_name());
        if let Ok(target) = fs::read_link(item.path()) {
            targets.insert(target.into_os_string());
        }
    }
    let program = dir.join(perf_tool::PROGRAM);
    let mut archive = Archive::default()
        .directory(root)?
        .directory(&format!("{root}/{}", closure::LIBRARIES))?
        .file(
            &format!("{root}/{}", perf_tool::PROGRAM),
            &fs::read(&program).map_err(named(&program))?,
        )?;
    for name in names.difference(&targets) {
        let path = libraries.join(name);
        let name = name.to_string_lossy();
        let content = fs::read(&path).map_err(named(&path))?;
        archive = archive.file(&format!("{root}/{}/{name}", closure::LIBRARIES), &content)?;
    }
    archive.finish()
}

/// An initial file system with another one behind it: archives start at multiples of four bytes, and
/// zeros between them are skipped (Documentation/driver-api/early-userspace/buffer-format.rst).
#[must_use]
pub fn behind(first: &[u8], second: &[u8]) -> Vec<u8> {
    let mut both = first.to_vec();
    both.resize(first.len().next_multiple_of(4), 0);
    both.extend_from_slice(second);
    both
}

#[cfg(test)]
mod tests {
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
        assert!(error.to_string().contains("/nonexistent/lib"), "{error}");
    }
}
