//! The cache folder: complete entries, named by a hash of what they hold.
//!
//! ```text
//! entries/KIND-ID/   complete entries; entry.json has size and SHA-256 of every file
//! damaged/KIND-ID/   entries that were found to be changed, the last of each name
//! notes/NAME.json    small facts, such as which entry `stock` stands for
//! locks/KEY          lock files: only one process at a time makes a thing
//! tmp/RANDOM/        entries being made, each locked by the process that makes it
//! apt/               the private apt root
//! builds/NAME/       where kernels of one source are built ([`crate::build`](mod@crate::build))
//! ```
//!
//! An entry is written under `tmp/`, synced, and renamed into `entries/`, so every entry there is
//! complete, even after a crash. Before one is used, all of its files are compared with their SHA-256;
//! [`digests`] says which are read for that. Locks are `flock`s, which the kernel releases when the process
//! dies. A folder in `tmp/` whose lock is free was therefore abandoned, and the next
//! [`Cache::open`] removes it.

mod contents;
mod digests;
mod entries;
mod error;
mod notes;
mod owner;
mod shared;
mod sparse;

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::progress::Progress;
pub(crate) use contents::taken;
pub use entries::Verified;
pub(crate) use entries::{Entry, MANIFEST};
pub(crate) use error::At;
pub use error::CacheError;
pub(crate) use notes::to_json;
pub use shared::Unfit;
pub(crate) use shared::{Part, is_sha256};
pub use sparse::next_data;

/// Names the cache folder; an empty value counts as unset.
pub const CACHE_VARIABLE: &str = "UNWINDLAB_CACHE";

/// How often a lock that another process holds is tried.
const POLL: Duration = Duration::from_millis(50);

/// The cache folder of this user.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// A lock that other processes wait for. It is released when dropped, or when the process dies.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Drop for Lock {
    /// Closing is not enough: a child that another thread is just starting holds a copy of the descriptor until
    /// it executes its program, and with it the lock (flock(2)).
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// A folder under `tmp/`, removed when dropped unless it was published.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    _lock: Lock,
}

impl Cache {
    /// Opens the cache at `place`, else at `UNWINDLAB_CACHE`, `XDG_CACHE_HOME/unwindlab` or
    /// `HOME/.cache/unwindlab`, in this order. Creates the folder if it is missing, and removes
    /// what dead processes left incomplete.
    pub fn open(place: Option<PathBuf>) -> Result<Self, CacheError> {
        let root = place
            .or_else(|| default_place(|name| std::env::var_os(name)))
            .ok_or(CacheError::NoPlace)?;
        let cache = Self { root };
        for folder in ["", "entries", "damaged", "notes", "locks", "tmp"] {
            let path = cache.root.join(folder);
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&path)
                .at(&path)?;
            owner::check(&path)?;
        }
        let tag = cache.root.join("CACHEDIR.TAG");
        if !tag.try_exists().at(&tag)? {
            fs::write(&tag, "Signature: 8a477f597d28d172789f06886806bc55\n").at(&tag)?;
        }
        cache.clear_leftovers()?;
        Ok(cache)
    }

    /// The cache folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Reads every entry. A damaged one is set aside, to `damaged/` in the cache.
    ///
    /// # Errors
    /// [`CacheError`]; [`CacheError::Stopped`] where `progress` says so.
    pub fn verify(&self, progress: &dyn Progress) -> Result<Verified, CacheError> {
        self.verify_all(progress)
    }

    /// The names of all entries, and the bytes that each takes.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn entries(&self) -> Result<Vec<(String, u64)>, CacheError> {
        let names = self.names()?.into_iter();
        names
            .map(|name| {
                let taken = contents::taken(&self.root.join("entries").join(&name))?;
                Ok((name, taken))
            })
            .collect()
    }

    /// Returns what `known` finds; else calls `make`, in one process at a time.
    pub(crate) fn known_or_make<T, E: From<CacheError>>(
        &self,
        key: &str,
        progress: &dyn Progress,
        known: impl Fn() -> Result<Option<T>, E>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if let Some(found) = known()? {
            return Ok(found);
        }
        let _lock = self.lock(key, progress)?;
        // Another process may have made it while we waited.
        match known()? {
            Some(found) => Ok(found),
            None => make(),
        }
    }

    /// Takes the lock `key`; reports when it has to wait for another process. [`CacheError::Stopped`] where `progress` says so meanwhile.
    pub(crate) fn lock(&self, key: &str, progress: &dyn Progress) -> Result<Lock, CacheError> {
        if let Some(lock) = self.try_lock(key)? {
            return Ok(lock);
        }
        let path = self.root.join("locks").join(key);
        progress.step(&format!(
            "waiting for another unwindlab that holds {}",
            path.display()
        ));
        // `flock` itself is not ended by a signal: it goes on behind the handler (SA_RESTART, signal(7)).
        loop {
            if progress.stopped() {
                return Err(CacheError::Stopped);
            }
            thread::sleep(POLL);
            if let Some(lock) = self.try_lock(key)? {
                return Ok(lock);
            }
        }
    }

    /// Takes the lock `key` together with all others that share it. Who takes it for itself alone holds it for a moment only.
    pub(crate) fn share(&self, key: &str) -> Result<Lock, CacheError> {
        let (file, path) = self.lock_file(key)?;
        file.lock_shared().at(&path)?;
        Ok(Lock(file))
    }

    /// Takes the lock `key`, unless another process holds it.
    pub(crate) fn try_lock(&self, key: &str) -> Result<Option<Lock>, CacheError> {
        let (file, path) = self.lock_file(key)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
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
        Ok(Scratch {
            path,
            _lock: Lock(lock),
        })
    }

    /// Held while a scratch folder exists whose own lock is not taken yet.
    fn lock_tmp(&self) -> Result<Lock, CacheError> {
        let path = self.root.join("locks").join("tmp");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .at(&path)?;
        file.lock().at(&path)?;
        Ok(Lock(file))
    }

    fn clear_leftovers(&self) -> Result<(), CacheError> {
        let _guard = self.lock_tmp()?;
        let tmp = self.root.join("tmp");
        for item in fs::read_dir(&tmp).at(&tmp)? {
            let path = item.at(&tmp)?.path();
            // Its owner may have removed or published it meanwhile.
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
        // After `publish` the folder no longer has this name. What cannot be removed now is
        // removed by the next `Cache::open`, because our lock is released when we die.
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

/// The bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
