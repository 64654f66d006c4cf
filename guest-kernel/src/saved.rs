//! States of outer machines in the cache, from which the next one goes on instead of booting.
//!
//! A state is one sparse file that QEMU has written. It is of use only for what it was made of, so its name is a hash of all
//! that: another program, QEMU, outer kernel or command line finds none. All of them together take at most [`LIMIT`]; those go first
//! that were used longest ago. None is written where the file system is short of room.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::cache::{At, Cache, CacheError, Entry, Scratch};

/// Bytes that all states may take.
const LIMIT: u64 = 6 << 30;
/// Bytes that the file system must have left before one is written.
const ROOM: u64 = 8 << 30;
/// Entries of the cache that are states.
const KIND: &str = "machine";
/// Which states were asked for before.
const ASKED: &str = "machines-asked-for";
/// Of how many that is known.
const MOST_ASKED: usize = 64;
/// The file of an entry.
const FILE: &str = "state";

/// The states in a cache.
#[derive(Debug, Clone)]
pub struct SavedMachines {
    cache: Cache,
}

/// What is known of a state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutMachine {
    /// `uname -r` of the outer kernel.
    pub release: String,
    /// Guests in it that wait for a trial.
    pub guests: u32,
}

/// A state, opened but not compared yet with what was written.
#[derive(Debug)]
pub struct SavedMachine {
    /// Its bytes.
    pub file: File,
    /// Where they are.
    pub path: PathBuf,
    /// What is known of it.
    pub about: AboutMachine,
    id: String,
}

/// What came of removing states, and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// How many were removed.
    pub removed: usize,
    /// What they took.
    pub freed: u64,
    /// How many there are now.
    pub left: usize,
    /// What they take.
    pub taken: u64,
}

/// Room for a state that is to be written. What is not kept is removed.
#[derive(Debug)]
pub struct Room {
    scratch: Scratch,
}

impl Room {
    /// The file to write to, empty.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn file(&self) -> Result<File, CacheError> {
        let path = self.scratch.path().join(FILE);
        File::create(&path).at(&path)
    }

    /// The file as it is by now, for reading and writing.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn written(&self) -> Result<File, CacheError> {
        let path = self.scratch.path().join(FILE);
        let file = File::options().read(true).write(true).open(&path);
        file.at(&path)
    }
}

impl SavedMachines {
    /// Those in a cache.
    #[must_use]
    pub fn new(cache: Cache) -> Self {
        Self { cache }
    }

