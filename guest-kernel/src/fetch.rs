//! From a specification to a kernel in the cache.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::apt::{Apt, AptError, Offer};
use crate::cache::{At, Cache, CacheError, Entry};
use crate::deb::{self, DebError};
use crate::image::{self, ImageError};
use crate::lines;
use crate::progress::Progress;
use crate::stock::{self, KernelSpec};
use crate::symbols::{Symbols, SymbolsError};

/// A kernel in the cache, ready to boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelImage {
    /// SHA-256 of the file `vmlinux`, in hexadecimal.
    pub id: String,
    /// As `uname -r` will say.
    pub release: String,
    /// Where it came from.
    pub origin: Origin,
    /// The ELF vmlinux: its segments, without sections and debug information.
    pub vmlinux: PathBuf,
    /// Its symbols, for [`Symbols::load`].
    pub symbols: PathBuf,
    /// The configuration it was built with, where that is known.
    pub config: Option<PathBuf>,
}

/// Where a kernel came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// A package of Debian's archive.
    Package {
        /// Its name.
        package: String,
        /// Its version.
        version: String,
        /// The suite that offered it.
        suite: String,
    },
    /// A file that the user named.
    Path(PathBuf),
    /// Built from source.
    Built {
        /// The source, as in messages.
        source: String,
        /// The patches, in order.
        patches: Vec<String>,
        /// The configuration fragments on top of the base.
        config: Vec<String>,
    },
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Package {
                package,
                version,
                suite,
            } => write!(f, "{package} {version} of {suite}"),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Built {
                source,
                patches,
                config,
            } => {
                write!(f, "built from {source}")?;
                patches.iter().try_for_each(|it| write!(f, " + {it}"))?;
                config.iter().try_for_each(|it| write!(f, ", {it} config"))
            }
        }
    }
}

