//! Kernels in the cache: how they get there, and what is stored with them.

mod fetch;
pub(crate) mod shared;
mod spec;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cache::{At, Cache, CacheError, Entry, hex};
use crate::debian::apt::AptError;
use crate::debian::deb::DebError;
use crate::debian::stock::CONFIG;
use crate::image::lines;
use crate::image::symbols::{Symbols, SymbolsError};
use crate::image::{self, ImageError};
use crate::progress::Progress;
pub use fetch::{fetch, path};
pub use spec::{KernelSpec, SpecError};

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

/// Why a kernel cannot be fetched.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum FetchError {
    /// No suite has it.
    #[error("no such kernel: {spec}; the archive offers stock:VERSION for {offered}")]
    NoSuchKernel { spec: KernelSpec, offered: String },
    /// A file of the user's cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The package does not contain a kernel.
    #[error("package {0} holds no kernel")]
    EmptyPackage(String),
    /// The file is not a kernel, or cannot be unpacked.
    #[error("{file}: {source}")]
    Image { file: String, source: ImageError },
    /// Its symbols cannot be read.
    #[error("{file}: {source}")]
    Symbols { file: String, source: SymbolsError },
    /// It cannot be fetched from the archive.
    #[error(transparent)]
    Apt(#[from] AptError),
    /// The package cannot be unpacked.
    #[error(transparent)]
    Deb(#[from] DebError),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// What a kernel's entry says about it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct About {
    release: String,
    origin: Origin,
    config: bool,
}

const KIND: &str = "kernel";
/// The lock under which kernels are made.
const LOCK: &str = "kernels";

/// All kernels in the cache, by release.
pub fn list(cache: &Cache) -> Result<Vec<KernelImage>, FetchError> {
    let mut found: Vec<KernelImage> = cache.all(KIND)?.into_iter().map(kernel).collect();
    found.sort_by(|a, b| (&a.release, &a.id).cmp(&(&b.release, &b.id)));
    Ok(found)
}

/// Adds a vmlinux or bzImage that was built from `source`, unless the cache has the same.
pub(crate) fn enter(
    image: &[u8],
    name: &str,
    origin: Origin,
    source: &Path,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<KernelImage, FetchError> {
    let _lock = cache.lock(LOCK, progress)?;
    let new = NewKernel {
        file: name,
        origin,
        config: None,
        source: Some(source),
    };
    new.make(image, cache, progress)
}

/// The kernel with this id, if it is in the cache.
pub(crate) fn find(id: &str, cache: &Cache) -> Result<Option<KernelImage>, CacheError> {
    Ok(cache.find(KIND, id)?.map(kernel))
}

/// Removes the kernel with this id from the cache, if it is there. Whoever asks for it has it made again.
///
/// # Errors
/// [`CacheError`].
pub fn remove(id: &str, cache: &Cache) -> Result<(), CacheError> {
    match cache.unread::<About>(KIND, id)? {
        Some(entry) => cache.remove(&entry.dir),
        None => Ok(()),
    }
}

/// A kernel on its way into the cache.
struct NewKernel<'a> {
    /// What messages call it.
    file: &'a str,
    origin: Origin,
    config: Option<Vec<u8>>,
    /// The source tree, if it is available.
    source: Option<&'a Path>,
}

impl NewKernel<'_> {
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
        // Even if the cache has the kernel: it may have come from a file without DWARF.
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

#[cfg(test)]
mod tests;
