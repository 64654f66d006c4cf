//! Digests of files, remembered until the system boots again: a start that reads some 600 MB to compare them takes longer
//! than all else that it does.
//!
//! A digest is known as long as the file is the same one (device and inode) with the same size and the same times of its last
//! change: whoever writes to a file changes its ctime (inode(7)), which no program can set. Not seen is what changes beneath the file
//! system, such as a failing disk's bytes; the next boot reads them.
//!
//! A clock of the kernel's is coarse (`current_time()`, fs/inode.c): a file that was changed within [`SETTLED`] may be changed
//! again with the same ctime, so its digest is not remembered.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, BufReader};
use std::num::NonZero;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{At, Cache, CacheError, hex, sparse};

/// The note that has them.
const NOTE: &str = "digests";
/// Most files that are remembered; those that were read last.
const MOST: usize = 512;
/// How long a file must have been left alone.
const SETTLED: Duration = Duration::from_secs(2);
/// Most files that are read at a time.
const MOST_READERS: usize = 4;
/// Bytes that are read in one go.
const CHUNK: usize = 128 << 10;
/// Names the boot of the system (random(4)).
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// What tells one state of a file from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds of mtime and ctime.
    times: [i64; 4],
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            times: [
                metadata.mtime(),
                metadata.mtime_nsec(),
                metadata.ctime(),
                metadata.ctime_nsec(),
            ],
        }
    }

    /// Whether a later change shows in the times. A time in the future may come again.
    fn is_settled(&self, now: Duration) -> bool {
        let [mtime, _, ctime, _] = self.times;
        let last = u64::try_from(mtime.max(ctime)).unwrap_or_default();
        Duration::from_secs(last) + SETTLED < now
    }
}

/// The digests that are known.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Digests {
    boot: String,
    known: Vec<(Stamp, String)>,
    /// Whether there are new ones.
    #[serde(skip)]
    is_new: bool,
}

impl Digests {
    /// None are known, and none is remembered.
    pub(super) fn none() -> Self {
        Self::default()
    }

    /// Those that were remembered since the system booted.
    pub(super) fn remembered(cache: &Cache) -> Result<Self, CacheError> {
        let boot = fs::read_to_string(BOOT).unwrap_or_default();
        let boot = boot.trim();
        let note = cache.note::<Self>(NOTE)?.map(|note| note.fact);
        Ok(note.filter(|it| it.boot == boot).unwrap_or_else(|| Self {
            boot: boot.to_owned(),
            ..Self::default()
        }))
    }

    /// Remembers what was read meanwhile. What another process has remembered at the same time is read again some time.
    pub(super) fn remember(&mut self, cache: &Cache) -> Result<(), CacheError> {
        if !std::mem::take(&mut self.is_new) {
            return Ok(());
        }
        let excess = self.known.len().saturating_sub(MOST);
        self.known.drain(..excess);
        cache.set_note(NOTE, self)
    }

    /// The SHA-256 of a file. That of a file with holes is of its length, and of those of its blocks that are not zero, with their
    /// places.
    pub(super) fn of(&mut self, path: &Path) -> Result<String, CacheError> {
        let read = self.find_or_read(path)?;
        Ok(self.learn(read))
    }

    /// The same of many files, which are read side by side, the largest first.
    pub(super) fn of_all(
        &mut self,
        mut paths: Vec<PathBuf>,
    ) -> Result<BTreeMap<PathBuf, String>, CacheError> {
        paths.sort_by_cached_key(|path| Reverse(fs::metadata(path).map_or(0, |it| it.len())));
        let next = AtomicUsize::new(0);
        let work = || {
            let next = || paths.get(next.fetch_add(1, Ordering::Relaxed));
            std::iter::from_fn(next)
                .map(|path| Ok((path.clone(), self.find_or_read(path)?)))
                .collect()
        };
        let workers = thread::available_parallelism()
            .map_or(1, NonZero::get)
            .min(MOST_READERS)
            .min(paths.len());
        let read: Vec<Result<Vec<(PathBuf, Read)>, CacheError>> = thread::scope(|scope| {
            let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
            let own = work();
            // What a thread had taken that panicked is missing.
            others
                .into_iter()
                .filter_map(|it| it.join().ok())
                .chain([own])
                .collect()
        });
        let mut digests = BTreeMap::new();
        for (path, read) in read
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
        {
            digests.insert(path, self.learn(read));
        }
        Ok(digests)
    }

