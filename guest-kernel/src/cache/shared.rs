//! Entries that go from one cache to another.

use std::fs;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::contents::Contents;
use super::digests::Digests;
use super::entries::{MANIFEST, Manifest};
use super::{At, Cache, CacheError};

/// Most files of an entry that is taken over, and most bytes of all of them. A kernel with DWARF has some thousand files of its source.
const MOST_FILES: usize = 10_000;
const MOST_BYTES: u64 = 1 << 30;

/// What another cache is said to have is no entry.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {what}")]
#[expect(missing_docs, reason = "the message says what the fields are")]
pub struct Unfit {
    pub name: String,
    pub what: String,
}

/// A file of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    /// Its path in the entry, of plain names.
    pub name: &'a Path,
    /// Bytes.
    pub size: u64,
    /// In hexadecimal.
    pub sha256: &'a str,
}

impl Cache {
    /// The folder of an entry, and the paths of all files in it, the one that describes it last; nothing if there is no such entry.
    pub(crate) fn files_of(
        &self,
        kind: &str,
        id: &str,
    ) -> Result<Option<(PathBuf, Vec<PathBuf>)>, CacheError> {
        let Some((entry, contents)) = self.read::<Value>(kind, id)? else {
            return Ok(None);
        };
        let files = contents.files.into_iter().map(|(name, _)| name);
        let files = files.chain([PathBuf::from(MANIFEST)]).collect();
        Ok(Some((entry.dir, files)))
    }

    /// Makes the entry `KIND-ID` of what describes it in another cache. `fetch` writes each file to the path that it is given.
    /// What is there then must be what is described. The caller holds the lock under which such entries are made.
    pub(crate) fn take_over<E: From<CacheError> + From<Unfit>>(
        &self,
        kind: &str,
        id: &str,
        manifest: &[u8],
        mut fetch: impl FnMut(Part<'_>, &Path) -> Result<(), E>,
    ) -> Result<(), E> {
        let unfit = |what: String| Unfit {
            name: format!("{kind}-{id}"),
            what,
        };
        let manifest: Manifest<Value> = serde_json::from_slice(manifest)
            .map_err(|error| unfit(format!("{MANIFEST} cannot be read: {error}")))?;
        let parts = parts(&manifest.contents).map_err(unfit)?;
        let scratch = self.scratch()?;
        for part in parts {
            let into = scratch.path().join(part.name);
            let folder = into.parent().unwrap_or(scratch.path());
            fs::create_dir_all(folder).at(folder)?;
            fetch(part, &into)?;
        }
        match manifest
            .contents
            .damage(scratch.path(), &mut Digests::none())?
        {
            Some(damage) => Err(unfit(damage.to_string()).into()),
            None => {
                self.publish(scratch, kind, id, manifest.about)?;
                Ok(())
            }
        }
    }
}

/// The files that contents name; what is wrong with them if no entry can have them.
fn parts(contents: &Contents) -> Result<Vec<Part<'_>>, String> {
    let total = contents.files.iter().map(|(_, size)| *size);
    let total = total.fold(0, u64::saturating_add);
    if contents.files.len() > MOST_FILES || total > MOST_BYTES {
        let count = contents.files.len();
        return Err(format!("{count} files of {total} bytes together"));
    }
    let parts = contents.files.iter().map(|(name, size)| {
        let is_plain = |it: Component<'_>| matches!(it, Component::Normal(_));
        if !name.components().all(is_plain) || name == Path::new(MANIFEST) {
            return Err(format!("a file cannot be called {}", name.display()));
        }
        let sha256 = contents.sha256.get(name).filter(|it| is_sha256(it));
        let sha256 = sha256.ok_or_else(|| format!("{} has no SHA-256", name.display()))?;
        let size = *size;
        Ok(Part { name, size, sha256 })
    });
    parts.collect()
}

/// Whether a text is a SHA-256 in hexadecimal, as the cache writes it.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
}
