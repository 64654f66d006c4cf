//! The cache folder: complete entries, found by what they hold.
//!
//! ```text
//! entries/KIND-ID/   complete entries; entry.json lists every file with its size
//! notes/NAME.json    small facts, such as which entry `stock` meant, and when
//! locks/KEY          one lock file for each thing that only one process may make
//! tmp/RANDOM/        entries being made; the folder is locked by the process that makes it
//! apt/               the private apt root
//! builds/NAME/       where kernels of one source are built (crate::build)
//! ```
//!
//! An entry is written under `tmp/`, synced, and renamed into `entries/`: a name there means a
//! whole entry, whatever killed whom. Locks are `flock`s, which the kernel drops with the
//! process, so a folder in `tmp/` whose lock is free belongs to the dead and is removed by the
//! next [`Cache::open`].

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::progress::Progress;

/// Names the cache folder; an empty value counts as unset.
pub const CACHE_VARIABLE: &str = "UNWINDLAB_CACHE";

/// Why the cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Neither the caller nor the environment says where the cache is.
    #[error("no place for the cache: set {CACHE_VARIABLE}, XDG_CACHE_HOME or HOME")]
    NoPlace,
    /// The device is full.
    #[error("no space left for {}: free some, or point {CACHE_VARIABLE} elsewhere", .0.display())]
    NoSpace(PathBuf),
    /// Not ours to read or write.
    #[error(
        "no permission for {}: make it yours, or point {CACHE_VARIABLE} to a folder that is",
        .0.display()
    )]
    Permission(PathBuf),
    /// A read-only file system.
    #[error(
        "{} is on a read-only file system: point {CACHE_VARIABLE} to a writable folder",
        .0.display()
    )]
    ReadOnly(PathBuf),
    /// Anything else the file system says.
    #[error("cannot use {} in the cache: {source}", path.display())]
    Io {
        /// What was read or written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl CacheError {
    /// Sorts an error of the file system by what its user can do about it.
    pub(crate) fn new(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::NoSpace(path),
            ErrorKind::PermissionDenied => Self::Permission(path),
            ErrorKind::ReadOnlyFilesystem => Self::ReadOnly(path),
            _ => Self::Io { path, source },
        }
    }
}

/// Adds the path to an error of the file system.
pub(crate) trait At<T> {
    fn at(self, path: &Path) -> Result<T, CacheError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, CacheError> {
        self.map_err(|source| CacheError::new(path, source))
    }
}

/// The cache folder of this user.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
    refresh: bool,
}

/// A lock that other processes wait for; free again when dropped, or when the process dies.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// A folder under `tmp/`; gone when dropped, unless it was published.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    _lock: File,
}

/// A complete entry.
#[derive(Debug, Clone)]
pub(crate) struct Entry<T> {
    /// Its folder.
    pub dir: PathBuf,
    /// What its maker said about it.
    pub about: T,
}

/// What an entry's `entry.json` holds.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest<T> {
    /// Path below the entry's folder, and size in bytes, of every regular file.
    files: Vec<(PathBuf, u64)>,
    about: T,
}

/// A remembered fact and when it was noted.
#[derive(Debug, Clone)]
pub(crate) struct Note<T> {
    pub fact: T,
    pub age: Duration,
}

const MANIFEST: &str = "entry.json";

