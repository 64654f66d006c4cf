//! A program of the distribution with its libraries, as a part of an initial file system.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use unwindlab_guest_kernel::closure::LIBRARIES;

use crate::driver::image::cpio::Archive;

/// Adds the folder `root` with these programs of `dir`, their libraries, and everything in these
/// other folders. A library with several names goes in once, by the name that programs look for.
///
/// # Errors
/// When a file cannot be read, named in the error.
pub fn add(
    archive: Archive,
    root: &str,
    dir: &Path,
    programs: &[&str],
    folders: &[&str],
) -> io::Result<Archive> {
    let root = root.trim_start_matches('/');
    let mut archive = archive.directory(root)?;
    for program in programs {
        archive = archive.file(&format!("{root}/{program}"), &read(&dir.join(program))?)?;
    }
    for folder in folders.iter().chain([&LIBRARIES]) {
        archive = archive.directory(&format!("{root}/{folder}"))?;
        for name in names(&dir.join(folder))? {
            let content = read(&dir.join(folder).join(&name))?;
            archive = archive.file(&format!("{root}/{folder}/{name}"), &content)?;
        }
    }
    Ok(archive)
}

/// The names in a folder, except files that another name links to.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = BTreeSet::new();
    let mut targets = BTreeSet::new();
    for item in fs::read_dir(folder).map_err(named(folder))? {
        let item = item?;
        names.insert(item.file_name());
        if let Ok(target) = fs::read_link(item.path()) {
            targets.insert(target.into_os_string());
        }
    }
    let kept = names.difference(&targets);
    Ok(kept
        .map(|name| name.to_string_lossy().into_owned())
        .collect())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(named(path))
}

fn named(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |e| io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}
