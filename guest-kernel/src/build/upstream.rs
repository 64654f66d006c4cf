//! The upstream release under a source package of Debian's, and Debian's patches to it.
//!
//! Both come from the source package `linux`: `linux_VERSION.orig.tar.xz`, and the folder `debian/patches` of
//! `linux_VERSION.debian.tar.xz`, which is a quilt folder. The archive may have that package in another version than the
//! newest `linux-source-X.Y`.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::package::{MAX_SOURCE, tree_of_package, write_commit};
use super::workspace::Workspace;
use super::{BuildError, Source};
use crate::cache::{At, Cache};
use crate::debian::apt::Apt;
use crate::debian::deb;
use crate::debian::version::Version;
use crate::progress::Progress;

/// The source package of the kernel.
const PACKAGE: &str = "linux";
/// Below the root of the workspace.
const PATCHES: &str = "debian/patches";
/// The file with the version of the package that the workspace has.
const VERSION: &str = "upstream";

/// The folder with Debian's patches to the upstream release, and that release as a source. Both are fetched unless
/// the cache has them.
///
/// # Errors
/// [`BuildError`].
pub fn debian_patches(
    numbers: &[u64],
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<(PathBuf, Source), BuildError> {
    super::tools::need_git()?;
    let source = Source::Upstream(numbers.to_vec());
    let workspace = Workspace::open(&source, cache, progress)?;
    tree(numbers, &workspace, cache, progress)?;
    Ok((workspace.folders().root().join(PATCHES), source))
}

/// The tree of the upstream release.
pub(super) fn tree(
    numbers: &[u64],
    workspace: &Workspace,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<String, BuildError> {
    let root = workspace.folders().root();
    let known = root.join(VERSION);
    if known.exists() {
        return Ok(tree_of_package(workspace)?);
    }
    let apt = Apt::open(cache, progress)?;
    let downloads = cache.scratch()?;
    let wanted = |version: &Version| version.numbers().starts_with(numbers);
    let (version, files) = apt.download_source(PACKAGE, wanted, downloads.path(), progress)?;
    progress.step(&format!("unpacking the source of {PACKAGE} {version}"));
    let find = |part: &str| {
        let mut all = files.iter();
        let found = all.find(|file| file.to_string_lossy().ends_with(part));
        let lacking = || io::Error::other(format!("it has no file *{part}"));
        found.ok_or_else(|| BuildError::from(deb::damaged(downloads.path())(lacking())))
    };
    unpack_patches(find(".debian.tar.xz")?, root)?;
    let upstream = find(".orig.tar.xz")?;
    let git = workspace.git().call("fast-import");
    git.args(["--quiet", "--force", "--depth=0"]).feed(|to| {
        let damaged = |error| BuildError::from(deb::damaged(upstream)(error));
        write_commit(archive(upstream).map_err(damaged)?, to).map_err(damaged)
    })?;
    let version = version.to_string();
    fs::write(&known, version).at(&known)?;
    Ok(tree_of_package(workspace)?)
}

type Archive = tar::Archive<io::Take<liblzma::read::XzDecoder<File>>>;

fn archive(path: &Path) -> io::Result<Archive> {
    let source = liblzma::read::XzDecoder::new(File::open(path)?).take(MAX_SOURCE);
    Ok(tar::Archive::new(source))
}

/// Unpacks `debian/patches` into the folder `root`, and nothing outside of it.
fn unpack_patches(path: &Path, root: &Path) -> Result<(), BuildError> {
    let unpack = || {
        for entry in archive(path)?.entries()? {
            let mut entry = entry?;
            let is_file = entry.header().entry_type().is_file();
            if is_file && entry.path()?.starts_with(PATCHES) {
                // Refuses `..`, and links that lead outside.
                entry.unpack_in(root)?;
            }
        }
        Ok(())
    };
    unpack().map_err(|error| deb::damaged(path)(error).into())
}
