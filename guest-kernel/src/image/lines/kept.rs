//! The lines of a kernel in the cache, and the source files that a listing by line shows.
//!
//! An entry of its own, by the kernel's id: the kernel's is complete without it, and may have been made
//! from a file without DWARF.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::Lines;
use crate::cache::{At as _, Cache, CacheError};

const KIND: &str = "lines";
const LINES: &str = "lines";
const SOURCES: &str = "sources";

/// Folders of the source tree whose files are kept: deferred unwinding, the ways into the kernel, and perf.
const FOLDERS: [&str; 4] = [
    "kernel/unwind/",
    "kernel/entry/",
    "kernel/events/",
    "arch/x86/entry/",
];

/// Whether a file is of deferred unwinding, of the ways into the kernel and out of it, or of perf.
#[must_use]
pub fn of_interest(file: &str) -> bool {
    let plain = Path::new(file)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let header = file.strip_prefix("include/linux/").is_some_and(|name| {
        let of_entry = name.contains("entry") || name.starts_with("unwind");
        of_entry && !name.contains('/') && name.ends_with(".h")
    });
    plain && (header || FOLDERS.iter().any(|folder| file.starts_with(folder)))
}

/// In the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptLines {
    dir: PathBuf,
}

impl KeptLines {
    /// Those of the kernel with this id, where it was made from a file that had DWARF.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn find(id: &str, cache: &Cache) -> Result<Option<Self>, CacheError> {
        let entry = cache.find::<()>(KIND, id)?;
        Ok(entry.map(|entry| Self { dir: entry.dir }))
    }

    /// Reads them.
    #[must_use]
    pub fn load(&self) -> Option<Lines> {
        let file = fs::File::open(self.dir.join(LINES)).ok()?;
        Lines::from_bytes(&zstd::decode_all(file).ok()?)
    }

    /// The text of a file of the source, where it was kept.
    #[must_use]
    pub fn source(&self, file: &str) -> Option<String> {
        if !of_interest(file) {
            return None;
        }
        let text = fs::read(self.dir.join(SOURCES).join(file)).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Enters those of the kernel with this id, if it has DWARF; with what is of interest of its source,
/// where that is at hand.
pub(crate) fn keep(
    id: &str,
    vmlinux: &[u8],
    source: Option<&Path>,
    cache: &Cache,
) -> Result<(), CacheError> {
    // The same kernel from a file, after it was built: its source is known already.
    if source.is_none() && KeptLines::find(id, cache)?.is_some() {
        return Ok(());
    }
    let Some(lines) = Lines::from_elf(vmlinux) else {
        return Ok(());
    };
    let Some(bytes) = lines.to_bytes() else {
        return Ok(());
    };
    let scratch = cache.scratch()?;
    let path = scratch.path().join(LINES);
    // A tenth of the size.
    let packed = zstd::encode_all(bytes.as_slice(), 3).at(&path)?;
    fs::write(&path, packed).at(&path)?;
    if let Some(source) = source {
        for file in lines.files().iter().filter(|file| of_interest(file)) {
            // One that is not there was made by the build.
            let Ok(text) = fs::read(source.join(file)) else {
                continue;
            };
            let path = scratch.path().join(SOURCES).join(file);
            let folder = path.parent().unwrap_or(&path);
            fs::create_dir_all(folder).at(folder)?;
            fs::write(&path, text).at(&path)?;
        }
    }
    cache.publish(scratch, KIND, id, ())?;
    Ok(())
}
