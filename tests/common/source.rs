//! Debian's source as a repository of the user's, and whether a folder is as it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::common::{said, unwindlab};

pub type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// Makes a git repository in the new folder `tree` that borrows the objects of Debian's source from
/// the cache; the id of that source's tree.
pub fn repository(tree: &Path) -> Fallible<String> {
    let built = unwindlab(&["kernel", "build", "--source", "debian"]);
    assert!(built.status.success(), "{}", said(&built));
    let cache = unwindlab_guest_kernel::Cache::open(None)?;
    let source = cache.root().join("builds").join("debian-7").join("git");
    fs::create_dir(tree)?;
    let status = Command::new("git")
        .current_dir(tree)
        .args(["init", "--quiet"])
        .status()?;
    assert!(status.success(), "git init: {status}");
    fs::write(
        tree.join(".git/objects/info/alternates"),
        format!("{}\n", source.join("objects").display()),
    )?;
    let id = Command::new("git")
        .arg("--git-dir")
        .arg(&source)
        .args(["rev-parse", "refs/unwindlab/source^{tree}"])
        .output()?;
    Ok(String::from_utf8(id.stdout)?.trim().to_owned())
}

/// Everything below a folder, with the time of its last change.
pub fn state(folder: &Path) -> Fallible<Vec<String>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(folder)? {
            let item = item?;
            let about = item.metadata()?;
            if about.is_dir() {
                folders.push(item.path());
            }
            found.push(format!("{:?} {:?}", item.path(), about.modified()?));
        }
    }
    found.sort();
    Ok(found)
}
