//! Whose a cache is: what lies in it is executed, so only its user may write to it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{At, CacheError};

/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;

/// Refuses a folder that somebody else owns or may write to.
pub(super) fn check(folder: &Path) -> Result<(), CacheError> {
    let metadata = fs::metadata(folder).at(folder)?;
    let ours = rustix::process::geteuid().as_raw();
    judge(folder, metadata.uid(), ours, metadata.mode())
}

fn judge(folder: &Path, owner: u32, ours: u32, mode: u32) -> Result<(), CacheError> {
    let folder = folder.to_path_buf();
    if owner != ours {
        return Err(CacheError::NotOurs {
            folder,
            owner,
            ours,
        });
    }
    match mode & OTHERS_WRITE {
        0 => Ok(()),
        _ => Err(CacheError::WritableByOthers(folder)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_of_ours_that_nobody_else_writes_to_will_do() {
        let verdict = |owner, mode| judge(Path::new("/c"), owner, 1000, mode);
        assert!(verdict(1000, 0o40755).is_ok());
        let error = verdict(1001, 0o40755).unwrap_err().to_string();
        assert!(
            error.contains("belongs to user 1001, and this is user 1000"),
            "{error}"
        );
        // Nor root's, who might be a container's.
        assert!(verdict(0, 0o40700).is_err());
        for mode in [0o40775, 0o40757, 0o41777] {
            let error = verdict(1000, mode).unwrap_err().to_string();
            assert!(error.contains("chmod go-w /c"), "{error}");
        }
    }
}