/// Why a kernel cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No suite has it.
    #[error("no such kernel: {spec}; the archive offers stock:VERSION for {offered}")]
    NoSuchKernel {
        /// What was asked for.
        spec: KernelSpec,
        /// The series that there are.
        offered: String,
    },
    /// A file of the user's cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A package without what its name promises.
    #[error("package {0} holds no kernel")]
    EmptyPackage(String),
    /// The file is not a kernel, or not one that can be unpacked.
    #[error("{file}: {source}")]
    Image {
        /// The file or package.
        file: String,
        /// What is wrong with it.
        source: ImageError,
    },
    /// Its symbols cannot be read.
    #[error("{file}: {source}")]
    Symbols {
        /// The file or package.
        file: String,
        /// What is wrong with it.
        source: SymbolsError,
    },
    /// The archive does not give it.
    #[error(transparent)]
    Apt(#[from] AptError),
    /// The package cannot be unpacked.
    #[error(transparent)]
    Deb(#[from] DebError),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// What is kept about a kernel in its entry.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct About {
    release: String,
    origin: Origin,
    config: bool,
}

const KIND: &str = "kernel";
/// Under which making kernels takes turns.
const LOCK: &str = "kernels";

/// How long it is remembered which kernel is the newest.
const NEWEST_GOOD_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// Gets the kernel that `spec` means into the cache.
///
/// A stock kernel that was looked up within a day is taken from the cache without a look at the
/// network. When the lookup is older and the archive cannot be reached, the last kernel found is
/// taken, and `progress` says so.
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

/// All kernels in the cache, by release.
pub fn list(cache: &Cache) -> Result<Vec<KernelImage>, FetchError> {
    let mut found: Vec<KernelImage> = cache.all(KIND)?.into_iter().map(kernel).collect();
    found.sort_by(|a, b| (&a.release, &a.id).cmp(&(&b.release, &b.id)));
    Ok(found)
}

/// The kernel that `spec` means, if it is in the cache, however old the lookup. Fetches nothing.
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
            Err(FetchError::Apt(AptError::Network(reason))) if !cache.wants_refresh() => {
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

/// Looks the newest kernel up in the archive, and downloads it unless it is in the cache.
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

/// Gets the kernel of the package `offer`; `base` has its configuration where that is apart.
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
    let made = Making {
        file: &offer.name,
        origin: Origin::Package {
            package: offer.name.clone(),
            version: offer.version.to_string(),
            suite: offer.suite.clone(),
        },
        config: read(CONFIG)?,
        source: None,
    };
    let kernel = made.make(&image, cache, progress)?;
    cache.set_note(&note, &kernel.id)?;
    Ok(kernel)
}

const VMLINUZ: &str = "vmlinuz";
const CONFIG: &str = "config";

/// Which files of a kernel package are of use, under which name.
pub(crate) fn kernel_file(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?;
    let name = path.file_name()?.to_str()?;
    let wanted = if folder == Path::new("boot") {
        [VMLINUZ, CONFIG].into_iter().find(|wanted| {
            name.strip_prefix(wanted)
                .is_some_and(|release| release.starts_with('-'))
        })
    } else if folder.parent() == Some(Path::new("usr/lib/modules")) {
        let signed = name.strip_suffix(".unsigned").unwrap_or(name);
        [VMLINUZ, CONFIG]
            .into_iter()
            .find(|wanted| signed == *wanted)
    } else {
        None
    };
    wanted.map(PathBuf::from)
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
    let file = fs::read(path).map_err(|source| FetchError::Read {
        path: path.to_path_buf(),
        source,
    })?;
    let _lock = cache.lock(LOCK, progress)?;
    let made = Making {
        file: &path.display().to_string(),
        origin: Origin::Path(path.to_path_buf()),
        config: None,
        source: None,
    };
    let image = made.make(&file, cache, progress)?;
    cache.set_note(
        &note,
        &KnownFile {
            stamp,
            id: image.id.clone(),
        },
    )?;
    Ok(image)
}

/// Enters a vmlinux or bzImage that was built from `source`, unless the cache has the same.
pub(crate) fn enter(
    image: &[u8],
    name: &str,
    origin: Origin,
    source: &Path,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<KernelImage, FetchError> {
    let _lock = cache.lock(LOCK, progress)?;
    let made = Making {
        file: name,
        origin,
        config: None,
        source: Some(source),
    };
    made.make(image, cache, progress)
}

/// The kernel with this id, if it is in the cache.
pub(crate) fn find(id: &str, cache: &Cache) -> Result<Option<KernelImage>, CacheError> {
    Ok(cache.find(KIND, id)?.map(kernel))
}

/// A file that was read before, and what tells that it has not changed since.
#[derive(Debug, Serialize, Deserialize)]
struct KnownFile {
    stamp: [u64; 5],
    id: String,
}

/// The kernel made of this file, if it is as it was then; the name of its note; its stamp.
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
    // `file` was noted before lines were kept.
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

/// A kernel on its way into the cache.
struct Making<'a> {
    /// What messages call it.
    file: &'a str,
    origin: Origin,
    config: Option<Vec<u8>>,
    /// The source tree, where it is at hand.
    source: Option<&'a Path>,
}

impl Making<'_> {
    /// Makes the entry, unless there is one with the same vmlinux. The caller holds [`LOCK`].
    fn make(
        self,
        image: &[u8],
        cache: &Cache,
        progress: &dyn Progress,
    ) -> Result<KernelImage, FetchError> {
        let vmlinux = image::vmlinux(image).map_err(|source| FetchError::Image {
            file: self.file.to_owned(),
            source,
        })?;
        let kept = image::without_sections(&vmlinux);
        let id = hex(&Sha256::digest(&kept));
        // Even if the kernel is there: it may have come from a file without DWARF.
        lines::keep(&id, &vmlinux, self.source, cache)?;
        if let Some(entry) = cache.find(KIND, &id)? {
            return Ok(KernelImage {
                origin: self.origin,
                ..kernel(entry)
            });
        }
        progress.step("reading the kernel's symbols");
        let symbols = Symbols::from_elf(&vmlinux).map_err(|source| FetchError::Symbols {
            file: self.file.to_owned(),
            source,
        })?;
        let config = self
            .config
            .or_else(|| image::config(&vmlinux).map(String::into_bytes));
        let about = About {
            release: image::release(&vmlinux).unwrap_or("unknown").to_owned(),
            origin: self.origin,
            config: config.is_some(),
        };
        let scratch = cache.scratch()?;
        let write = |name: &str, content: &[u8]| {
            let path = scratch.path().join(name);
            fs::write(&path, content).at(&path)
        };
        write("vmlinux", &kept)?;
        write("symbols", symbols.as_bytes())?;
        if let Some(config) = config {
            write(CONFIG, &config)?;
        }
        Ok(kernel(cache.publish(scratch, KIND, &id, about)?))
    }
}

/// The last kernel that was found for a stock specification, and how long ago that was.
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

fn kernel(entry: Entry<About>) -> KernelImage {
    let id = entry.dir.file_name().and_then(|name| name.to_str());
    let id = id.and_then(|name| name.split_once('-')).map(|(_, id)| id);
    KernelImage {
        id: id.unwrap_or_default().to_owned(),
        release: entry.about.release,
        origin: entry.about.origin,
        vmlinux: entry.dir.join("vmlinux"),
        symbols: entry.dir.join("symbols"),
        config: entry.about.config.then(|| entry.dir.join(CONFIG)),
    }
}

fn spec_note(spec: &KernelSpec) -> String {
    note_name("spec", &spec.to_string())
}

/// A file name that stands for any text.
fn note_name(kind: &str, text: &str) -> String {
    format!("{kind}-{}", hex(&Sha256::digest(text)))
}

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
