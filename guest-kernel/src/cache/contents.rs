//! What an entry's files are, to the byte.
//!
//! This finds an entry that a failing disk, another program or a mistake has changed. It does not
//! stop somebody who may write to the cache: they can change the manifest with it. Therefore a cache that
//! others may write to is refused ([`super::owner`]).

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::digests::{Digests, is_sparse};
use super::entries::{MANIFEST, sync_dir};
use super::{At, CacheError};

/// All files below a folder but for the manifest, by their path in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Contents {
    /// Size in bytes of every regular file.
    pub(super) files: Vec<(PathBuf, u64)>,
    /// SHA-256 of every regular file, and what every symbolic link says.
    pub(super) sha256: BTreeMap<PathBuf, String>,
}

/// How an entry differs from what was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Damage {
    file: PathBuf,
    what: String,
}

impl Damage {
    pub(super) fn manifest(error: &serde_json::Error) -> Self {
        Self {
            file: MANIFEST.into(),
            what: format!("cannot be read: {error}"),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.file.display(), self.what)
    }
}

impl Contents {
    /// Reads and syncs everything below a folder.
    pub(super) fn of(dir: &Path) -> Result<Self, CacheError> {
        let mut contents = Self {
            files: Vec::new(),
            sha256: BTreeMap::new(),
        };
        each(dir, Path::new(""), &mut |name, path, kind| {
            match kind {
                Kind::Folder => sync_dir(path)?,
                Kind::File => {
                    let file = File::open(path).at(path)?;
                    let metadata = file.metadata().at(path)?;
                    // A saved machine: large, and if a crash of the system damages it, that is found when it is read.
                    if !is_sparse(&metadata) {
                        file.sync_all().at(path)?;
                    }
                    let size = metadata.len();
                    contents.files.push((name.to_path_buf(), size));
                }
                Kind::Link | Kind::Other => {}
            }
            if let Some(digest) = digest(path, kind, &mut Digests::none())? {
                contents.sha256.insert(name.to_path_buf(), digest);
            }
            Ok(())
        })?;
        contents.files.sort();
        sync_dir(dir)?;
        Ok(contents)
    }

    /// The first difference between a folder and what these say, if there is one. Files whose digest is known are not read.
    pub(super) fn damage(
        &self,
        dir: &Path,
        digests: &mut Digests,
    ) -> Result<Option<Damage>, CacheError> {
        let damage = |file: &Path, what: String| {
            let file = file.to_path_buf();
            Some(Damage { file, what })
        };
        for (name, size) in &self.files {
            match fs::symlink_metadata(dir.join(name)) {
                Ok(found) if found.len() == *size => {}
                Ok(found) => {
                    let what = format!("has {} bytes instead of {size}", found.len());
                    return Ok(damage(name, what));
                }
                Err(error) => return Ok(damage(name, format!("cannot be read: {error}"))),
            }
        }
        let mut paths = Vec::new();
        each(dir, Path::new(""), &mut |_, path, kind| {
            paths.extend(matches!(kind, Kind::File).then(|| path.to_path_buf()));
            Ok(())
        })?;
        let read = digests.of_all(paths)?;
        let mut left = self.sha256.clone();
        let mut found = None;
        each(dir, Path::new(""), &mut |name, path, kind| {
            let digest = match read.get(path) {
                Some(digest) => Some(digest.clone()),
                None => digest(path, kind, digests)?,
            };
            let known = left.remove(name);
            let what = match (&digest, &known) {
                _ if found.is_some() || matches!(kind, Kind::Folder) || digest == known => None,
                (_, None) => Some("does not belong to it".to_owned()),
                (Some(digest), Some(known)) => {
                    let short = |text: &str| text.chars().take(12).collect::<String>();
                    let (digest, known) = (short(digest), short(known));
                    Some(format!("has the SHA-256 {digest}... instead of {known}..."))
                }
                (None, Some(_)) => Some("is no regular file".to_owned()),
            };
            if let Some(what) = what {
                found = damage(name, what);
            }
            Ok(())
        })?;
        let missing = left.into_keys().next();
        Ok(found.or_else(|| missing.and_then(|name| damage(&name, "is missing".to_owned()))))
    }
}

/// Bytes that the files below a folder take: holes take none. What is removed meanwhile takes none either.
pub(crate) fn taken(dir: &Path) -> Result<u64, CacheError> {
    let mut sum = 0;
    match each(dir, Path::new(""), &mut |_, path, _| {
        sum += fs::symlink_metadata(path).map_or(0, |it| it.blocks().saturating_mul(512));
        Ok(())
    }) {
        Err(CacheError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(sum),
        other => other.map(|()| sum),
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Folder,
    File,
    Link,
    Other,
}

/// Calls `visit` for everything below `dir` but the manifest: its path in the entry, and on the system. Links are
/// not followed.
fn each(
    dir: &Path,
    prefix: &Path,
    visit: &mut dyn FnMut(&Path, &Path, Kind) -> Result<(), CacheError>,
) -> Result<(), CacheError> {
    for item in fs::read_dir(dir).at(dir)? {
        let item = item.at(dir)?;
        let path = item.path();
        let name = prefix.join(item.file_name());
        if name == Path::new(MANIFEST) {
            continue;
        }
        let kind = item.file_type().at(&path)?;
        if kind.is_dir() {
            each(&path, &name, visit)?;
            visit(&name, &path, Kind::Folder)?;
        } else if kind.is_file() {
            visit(&name, &path, Kind::File)?;
        } else if kind.is_symlink() {
            visit(&name, &path, Kind::Link)?;
        } else {
            visit(&name, &path, Kind::Other)?;
        }
    }
    Ok(())
}

/// The SHA-256 of a file, or what a link says.
fn digest(path: &Path, kind: Kind, digests: &mut Digests) -> Result<Option<String>, CacheError> {
    Ok(match kind {
        Kind::File => Some(digests.of(path)?),
        Kind::Link => {
            let target = fs::read_link(path).at(path)?;
            Some(format!("-> {}", target.display()))
        }
        Kind::Folder | Kind::Other => None,
    })
}