    fn find_or_read(&self, path: &Path) -> Result<Read, CacheError> {
        let mut file = File::open(path).at(path)?;
        let before = file.metadata().at(path)?;
        let stamp = Stamp::of(&before);
        if let Some((_, digest)) = self.known.iter().find(|(known, _)| *known == stamp) {
            return Ok(Read {
                digest: digest.clone(),
                new: None,
            });
        }
        let mut hash = Sha256::new();
        let digest = if is_sparse(&before) {
            sparse::add(&mut hash, &file).at(path)?;
            format!("sparse {}", hex(&hash.finalize()))
        } else {
            io::copy(&mut BufReader::with_capacity(CHUNK, &mut file), &mut hash).at(path)?;
            hex(&hash.finalize())
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let is_same = Stamp::of(&file.metadata().at(path)?) == stamp;
        let is_lasting = is_same && stamp.is_settled(now.unwrap_or_default());
        Ok(Read {
            digest,
            new: is_lasting.then_some(stamp),
        })
    }

    /// The digest of a file, which is known from now on if it may be.
    fn learn(&mut self, read: Read) -> String {
        if let Some(stamp) = read.new.filter(|_| !self.boot.is_empty()) {
            self.known.push((stamp, read.digest.clone()));
            self.is_new = true;
        }
        read.digest
    }
}

/// A file that was read, or is known.
struct Read {
    digest: String,
    /// What it is known by from now on, if it is new and may be.
    new: Option<Stamp>,
}

/// Whether a file has holes, which take no room and are not read.
pub(super) fn is_sparse(metadata: &Metadata) -> bool {
    metadata.blocks().saturating_mul(512) < metadata.len()
}

impl Cache {
    /// The SHA-256 of a file, which is read at most once a boot of the system while nobody changes it.
    ///
    /// # Errors
    /// [`CacheError`].
    pub(crate) fn digest(&self, path: &Path) -> Result<String, CacheError> {
        let mut digests = Digests::remembered(self)?;
        let digest = digests.of(path)?;
        digests.remember(self)?;
        Ok(digest)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// A file that was left alone long enough, and a cache.
    fn settled() -> (tempfile::TempDir, Cache, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "abc").unwrap();
        std::thread::sleep(SETTLED + Duration::from_millis(1_100));
        (folder, cache, path)
    }

    /// What is remembered of a file is another digest than its own, so that it shows which one is taken.
    fn lie(cache: &Cache, path: &Path) {
        let mut digests = Digests::remembered(cache).unwrap();
        digests.of(path).unwrap();
        let known = digests.known.last_mut().expect("it is remembered");
        known.1 = "lie".to_owned();
        digests.is_new = true;
        digests.remember(cache).unwrap();
        assert_eq!(cache.digest(path).unwrap(), "lie");
    }

    #[test]
    fn a_file_is_read_once_until_it_is_written_to() {
        let (_folder, cache, path) = settled();
        let digest = cache.digest(&path).unwrap();
        lie(&cache, &path);
        let file = File::options().write(true).open(&path).unwrap();
        let mtime = file.metadata().unwrap().modified().unwrap();
        // The same bytes, the same size, and the times as far as a program can set them.
        file.write_all_at(b"b", 1).unwrap();
        file.set_modified(mtime).unwrap();
        assert_eq!(cache.digest(&path).unwrap(), digest);
        file.write_all_at(b"x", 1).unwrap();
        file.set_modified(mtime).unwrap();
        assert_ne!(cache.digest(&path).unwrap(), digest);
    }

    #[test]
    fn another_file_of_the_same_name_is_read() {
        let (folder, cache, path) = settled();
        lie(&cache, &path);
        let other = folder.path().join("other");
        fs::write(&other, "abc").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_ne!(cache.digest(&path).unwrap(), "lie");
    }

    #[test]
    fn what_another_boot_has_read_counts_for_nothing() {
        let (_folder, cache, path) = settled();
        lie(&cache, &path);
        let mut note = cache.note::<Digests>(NOTE).unwrap().unwrap().fact;
        note.boot = "another".to_owned();
        cache.set_note(NOTE, &note).unwrap();
        assert_ne!(cache.digest(&path).unwrap(), "lie");
    }

    #[test]
    fn files_that_are_read_side_by_side_have_the_digests_of_each() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..9_u8)
            .map(|n| folder.path().join(n.to_string()))
            .collect();
        for (length, path) in paths.iter().enumerate() {
            fs::write(path, vec![b'x'; length]).unwrap();
        }
        let mut digests = Digests::none();
        let all = digests.of_all(paths.clone()).unwrap();
        let each = paths
            .iter()
            .map(|path| (path.clone(), digests.of(path).unwrap()));
        assert!(each.eq(all));
        let gone = folder.path().join("gone");
        assert!(digests.of_all([paths, vec![gone]].concat()).is_err());
    }

    #[test]
    fn a_file_that_was_just_written_is_not_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "abc").unwrap();
        cache.digest(&path).unwrap();
        assert!(Digests::remembered(&cache).unwrap().known.is_empty());
        let stamp = Stamp::of(&fs::metadata(&path).unwrap());
        let changed = Duration::from_secs(u64::try_from(stamp.times[2]).unwrap());
        assert!(!stamp.is_settled(changed + SETTLED));
        assert!(stamp.is_settled(changed + SETTLED + Duration::from_nanos(1)));
    }

    #[test]
    fn not_all_files_are_remembered_for_ever() {
        let (_folder, cache, path) = settled();
        let mut digests = Digests::remembered(&cache).unwrap();
        digests.of(&path).unwrap();
        let one = digests.known[0].clone();
        digests.known = vec![one; MOST + 7];
        digests.remember(&cache).unwrap();
        assert_eq!(Digests::remembered(&cache).unwrap().known.len(), MOST);
    }
}