    /// The SHA-256 of a file that states depend on, read at most once a boot of the system while nobody changes it.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn digest(&self, path: &Path) -> Result<String, CacheError> {
        self.cache.digest(path)
    }

    /// The state of this name. It counts as used now.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn find(&self, id: &str) -> Result<Option<SavedMachine>, CacheError> {
        let Some(entry) = self.cache.unread::<AboutMachine>(KIND, id)? else {
            return Ok(None);
        };
        let path = entry.dir.join(FILE);
        // Another process may remove it at any time.
        let Ok(file) = File::open(&path) else {
            return Ok(None);
        };
        // When it was last used is the folder's time: the file's own must not change, by which its digest is known. One that cannot be
        // marked goes earlier than it should.
        let _ = File::open(&entry.dir).and_then(|it| it.set_modified(SystemTime::now()));
        Ok(Some(SavedMachine {
            file,
            path,
            about: entry.about,
            id: id.to_owned(),
        }))
    }

    /// Whether a state is what was written, and the one that is kept now. A damaged one is set aside, with a warning that says what is wrong.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn is_whole(&self, machine: &SavedMachine) -> Result<bool, CacheError> {
        let Some(found) = self.cache.find::<AboutMachine>(KIND, &machine.id)? else {
            return Ok(false);
        };
        // Another process may have kept one in its place, and that was compared.
        let path = found.dir.join(FILE);
        let (kept, ours) = (fs::metadata(&path), machine.file.metadata().at(&path)?);
        Ok(kept.is_ok_and(|it| (it.dev(), it.ino()) == (ours.dev(), ours.ino())))
    }

    /// Whether a state of this name was asked for before; it is from now on. What is used once is not worth its room.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn asked_before(&self, id: &str) -> Result<bool, CacheError> {
        let mut asked = match self.cache.note::<Vec<String>>(ASKED)? {
            Some(note) => note.fact,
            None => Vec::new(),
        };
        let before = asked.iter().any(|it| it == id);
        asked.retain(|it| it != id);
        asked.push(id.to_owned());
        let excess = asked.len().saturating_sub(MOST_ASKED);
        asked.drain(..excess);
        self.cache.set_note(ASKED, &asked)?;
        Ok(before)
    }

    /// Whether there is room for a state.
    ///
    /// # Errors
    /// [`CacheError::LittleSpace`] if not.
    pub fn has_room(&self) -> Result<(), CacheError> {
        let root = self.cache.root();
        let system = rustix::fs::statvfs(root).map_err(std::io::Error::from);
        let system = system.at(root)?;
        enough(root, system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// Room for a state.
    ///
    /// # Errors
    /// [`CacheError`], as [`Self::has_room`] among others.
    pub fn room(&self) -> Result<Room, CacheError> {
        self.has_room()?;
        let scratch = self.cache.scratch()?;
        Ok(Room { scratch })
    }

    /// Keeps what was written, in place of an earlier state of this name, and removes others as far as the limit wants it. One
    /// that is larger than the limit is not kept.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn keep(&self, id: &str, room: Room, about: AboutMachine) -> Result<(), CacheError> {
        let path = room.scratch.path().join(FILE);
        let size = taken(&fs::metadata(&path).at(&path)?);
        let Some(left) = LIMIT.checked_sub(size) else {
            return Ok(());
        };
        // Another process is just keeping one of this name: as good.
        let Some(_lock) = self.cache.try_lock(&format!("{KIND}-{id}"))? else {
            return Ok(());
        };
        self.remove(id)?;
        self.prune(left, None)?;
        self.cache.publish(room.scratch, KIND, id, about)?;
        Ok(())
    }

    /// Removes a state, if it is there.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn remove(&self, id: &str) -> Result<(), CacheError> {
        match self.cache.unread::<AboutMachine>(KIND, id)? {
            Some(entry) => self.cache.remove(&entry.dir),
            None => Ok(()),
        }
    }

    /// Removes those that were not used for so long, and those used longest ago until the others take at most `limit` bytes.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn prune(&self, limit: u64, unused: Option<Duration>) -> Result<Pruned, CacheError> {
        let mut states = Vec::new();
        for entry in self.cache.all::<AboutMachine>(KIND)? {
            // Gone meanwhile.
            let (Ok(metadata), Ok(folder)) =
                (fs::metadata(entry.dir.join(FILE)), fs::metadata(&entry.dir))
            else {
                continue;
            };
            let used = folder.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            states.push((used, taken(&metadata), entry));
        }
        states.sort_by_key(|(used, ..)| *used);
        let mut pruned = Pruned {
            left: states.len(),
            taken: states.iter().map(|(_, size, _)| size).sum(),
            ..Pruned::default()
        };
        for (used, size, entry) in states {
            let idle = SystemTime::now().duration_since(used).unwrap_or_default();
            if pruned.taken <= limit && unused.is_none_or(|most| idle < most) {
                continue;
            }
            self.cache.remove(&entry.dir)?;
            pruned.left -= 1;
            pruned.removed += 1;
            pruned.taken -= size;
            pruned.freed += size;
        }
        Ok(pruned)
    }

    /// The folders of all states, what is known of each, and the bytes that it takes.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn all(&self) -> Result<Vec<(PathBuf, AboutMachine, u64)>, CacheError> {
        let entries = self.cache.all::<AboutMachine>(KIND)?.into_iter();
        let size = |entry: Entry<AboutMachine>| {
            let size = fs::metadata(entry.dir.join(FILE)).map_or(0, |it| taken(&it));
            (entry.dir, entry.about, size)
        };
        Ok(entries.map(size).collect())
    }
}

