//! What the folders take in which kernels are built. They are no entries of the cache.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The folder of them in the cache.
const BUILDS: &str = "builds";

/// The names of the build folders below this cache, and the bytes that each takes.
pub(super) fn builds(cache: &Path) -> io::Result<Vec<(String, u64)>> {
    let folder = cache.join(BUILDS);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut builds = Vec::new();
    for item in fs::read_dir(folder)? {
        let item = item?;
        let name = item.file_name().to_string_lossy().into_owned();
        builds.push((format!("{BUILDS}/{name}"), taken(&item.path())));
    }
    builds.sort();
    Ok(builds)
}

/// What lies below a path takes so many bytes. A build may go on there: what is gone meanwhile takes none. Links are
/// not followed.
fn taken(path: &Path) -> u64 {
    let mut left = vec![path.to_owned()];
    let mut sum = 0_u64;
    while let Some(path) = left.pop() {
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        sum = sum.saturating_add(metadata.blocks().saturating_mul(512));
        if metadata.is_dir() {
            let items = fs::read_dir(&path).into_iter().flatten().flatten();
            left.extend(items.map(|it| it.path()));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_build_folder_is_listed_with_what_lies_in_it() {
        let cache = tempfile::tempdir().unwrap();
        assert!(builds(cache.path()).unwrap().is_empty());
        for name in ["tree-2", "debian-7"] {
            fs::create_dir_all(cache.path().join(BUILDS).join(name).join("src")).unwrap();
        }
        let object = cache.path().join("builds/debian-7/src/x.o");
        fs::write(object, vec![1; 1 << 20]).unwrap();
        let builds = builds(cache.path()).unwrap();
        let names: Vec<&str> = builds.iter().map(|it| it.0.as_str()).collect();
        assert_eq!(names, ["builds/debian-7", "builds/tree-2"]);
        assert!(
            builds[0].1 >= 1 << 20 && builds[1].1 < 1 << 20,
            "{builds:?}"
        );
    }
}