impl Cache {
    /// Opens the cache at `place`, or where `UNWINDLAB_CACHE`, `XDG_CACHE_HOME` (then its
    /// `unwindlab` folder) or `HOME` (then `.cache/unwindlab`) say, in this order. Makes the
    /// folder when it is missing and clears away what dead processes left half-made.
    pub fn open(place: Option<PathBuf>) -> Result<Self, CacheError> {
        let root = place
            .or_else(|| default_place(|name| std::env::var_os(name)))
            .ok_or(CacheError::NoPlace)?;
        let cache = Self {
            refresh: false,
            root,
        };
        for folder in ["entries", "notes", "locks", "tmp"] {
            let path = cache.root.join(folder);
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&path)
                .at(&path)?;
        }
        let tag = cache.root.join("CACHEDIR.TAG");
        if !tag.try_exists().at(&tag)? {
            fs::write(&tag, "Signature: 8a477f597d28d172789f06886806bc55\n").at(&tag)?;
        }
        cache.clear_leftovers()?;
        Ok(cache)
    }

    /// With `true`, what was remembered (which kernel `stock` is, say) is looked up anew. What
    /// is still right is not fetched again.
    #[must_use]
    pub fn with_refresh(mut self, refresh: bool) -> Self {
        self.refresh = refresh;
        self
    }

    /// The cache folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn wants_refresh(&self) -> bool {
        self.refresh
    }

    /// What `known` finds, unless the user wants a refresh; else what `make` makes, by one process
    /// at a time.
    pub(crate) fn known_or_make<T, E: From<CacheError>>(
        &self,
        key: &str,
        progress: &dyn Progress,
        known: impl Fn() -> Result<Option<T>, E>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let usable = || if self.refresh { Ok(None) } else { known() };
        if let Some(found) = usable()? {
            return Ok(found);
        }
        let _lock = self.lock(key, progress)?;
        // Another process may have made it while we waited.
        match usable()? {
            Some(found) => Ok(found),
            None => make(),
        }
    }

    /// Takes the lock `key`, and says so when it has to wait for another process.
    pub(crate) fn lock(&self, key: &str, progress: &dyn Progress) -> Result<Lock, CacheError> {
        let (file, path) = self.lock_file(key)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.step(&format!(
                    "waiting for another unwindlab that holds {}",
                    path.display()
                ));
                file.lock().at(&path)?;
            }
            Err(TryLockError::Error(error)) => return Err(CacheError::new(&path, error)),
        }
        Ok(Lock { _file: file })
    }

    /// Takes the lock `key` where nobody holds it.
    pub(crate) fn try_lock(&self, key: &str) -> Result<Option<Lock>, CacheError> {
        let (file, path) = self.lock_file(key)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(CacheError::new(&path, error)),
        }
    }

    fn lock_file(&self, key: &str) -> Result<(File, PathBuf), CacheError> {
        let path = self.root.join("locks").join(key);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .at(&path)?;
        Ok((file, path))
    }

    /// A new folder under `tmp/`, on the file system of the entries.
    pub(crate) fn scratch(&self) -> Result<Scratch, CacheError> {
        let _guard = self.lock_tmp()?;
        let path = self.root.join("tmp").join(unique_name());
        fs::create_dir(&path).at(&path)?;
        let lock = File::open(&path).at(&path)?;
        lock.lock().at(&path)?;
        Ok(Scratch { path, _lock: lock })
    }

    /// The entry `KIND-ID`, when it is there and every file has the size it was made with.
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

    /// Turns a filled scratch folder into the entry `KIND-ID`. What had this name (damaged, or
    /// [`Cache::find`] would have found it) is replaced. The caller holds the lock under which
    /// the entry is made.
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

    /// What was noted under `name`, if it still reads as one.
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
        // A time in the future (the clock was set back) is of no use: count it as old.
        let age = SystemTime::now()
            .duration_since(noted)
            .unwrap_or(Duration::MAX);
        Ok(serde_json::from_slice(&text)
            .ok()
            .map(|fact| Note { fact, age }))
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

    /// Notes a fact, in place of what was noted under this name.
    pub(crate) fn set_note<T: Serialize>(&self, name: &str, fact: &T) -> Result<(), CacheError> {
        let path = self.note_path(name);
        let scratch = self.scratch()?;
        let new = scratch.path.join("note");
        write_synced(&new, &to_json(fact).at(&path)?)?;
        fs::rename(&new, &path).at(&path)
    }

    fn entry_dir(&self, kind: &str, id: &str) -> PathBuf {
        self.root.join("entries").join(format!("{kind}-{id}"))
    }

    fn note_path(&self, name: &str) -> PathBuf {
        self.root.join("notes").join(format!("{name}.json"))
    }

    /// Held for the moment in which a scratch folder exists without its own lock.
    fn lock_tmp(&self) -> Result<File, CacheError> {
        let path = self.root.join("locks").join("tmp");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .at(&path)?;
        file.lock().at(&path)?;
        Ok(file)
    }

    fn clear_leftovers(&self) -> Result<(), CacheError> {
        let _guard = self.lock_tmp()?;
        let tmp = self.root.join("tmp");
        for item in fs::read_dir(&tmp).at(&tmp)? {
            let path = item.at(&tmp)?.path();
            // Its owner may remove it meanwhile, or publish it: then there is nothing to do.
            let Ok(folder) = File::open(&path) else {
                continue;
            };
            match folder.try_lock() {
                Ok(()) => match fs::remove_dir_all(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(CacheError::new(&path, error));
                    }
                    _ => {}
                },
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(CacheError::new(&path, error)),
            }
        }
        Ok(())
    }
}

impl Scratch {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // After `publish` nothing has this name any more. What cannot be removed now is
        // removed by the next `Cache::open`: the lock dies with us.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn default_place(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set(CACHE_VARIABLE)
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("unwindlab")))
        .or_else(|| set("HOME").map(|home| home.join(".cache").join("unwindlab")))
}

/// A name that no other process and no earlier call of this one uses.
fn unique_name() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    format!("{}-{now:x}-{call}", std::process::id())
}

fn to_json<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(io::Error::from)
}

fn write_synced(path: &Path, content: &[u8]) -> Result<(), CacheError> {
    let mut file = File::create(path).at(path)?;
    file.write_all(content).at(path)?;
    file.sync_all().at(path)
}

fn sync_dir(path: &Path) -> Result<(), CacheError> {
    File::open(path).and_then(|dir| dir.sync_all()).at(path)
}

/// Syncs all below `dir`, and lists the regular files with their sizes. Symbolic links (the
/// unpacked QEMU has some) are left as they are: their targets are files of the same entry.
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

#[cfg(test)]
mod tests;
