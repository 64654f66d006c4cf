//! From a specification to a kernel in the cache.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{FetchError, KIND, KernelImage, KernelSpec, LOCK, NewKernel, Origin, kernel};
use crate::cache::{Cache, CacheError, hex};
use crate::debian::apt::{Apt, AptError, Offer};
use crate::debian::deb;
use crate::debian::stock::{self, CONFIG, VMLINUZ, kernel_file};
use crate::input;
use crate::progress::Progress;

/// How long a lookup of the newest kernel stays valid.
const NEWEST_GOOD_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// Gets the kernel that `spec` names into the cache.
///
/// A stock kernel that was looked up within the last day is taken from the cache without network
/// access. If the lookup is older and the archive cannot be reached, the kernel found last is used,
/// and `progress` says so.
pub fn fetch(
    spec: &KernelSpec,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<KernelImage, FetchError> {
    match spec {
        KernelSpec::Stock { numbers } => fetch_stock(spec, numbers, cache, progress),
        KernelSpec::Path(path) => fetch_path(path, cache, progress),
    }
}

/// The kernel that `spec` names, if it is in the cache, however old the lookup. Fetches nothing.
pub fn path(spec: &KernelSpec, cache: &Cache) -> Result<Option<KernelImage>, FetchError> {
    match spec {
        KernelSpec::Stock { .. } => Ok(looked_up(spec, cache)?.map(|(image, _)| image)),
        KernelSpec::Path(path) => Ok(known_file(path, cache)?.0),
    }
}

fn fetch_stock(
    spec: &KernelSpec,
    numbers: &[u64],
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<KernelImage, FetchError> {
    let recent = || -> Result<Option<KernelImage>, FetchError> {
        Ok(looked_up(spec, cache)?
            .filter(|(_, age)| *age < NEWEST_GOOD_FOR)
            .map(|(image, _)| image))
    };
    cache.known_or_make(LOCK, progress, recent, || {
        let image = match newest(spec, numbers, cache, progress) {
            Err(FetchError::Apt(AptError::Network(reason))) => {
                return match looked_up(spec, cache)? {
                    Some((image, age)) => {
                        progress.step(&format!(
                            "cannot look for a newer {spec} ({reason}): taking {}, found {} days ago",
                            image.release,
                            age.as_secs() / (24 * 60 * 60)
                        ));
                        Ok(image)
                    }
                    None => Err(AptError::Network(reason).into()),
                };
            }
            result => result?,
        };
        cache.set_note(&spec_note(spec), &image.id)?;
        Ok(image)
    })
}

/// Looks up the newest kernel in the archive, and downloads it unless it is in the cache.
fn newest(
    spec: &KernelSpec,
    numbers: &[u64],
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<KernelImage, FetchError> {
    let apt = Apt::open(cache, progress)?;
    let try_once = || -> Result<KernelImage, FetchError> {
        let offers = apt.offers(stock::is_of_interest)?;
        let Some(offer) = stock::choose(&offers, numbers) else {
            return Err(FetchError::NoSuchKernel {
                spec: spec.clone(),
                offered: stock::series(&offers),
            });
        };
        let base = stock::companion(&offers, offer, stock::BASE);
        fetch_package(&apt, offer, base, cache, progress)
    };
    let stale = |error: &FetchError| {
        matches!(
            error,
            FetchError::Apt(AptError::Gone(_)) | FetchError::NoSuchKernel { .. }
        )
    };
    apt.with_new_lists_if(stale, progress, try_once)
}

/// Gets the kernel of the package `offer`. `base` has its configuration, if that is another package.
fn fetch_package(
    apt: &Apt,
    offer: &Offer,
    base: Option<&Offer>,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<KernelImage, FetchError> {
    let note = note_name("package", &format!("{} {}", offer.name, offer.version));
    if let Some(known) = cache.note::<String>(&note)?
        && let Some(entry) = cache.find(KIND, &known.fact)?
    {
        return Ok(kernel(entry));
    }
    progress.step(&format!("downloading {} {}", offer.name, offer.version));
    let packages: Vec<&Offer> = [offer].into_iter().chain(base).collect();
    let downloads = cache.scratch()?;
    let debs = apt.download(&packages, downloads.path(), progress)?;

    progress.step(&format!("unpacking {}", offer.name));
    let files = cache.scratch()?;
    for deb in &debs {
        deb::unpack(deb, files.path(), kernel_file)?;
    }
    let read = |name: &str| {
        let path = files.path().join(name);
        match fs::read(&path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CacheError::new(&path, error)),
        }
    };
    let image = read(VMLINUZ)?.ok_or_else(|| FetchError::EmptyPackage(offer.name.clone()))?;
    let new = NewKernel {
        file: &offer.name,
        origin: Origin::Package {
            package: offer.name.clone(),
            version: offer.version.to_string(),
            suite: offer.suite.clone(),
        },
        config: read(CONFIG)?,
        source: None,
    };
    let kernel = new.make(&image, cache, progress)?;
    cache.set_note(&note, &kernel.id)?;
    Ok(kernel)
}

fn fetch_path(
    path: &Path,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<KernelImage, FetchError> {
    let (known, note, stamp) = known_file(path, cache)?;
    if let Some(image) = known {
        return Ok(image);
    }
    progress.step(&format!("reading {}", path.display()));
    let file = input::read(path, input::IMAGE).map_err(|source| FetchError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    let _lock = cache.lock(LOCK, progress)?;
    let new = NewKernel {
        file: &path.display().to_string(),
        origin: Origin::Path(path.to_path_buf()),
        config: None,
        source: None,
    };
    let image = new.make(&file, cache, progress)?;
    cache.set_note(
        &note,
        &KnownFile {
            stamp,
            id: image.id.clone(),
        },
    )?;
    Ok(image)
}

/// A file that was read before, with a stamp that differs once the file changes.
#[derive(Debug, Serialize, Deserialize)]
struct KnownFile {
    stamp: [u64; 5],
    id: String,
}

/// The kernel made from this file, if the file is unchanged; the name of its note; its stamp.
fn known_file(
    path: &Path,
    cache: &Cache,
) -> Result<(Option<KernelImage>, String, [u64; 5]), FetchError> {
    let unreadable = |source| FetchError::Read {
        path: path.to_path_buf(),
        source,
    };
    let full = path.canonicalize().map_err(unreadable)?;
    let metadata = full.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(unreadable(io::Error::other("it is not a regular file")));
    }
    let stamp = stamp(&metadata);
    // Not `file`: notes of that kind were made before lines were kept.
    let note = note_name("image", &full.to_string_lossy());
    let known = cache.note::<KnownFile>(&note)?;
    let entry = match known.filter(|known| known.fact.stamp == stamp) {
        Some(known) => cache.find(KIND, &known.fact.id)?,
        None => None,
    };
    let image = entry.map(|entry| KernelImage {
        origin: Origin::Path(path.to_path_buf()),
        ..kernel(entry)
    });
    Ok((image, note, stamp))
}

fn stamp(metadata: &Metadata) -> [u64; 5] {
    [
        metadata.dev(),
        metadata.ino(),
        metadata.size(),
        metadata.ctime().cast_unsigned(),
        metadata.ctime_nsec().cast_unsigned(),
    ]
}

/// The kernel found last for a stock specification, and how long ago.
fn looked_up(
    spec: &KernelSpec,
    cache: &Cache,
) -> Result<Option<(KernelImage, Duration)>, FetchError> {
    let Some(note) = cache.note::<String>(&spec_note(spec))? else {
        return Ok(None);
    };
    let entry = cache.find(KIND, &note.fact)?;
    Ok(entry.map(|entry| (kernel(entry), note.age)))
}

pub(super) fn spec_note(spec: &KernelSpec) -> String {
    note_name("spec", &spec.to_string())
}

/// A file name for an arbitrary text.
fn note_name(kind: &str, text: &str) -> String {
    format!("{kind}-{}", hex(&Sha256::digest(text)))
}
