//! Small facts by name, such as which kernel `stock` meant.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{At, Cache, CacheError};

/// A remembered fact and when it was noted.
#[derive(Debug, Clone)]
pub(crate) struct Note<T> {
    pub fact: T,
    pub age: Duration,
}

impl Cache {
    /// The fact noted under `name`, if it can still be read as a `T`.
    pub(crate) fn note<T: DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<Note<T>>, CacheError> {
        let path = self.note_path(name);
        let (text, noted) = match fs::read(&path).and_then(|text| {
            let noted = fs::metadata(&path)?.modified()?;
            Ok((text, noted))
        }) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CacheError::new(&path, error)),
        };
        // A time in the future means that the clock was set back: count the note as old.
        let age = SystemTime::now()
            .duration_since(noted)
            .unwrap_or(Duration::MAX);
        Ok(serde_json::from_slice(&text)
            .ok()
            .map(|fact| Note { fact, age }))
    }

    /// Notes a fact, and replaces an older one of this name.
    pub(crate) fn set_note<T: Serialize>(&self, name: &str, fact: &T) -> Result<(), CacheError> {
        let path = self.note_path(name);
        let scratch = self.scratch()?;
        let new = scratch.path.join("note");
        write_synced(&new, &to_json(fact).at(&path)?)?;
        fs::rename(&new, &path).at(&path)
    }

    pub(super) fn note_path(&self, name: &str) -> PathBuf {
        self.root.join("notes").join(format!("{name}.json"))
    }
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(io::Error::from)
}

pub(super) fn write_synced(path: &Path, content: &[u8]) -> Result<(), CacheError> {
    let mut file = File::create(path).at(path)?;
    file.write_all(content).at(path)?;
    file.sync_all().at(path)
}