/// Whether so many bytes are enough for a state.
fn enough(folder: &Path, left: u64) -> Result<(), CacheError> {
    if left >= ROOM {
        return Ok(());
    }
    Err(CacheError::LittleSpace {
        folder: folder.to_path_buf(),
        left: left >> 20,
        wanted: ROOM >> 20,
    })
}

/// Bytes that a file takes: its holes take none.
fn taken(metadata: &fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    metadata.blocks().saturating_mul(512)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, SeekFrom, Write as _};
    use std::os::unix::fs::FileExt as _;

    use super::*;

    fn machines() -> (tempfile::TempDir, SavedMachines) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(folder.path().join("cache"))).unwrap();
        (folder, SavedMachines::new(cache))
    }

    fn about(guests: u32) -> AboutMachine {
        AboutMachine {
            release: "6.12".to_owned(),
            guests,
        }
    }

    /// Keeps a state of `data` bytes behind a hole of a GiB.
    fn keep(machines: &SavedMachines, id: &str, data: usize) {
        let room = machines.room().unwrap();
        let mut file = room.file().unwrap();
        file.seek(SeekFrom::Start(1 << 30)).unwrap();
        file.write_all(&vec![7; data]).unwrap();
        machines.keep(id, room, about(1)).unwrap();
    }

    #[test]
    fn a_state_is_found_by_its_name_until_it_is_changed() {
        let (_folder, machines) = machines();
        assert!(machines.find("a").unwrap().is_none());
        keep(&machines, "a", 100_000);
        let found = machines.find("a").unwrap().expect("it is kept");
        assert_eq!(found.about, about(1));
        assert!(machines.is_whole(&found).unwrap());
        assert!(machines.find("b").unwrap().is_none());

        let (dir, ..) = machines.all().unwrap().remove(0);
        let file = File::options().write(true).open(dir.join(FILE)).unwrap();
        // In what was a hole.
        file.write_all_at(&[1], 4096).unwrap();
        assert!(!machines.is_whole(&found).unwrap());
        assert!(machines.find("a").unwrap().is_none());
    }

    #[test]
    fn a_file_system_that_is_short_of_room_gets_none() {
        let folder = Path::new("/cache");
        enough(folder, ROOM).unwrap();
        let error = enough(folder, ROOM - 1).unwrap_err().to_string();
        let expected = "/cache has 8191 MiB left, and a saved machine wants 8192 MiB: ";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn those_used_longest_ago_go_first() {
        let (_folder, machines) = machines();
        for (age, id) in [(3, "old"), (1, "young"), (2, "between")] {
            keep(&machines, id, 1 << 20);
            let (dir, ..) = { machines.all().unwrap().into_iter() }
                .find(|(dir, ..)| dir.ends_with(format!("machine-{id}")))
                .unwrap();
            let used = SystemTime::now() - Duration::from_secs(60 * age);
            File::open(dir).unwrap().set_modified(used).unwrap();
        }
        let total: u64 = machines.all().unwrap().iter().map(|it| it.2).sum();
        assert!(((3 << 20)..(4 << 20)).contains(&total), "{total}");
        let pruned = machines.prune(total - 1, None).unwrap();
        assert_eq!((pruned.removed, pruned.left), (1, 2));
        assert_eq!(pruned.taken + pruned.freed, total);
        assert!(machines.find("old").unwrap().is_none());

        // To find one is to use it: `between` is the youngest now.
        let age = Duration::from_secs(30);
        assert!(machines.find("between").unwrap().is_some());
        assert_eq!(machines.prune(u64::MAX, Some(age)).unwrap().removed, 1);
        assert!(machines.find("young").unwrap().is_none());
        assert_eq!(machines.prune(0, None).unwrap().left, 0);
        assert!(machines.all().unwrap().is_empty());
    }

    #[test]
    fn the_second_time_something_is_asked_for_is_known() {
        let (_folder, machines) = machines();
        assert!(!machines.asked_before("a").unwrap());
        assert!(!machines.asked_before("b").unwrap());
        assert!(machines.asked_before("a").unwrap());
        for number in 0..MOST_ASKED {
            assert!(!machines.asked_before(&number.to_string()).unwrap());
        }
        assert!(!machines.asked_before("b").unwrap());
    }
}
