//! Complete entries: a folder is written under `tmp/`, synced, and renamed into `entries/`.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::notes::{to_json, write_synced};
use super::{At, Cache, CacheError, Scratch};

/// A complete entry.
#[derive(Debug, Clone)]
pub(crate) struct Entry<T> {
    /// Its folder.
    pub dir: PathBuf,
    /// What was stored with it.
    pub about: T,
}

/// What an entry's `entry.json` holds.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest<T> {
    /// Path below the entry's folder, and size in bytes, of every regular file.
    files: Vec<(PathBuf, u64)>,
    about: T,
}

pub(super) const MANIFEST: &str = "entry.json";

impl Cache {
    /// The entry `KIND-ID`, if it exists and every file has its original size.
    pub(crate) fn find<T: DeserializeOwned>(
        &self,
        kind: &str,
        id: &str,
    ) -> Result<Option<Entry<T>>, CacheError> {
        let dir = self.entry_dir(kind, id);
        let path = dir.join(MANIFEST);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CacheError::new(&path, error)),
        };
        let Ok(manifest) = serde_json::from_slice::<Manifest<T>>(&text) else {
            return Ok(None);
        };
        for (file, size) in &manifest.files {
            let path = dir.join(file);
            match fs::metadata(&path) {
                Ok(found) if found.len() == *size => {}
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(CacheError::new(&path, error)),
            }
        }
        Ok(Some(Entry {
            about: manifest.about,
            dir,
        }))
    }

    /// All complete entries of a kind.
    pub(crate) fn all<T: DeserializeOwned>(&self, kind: &str) -> Result<Vec<Entry<T>>, CacheError> {
        let entries = self.root.join("entries");
        let mut found = Vec::new();
        for item in fs::read_dir(&entries).at(&entries)? {
            let name = item.at(&entries)?.file_name();
            let Some(id) = name
                .to_str()
                .and_then(|name| name.strip_prefix(kind))
                .and_then(|name| name.strip_prefix('-'))
            else {
                continue;
            };
            found.extend(self.find(kind, id)?);
        }
        Ok(found)
    }

    /// Turns a filled scratch folder into the entry `KIND-ID`, and replaces a damaged entry of that
    /// name (an intact one would have been found by [`Cache::find`]). The caller holds the lock
    /// under which the entry is made.
    pub(crate) fn publish<T: Serialize>(
        &self,
        scratch: Scratch,
        kind: &str,
        id: &str,
        about: T,
    ) -> Result<Entry<T>, CacheError> {
        let mut files = Vec::new();
        sync_tree(&scratch.path, Path::new(""), &mut files)?;
        let manifest = Manifest { files, about };
        let path = scratch.path.join(MANIFEST);
        write_synced(&path, &to_json(&manifest).at(&path)?)?;
        sync_dir(&scratch.path)?;

        let dir = self.entry_dir(kind, id);
        if dir.symlink_metadata().is_ok() {
            let damaged = self.scratch()?;
            let grave = damaged.path.join("damaged");
            fs::rename(&dir, &grave).at(&dir)?;
        }
        fs::rename(&scratch.path, &dir).at(&dir)?;
        sync_dir(&self.root.join("entries"))?;
        Ok(Entry {
            dir,
            about: manifest.about,
        })
    }

    /// The entry of a kind whose id was noted under the kind's name.
    pub(crate) fn noted<T: DeserializeOwned>(
        &self,
        kind: &str,
    ) -> Result<Option<Entry<T>>, CacheError> {
        match self.note::<String>(kind)? {
            Some(note) => self.find(kind, &note.fact),
            None => Ok(None),
        }
    }

    fn entry_dir(&self, kind: &str, id: &str) -> PathBuf {
        self.root.join("entries").join(format!("{kind}-{id}"))
    }
}

fn sync_dir(path: &Path) -> Result<(), CacheError> {
    File::open(path).and_then(|dir| dir.sync_all()).at(path)
}

/// Syncs everything below `dir`, and lists the regular files with their sizes. Symbolic links (the
/// unpacked QEMU has some) are not followed: their targets are files of the same entry.
fn sync_tree(dir: &Path, prefix: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<(), CacheError> {
    for item in fs::read_dir(dir).at(dir)? {
        let item = item.at(dir)?;
        let path = item.path();
        let name = prefix.join(item.file_name());
        let kind = item.file_type().at(&path)?;
        if kind.is_dir() {
            sync_tree(&path, &name, files)?;
        } else if kind.is_file() {
            let file = File::open(&path).at(&path)?;
            file.sync_all().at(&path)?;
            files.push((name, file.metadata().at(&path)?.len()));
        }
    }
    files.sort();
    sync_dir(dir)
}
