//! Complete entries: a folder is written under `tmp/`, synced, and renamed into `entries/`.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::contents::{Contents, Damage};
use super::digests::Digests;
use super::notes::{to_json, write_synced};
use super::{At, Cache, CacheError, Scratch};
use crate::progress::Progress;

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
pub(super) struct Manifest<T> {
    #[serde(flatten)]
    pub(super) contents: Contents,
    pub(super) about: T,
}

/// What came of reading every entry.
#[derive(Debug, Default)]
pub struct Verified {
    /// How many are what was published.
    pub whole: usize,
    /// The others, and what is wrong with each.
    pub damaged: Vec<String>,
}

pub(crate) const MANIFEST: &str = "entry.json";
/// Kinds of entries whose files are read once a boot of the system, for they are large, and only guests execute them. What this machine
/// executes, such as QEMU and its libraries, is read each time.
const READ_ONCE: [&str; 3] = ["kernel", "machine", "outer-kernel"];

impl Cache {
    /// The entry `KIND-ID`, if it exists and is what was published: every file is compared, and those are read whose digest
    /// is not [known](super::digests). A damaged entry is set aside, and a warning names what is wrong with it.
    pub(crate) fn find<T: DeserializeOwned>(
        &self,
        kind: &str,
        id: &str,
    ) -> Result<Option<Entry<T>>, CacheError> {
        let Some((entry, contents)) = self.read(kind, id)? else {
            return Ok(None);
        };
        let mut digests = match READ_ONCE.contains(&kind) {
            true => Digests::remembered(self)?,
            false => Digests::none(),
        };
        let Some(damage) = contents.damage(&entry.dir, &mut digests)? else {
            digests.remember(self)?;
            return Ok(Some(entry));
        };
        let aside = self.set_aside(&entry.dir, &contents)?;
        if let Some(aside) = aside {
            tracing::warn!(
                "the cache entry {} is damaged: {damage}; it is now {}, and is made again",
                entry.dir.display(),
                aside.display()
            );
        }
        Ok(None)
    }

    /// The entry `KIND-ID` as its manifest describes it, if it exists: its files may be damaged.
    pub(crate) fn unread<T: DeserializeOwned>(
        &self,
        kind: &str,
        id: &str,
    ) -> Result<Option<Entry<T>>, CacheError> {
        Ok(self.read(kind, id)?.map(|(entry, _)| entry))
    }

    /// Removes an entry, unless another process has removed it.
    pub(crate) fn remove(&self, dir: &Path) -> Result<(), CacheError> {
        // In one step out of the way, so that no entry is there by half.
        let scratch = self.scratch()?;
        match fs::rename(dir, scratch.path.join("removed")) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(CacheError::new(dir, error)),
            _ => Ok(()),
        }
    }

    /// An entry as its manifest describes it.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        kind: &str,
        id: &str,
    ) -> Result<Option<(Entry<T>, Contents)>, CacheError> {
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
        let about = manifest.about;
        Ok(Some((Entry { dir, about }, manifest.contents)))
    }

    /// Compares every entry with its manifest. Damaged ones are set aside; the result names them.
    pub(crate) fn verify_all(&self, progress: &dyn Progress) -> Result<Verified, CacheError> {
        let mut verified = Verified::default();
        for name in self.names()? {
            if progress.stopped() {
                return Err(CacheError::Stopped);
            }
            progress.step(&format!("reading {name}"));
            let dir = self.root.join("entries").join(&name);
            let text = fs::read(dir.join(MANIFEST)).unwrap_or_default();
            let damage = match serde_json::from_slice::<Manifest<serde_json::Value>>(&text) {
                Ok(manifest) => manifest.contents.damage(&dir, &mut Digests::none())?,
                Err(error) => Some(Damage::manifest(&error)),
            };
            match damage {
                None => verified.whole += 1,
                Some(damage) => {
                    self.move_away(&dir)?;
                    verified.damaged.push(format!("{name}: {damage}"));
                }
            }
        }
        Ok(verified)
    }

    pub(super) fn names(&self) -> Result<Vec<String>, CacheError> {
        let entries = self.root.join("entries");
        let mut names = Vec::new();
        for item in fs::read_dir(&entries).at(&entries)? {
            names.push(
                item.at(&entries)?
                    .file_name()
                    .to_string_lossy()
                    .into_owned(),
            );
        }
        names.sort();
        Ok(names)
    }

    /// Moves a damaged entry out of the way, unless another process has made it again meanwhile: perhaps with other contents, as a
    /// saved machine, of which its own manifest tells.
    pub(super) fn set_aside(
        &self,
        dir: &Path,
        contents: &Contents,
    ) -> Result<Option<PathBuf>, CacheError> {
        let aside = self.move_away(dir)?;
        let text = fs::read(aside.join(MANIFEST)).unwrap_or_default();
        let manifest = serde_json::from_slice::<Manifest<serde_json::Value>>(&text);
        let contents = manifest.as_ref().map_or(contents, |it| &it.contents);
        if contents.damage(&aside, &mut Digests::none())?.is_none()
            && fs::rename(&aside, dir).is_ok()
        {
            return Ok(None);
        }
        Ok(Some(aside))
    }

    /// Moves an entry to `damaged/`, in place of an earlier one of its name.
    fn move_away(&self, dir: &Path) -> Result<PathBuf, CacheError> {
        let aside = self
            .root
            .join("damaged")
            .join(dir.file_name().unwrap_or_default());
        match fs::remove_dir_all(&aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(CacheError::new(&aside, error));
            }
            _ => {}
        }
        match fs::rename(dir, &aside) {
            // Another process was faster.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(CacheError::new(&aside, error))
            }
            _ => Ok(aside),
        }
    }

    /// All entries of a kind, their files unread.
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
            found.extend(self.read(kind, id)?.map(|(entry, _)| entry));
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
        let contents = Contents::of(&scratch.path)?;
        let manifest = Manifest { contents, about };
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

pub(super) fn sync_dir(path: &Path) -> Result<(), CacheError> {
    File::open(path).and_then(|dir| dir.sync_all()).at(path)
}
