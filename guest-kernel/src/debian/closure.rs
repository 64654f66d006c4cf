//! A program of Debian's with the libraries that it is linked with, unpacked from their packages.
//! Their own dynamic loader runs it: nothing is installed, and none of the system's libraries is
//! used.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use object::read::elf::ElfFile64;
use sha2::{Digest, Sha256};

use crate::cache::{At, CacheError, hex};
use crate::debian::deb::{self, DebError};
use crate::progress::Progress;

/// Folder of the libraries, below that of the unpacked program.
pub const LIBRARIES: &str = "lib";
/// The dynamic loader of these libraries.
pub const LOADER: &str = "lib/ld-linux-x86-64.so.2";

/// Not linked but loaded at run time: glibc needs it to end threads.
const LOADED_LATE: &str = "libgcc_s.so.1";

/// Why the unpacked program cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum ClosureError {
    /// No package had a library.
    #[error("{0} is missing")]
    Missing(String),
    /// Not a program or library.
    #[error("{file} is damaged: {source}")]
    Damaged { file: String, source: object::Error },
    /// The cache cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// An identity for these packages: a hash of their file names, which contain the versions.
pub(crate) fn identity(debs: &[PathBuf]) -> String {
    let mut digest = Sha256::new();
    for deb in debs {
        digest.update(deb.file_name().unwrap_or_default().as_encoded_bytes());
        digest.update([0]);
    }
    hex(&digest.finalize())
}

/// Unpacks the packages into a folder. `place` selects the files and says where each goes.
pub(crate) fn unpack(
    debs: &[PathBuf],
    into: &Path,
    place: impl Fn(&Path) -> Option<PathBuf>,
    progress: &dyn Progress,
) -> Result<(), DebError> {
    for (number, deb) in (1_u64..).zip(debs) {
        deb::unpack(deb, into, &place)?;
        progress.bytes(number, u64::try_from(debs.len()).unwrap_or(u64::MAX));
    }
    Ok(())
}

/// Where a file of a package goes, if it is a library.
pub(crate) fn place_library(path: &Path) -> Option<PathBuf> {
    let (folder, name) = (path.parent()?.to_str()?, path.file_name()?.to_str()?);
    let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
    (libraries.contains(&folder) && name.contains(".so")).then(|| Path::new(LIBRARIES).join(name))
}

/// Removes the libraries that none of `programs`, files in the folder `dir`, needs, and checks that
/// those that they need are there.
pub(crate) fn prune(dir: &Path, programs: &[&str]) -> Result<(), ClosureError> {
    let folder = dir.join(LIBRARIES);
    let loader = Path::new(LOADER).file_name().unwrap_or_default();
    let mut kept = BTreeSet::from([loader.to_string_lossy().into_owned()]);
    let mut open = vec![LOADED_LATE.to_owned()];
    for program in programs {
        open.extend(needed(&dir.join(program))?);
    }
    while let Some(library) = open.pop() {
        let path = folder.join(&library);
        if !kept.insert(library) {
            continue;
        }
        open.extend(needed(&path)?);
        // The target of a link is needed too.
        if let Ok(target) = fs::read_link(&path) {
            open.push(target.to_string_lossy().into_owned());
        }
    }
    for item in fs::read_dir(&folder).at(&folder)? {
        let item = item.at(&folder)?;
        if !kept.contains(item.file_name().to_string_lossy().as_ref()) {
            let path = item.path();
            fs::remove_file(&path).at(&path)?;
        }
    }
    Ok(())
}

/// The version in a file name (`NAME_VERSION_ARCH.deb`), if it is a file of this package.
pub(crate) fn package_version(package: &str, file: &OsStr) -> Option<String> {
    let rest = file.to_str()?.strip_prefix(package)?.strip_prefix('_')?;
    Some(rest.split('_').next()?.replace("%3a", ":"))
}

/// The libraries that a program or library is linked with (`DT_NEEDED`).
fn needed(path: &Path) -> Result<Vec<String>, ClosureError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = match fs::read(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(ClosureError::Missing(name.into_owned()));
        }
        Err(error) => return Err(CacheError::new(path, error).into()),
    };
    needed_by(&file).map_err(|source| ClosureError::Damaged {
        file: name.into_owned(),
        source,
    })
}

fn needed_by(file: &[u8]) -> object::Result<Vec<String>> {
    let elf = ElfFile64::<object::Endianness>::parse(file)?;
    let table = elf.elf_dynamic_table()?;
    table
        .iter()
        .filter(|entry| entry.tag == object::elf::DT_NEEDED)
        .map(|entry| Ok(String::from_utf8_lossy(table.string(entry)?).into_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_the_package_not_of_its_relatives() {
        let version = |name: &str| package_version("qemu-system-x86", OsStr::new(name));
        assert_eq!(
            version("qemu-system-x86_1%3a10.0.13+ds-0_amd64.deb").as_deref(),
            Some("1:10.0.13+ds-0")
        );
        assert_eq!(version("qemu-system-x86-xen_1_amd64.deb"), None);
    }

    #[test]
    fn libraries_are_told_from_the_rest() {
        let place = |path: &str| place_library(Path::new(path));
        assert_eq!(
            place("usr/lib/x86_64-linux-gnu/libc.so.6"),
            Some(PathBuf::from("lib/libc.so.6"))
        );
        assert_eq!(place("usr/lib/x86_64-linux-gnu/perl/auto.so"), None);
        assert_eq!(place("usr/bin/perf"), None);
    }
}
