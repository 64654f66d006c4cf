//! The outer kernel, which QEMU or Bochs runs when the KVM host is emulated.
//!
//! It is the newest cloud kernel of Debian stable. Any kernel with kvm_amd and kvm_intel would do; this one
//! changes least. Once fetched it is kept.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cache::{At, Cache, CacheError, Entry, hex};
use crate::debian::apt::{Apt, AptError, Offer, STABLE};
use crate::debian::deb::{self, DebError};
use crate::debian::modules::{self, Module, ModulesError};
use crate::debian::stock::{self, kernel_file};
use crate::image::{self, ImageError};
use crate::progress::Progress;

/// The kernel of the emulated KVM host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OuterKernel {
    /// The ELF vmlinux, with a PVH note: QEMU's `-kernel` accepts it.
    pub vmlinux: PathBuf,
    /// As `uname -r` will say.
    pub release: String,
    /// Package and version, for messages.
    pub origin: String,
    /// The modules that make /dev/kvm on an AMD CPU, decompressed, in the order of loading.
    pub modules: Vec<PathBuf>,
    /// As `modules`, on an Intel CPU.
    pub intel_modules: Vec<PathBuf>,
}

/// Why there is no outer kernel.
#[derive(Debug, thiserror::Error)]
pub enum OuterError {
    /// The archive has none.
    #[error("no outer kernel: Debian {STABLE} offers no cloud kernel for amd64")]
    NotOffered,
    /// The package lacks the kernel.
    #[error("no outer kernel: package {0} holds no kernel")]
    EmptyPackage(String),
    /// It cannot be unpacked.
    #[error("no outer kernel: {0}")]
    Image(#[from] ImageError),
    /// QEMU cannot start it.
    #[error("no outer kernel: {0} has no PVH entry point")]
    NoPvh(String),
    /// Its modules are missing or damaged.
    #[error("no outer kernel: {0}")]
    Modules(#[from] ModulesError),
    /// It cannot be fetched.
    #[error(transparent)]
    Apt(#[from] AptError),
    /// The package cannot be unpacked.
    #[error(transparent)]
    Deb(#[from] DebError),
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

#[derive(Debug, Serialize, Deserialize)]
struct About {
    release: String,
    origin: String,
    /// File names below the entry, in the order of loading.
    modules: Vec<String>,
    intel_modules: Vec<String>,
}

/// An entry of the kind `outer`, which earlier versions made, has no `kvm_intel`.
const KIND: &str = "outer-kernel";
/// The modules for /dev/kvm on an AMD CPU and on an Intel CPU. Their dependencies are added.
const WANTED: [&str; 2] = ["kvm_amd", "kvm_intel"];

/// The outer kernel, from the cache or from the archive.
pub fn outer_kernel(cache: &Cache, progress: &dyn Progress) -> Result<OuterKernel, OuterError> {
    cache.known_or_make(
        KIND,
        progress,
        || find(cache),
        || {
            let apt = Apt::open(cache, progress)?;
            let gone = |error: &OuterError| matches!(error, OuterError::Apt(AptError::Gone(_)));
            let entry = apt.with_new_lists_if(gone, progress, || fetch(&apt, cache, progress))?;
            Ok(outer(entry))
        },
    )
}

/// The outer kernel in the cache, if there is one. Fetches nothing.
pub fn find(cache: &Cache) -> Result<Option<OuterKernel>, OuterError> {
    Ok(cache.noted(KIND)?.map(outer))
}

fn outer(entry: Entry<About>) -> OuterKernel {
    let paths = |names: &[String]| names.iter().map(|name| entry.dir.join(name)).collect();
    OuterKernel {
        vmlinux: entry.dir.join("vmlinux"),
        modules: paths(&entry.about.modules),
        intel_modules: paths(&entry.about.intel_modules),
        release: entry.about.release,
        origin: entry.about.origin,
    }
}

fn fetch(apt: &Apt, cache: &Cache, progress: &dyn Progress) -> Result<Entry<About>, OuterError> {
    let mut offers = apt.offers(stock::is_of_interest)?;
    offers.retain(|offer| offer.suite == STABLE);
    let packages = packages(&offers).ok_or(OuterError::NotOffered)?;
    let kernel = *packages.first().ok_or(OuterError::NotOffered)?;
    let origin = format!("{} {} of {STABLE}", kernel.name, kernel.version);

    progress.step(&format!("downloading the outer kernel, {origin}"));
    let downloads = cache.scratch()?;
    let debs = apt.download(&packages, downloads.path(), progress)?;

    progress.step("unpacking the outer kernel");
    let files = cache.scratch()?;
    for deb in &debs {
        deb::unpack(deb, files.path(), |path| {
            kernel_file(path).or_else(|| module_file(path))
        })?;
    }
    make(files.path(), kernel, origin, cache)
}

/// The package with the newest kernel, and the one with its modules, where that is another.
fn packages(offers: &[Offer]) -> Option<Vec<&Offer>> {
    let kernel = stock::choose(offers, &[])?;
    let modules = stock::companion(offers, kernel, stock::MODULES);
    Some([kernel].into_iter().chain(modules).collect())
}

/// Where a module goes: into one folder, whatever its path in the package.
fn module_file(path: &Path) -> Option<PathBuf> {
    let in_place = path.starts_with("usr/lib/modules") || path.starts_with("lib/modules");
    (in_place && modules::name_of(path).is_some())
        .then(|| path.file_name().map(|name| Path::new("modules").join(name)))
        .flatten()
}

/// Makes the entry from the unpacked `files`.
fn make(
    files: &Path,
    package: &Offer,
    origin: String,
    cache: &Cache,
) -> Result<Entry<About>, OuterError> {
    let vmlinuz = files.join("vmlinuz");
    if !vmlinuz.exists() {
        return Err(OuterError::EmptyPackage(package.name.clone()));
    }
    let image = fs::read(&vmlinuz).at(&vmlinuz)?;
    let vmlinux = image::vmlinux(&image)?;
    let vmlinux = image::without_sections(&vmlinux);
    if !image::has_pvh_entry(&vmlinux) {
        return Err(OuterError::NoPvh(origin));
    }
    let mut available = BTreeMap::new();
    let folder = files.join("modules");
    if folder.exists() {
        for item in fs::read_dir(&folder).at(&folder)? {
            let path = item.at(&folder)?.path();
            available.extend(modules::name_of(&path).map(|name| (name, path)));
        }
    }
    let [amd, intel] = WANTED.map(|wanted| modules::load_order(&[wanted], &available));
    let (amd, intel) = (amd?, intel?);

    let scratch = cache.scratch()?;
    let write = |name: &str, content: &[u8]| {
        let path = scratch.path().join(name);
        fs::write(&path, content).at(&path)
    };
    let mut digest = Sha256::new_with_prefix(&vmlinux);
    write("vmlinux", &vmlinux)?;
    // What both need is written twice, and is one file.
    let mut keep = |modules: &[Module]| -> Result<Vec<String>, CacheError> {
        let mut names = Vec::new();
        for module in modules {
            let name = format!("{}.ko", module.name);
            write(&name, &module.content)?;
            digest.update(&module.content);
            names.push(name);
        }
        Ok(names)
    };
    let (modules, intel_modules) = (keep(&amd)?, keep(&intel)?);
    let about = About {
        release: image::release(&vmlinux).unwrap_or("unknown").to_owned(),
        origin,
        modules,
        intel_modules,
    };
    let id = hex(&digest.finalize());
    let entry = match cache.find(KIND, &id)? {
        Some(entry) => entry,
        None => cache.publish(scratch, KIND, &id, about)?,
    };
    cache.set_note(KIND, &id)?;
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debian::version::Version;

    fn offer(name: &str, version: &str) -> Offer {
        Offer {
            name: name.to_owned(),
            version: Version::new(version),
            suite: STABLE.to_owned(),
        }
    }

    #[test]
    fn takes_the_modules_where_they_are_apart() {
        let whole = [
            offer("linux-image-6.12.94+deb13-cloud-amd64", "6.12.94-1"),
            offer("linux-image-6.12.107+deb13-cloud-amd64", "6.12.107-1"),
        ];
        let names = |offers: &[Offer]| -> Vec<String> {
            packages(offers)
                .unwrap()
                .iter()
                .map(|offer| offer.name.clone())
                .collect()
        };
        assert_eq!(names(&whole), ["linux-image-6.12.107+deb13-cloud-amd64"]);
        let split = [
            offer("linux-image-7.2.13+deb14-cloud-amd64", "7.2.13-1"),
            offer("linux-binary-7.2.13+deb14-cloud-amd64", "7.2.13-1"),
            offer("linux-modules-7.2.12+deb14-cloud-amd64", "7.2.12-1"),
            offer("linux-modules-7.2.13+deb14-cloud-amd64", "7.2.13-1"),
        ];
        assert_eq!(
            names(&split),
            [
                "linux-binary-7.2.13+deb14-cloud-amd64",
                "linux-modules-7.2.13+deb14-cloud-amd64"
            ]
        );
        assert!(packages(&[]).is_none());
    }

    #[test]
    fn modules_lose_their_folders() {
        let place = |path: &str| module_file(Path::new(path));
        assert_eq!(
            place("usr/lib/modules/6.12/kernel/virt/lib/irqbypass.ko.xz"),
            Some(PathBuf::from("modules/irqbypass.ko.xz"))
        );
        assert_eq!(place("usr/lib/modules/6.12/modules.order"), None);
        assert_eq!(place("usr/share/x.ko"), None);
    }
}
