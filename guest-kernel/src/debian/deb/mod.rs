//! Extracts single files from a .deb, which is an `ar` archive with a compressed tar archive inside.
//!
//! Nothing is installed and no maintainer script runs. The caller says for each name whether and
//! where the file is written; the rest of the package is skipped.

mod members;

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use members::Members;

use crate::cache::CacheError;
use crate::zstd;

/// Why a package cannot be unpacked.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum DebError {
    /// The archive is damaged.
    #[error("cannot unpack {}: {source}", path.display())]
    Archive { path: PathBuf, source: io::Error },
    /// It has no data, or the compression is unknown.
    #[error("cannot unpack {}: it has no data.tar that is compressed with xz, zstd or gzip", .0.display())]
    NoData(PathBuf),
    /// The result cannot be written.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Makes an error about this package.
pub(crate) fn damaged(deb: &Path) -> impl Fn(io::Error) -> DebError + Copy + '_ {
    move |source| DebError::Archive {
        path: deb.to_path_buf(),
        source,
    }
}

/// More than the data of any package that is used here.
const MAX_UNPACKED: u64 = 2 << 30;

/// Unpacks files into the folder `into`. `place` gets each path in the package (without a leading
/// `./`) and returns the path below `into`, or `None` to skip the file. Symbolic links are kept if
/// they point to a name in their own folder, as those of libraries do.
pub(crate) fn unpack(
    deb: &Path,
    into: &Path,
    place: impl Fn(&Path) -> Option<PathBuf>,
) -> Result<(), DebError> {
    let damaged = damaged(deb);
    with_data(deb, |data| {
        for entry in tar::Archive::new(data).entries().map_err(damaged)? {
            let mut entry = entry.map_err(damaged)?;
            let path = entry.path().map_err(damaged)?;
            let place = plain(&path).and_then(|path| place(&path));
            if let Some(place) = place.and_then(|place| plain(&place)) {
                write(&mut entry, &into.join(place)).map_err(|error| match error {
                    WriteError::Archive(source) => damaged(source),
                    WriteError::File(source) => source.into(),
                })?;
            }
        }
        Ok(())
    })
}

/// Passes the first regular file whose path in the package (without a leading `./`) is `wanted` to
/// `read`, and returns its result; `None` if there is no such file.
pub(crate) fn read<T>(
    deb: &Path,
    wanted: impl Fn(&Path) -> bool,
    read: impl FnOnce(&mut dyn Read) -> T,
) -> Result<Option<T>, DebError> {
    let damaged = damaged(deb);
    with_data(deb, |data| {
        for entry in tar::Archive::new(data).entries().map_err(damaged)? {
            let mut entry = entry.map_err(damaged)?;
            let path = entry.path().map_err(damaged)?;
            let is_file = entry.header().entry_type() == tar::EntryType::Regular;
            if is_file && plain(&path).is_some_and(|path| wanted(&path)) {
                return Ok(Some(read(&mut entry)));
            }
        }
        Ok(None)
    })
}

/// Passes the package's data, a tar archive, to `read`.
fn with_data<T>(
    deb: &Path,
    read: impl FnOnce(&mut dyn Read) -> Result<T, DebError>,
) -> Result<T, DebError> {
    let damaged = damaged(deb);
    let file = File::open(deb).map_err(damaged)?;
    with_data_of(deb, BufReader::new(file), read)
}

/// As [`with_data`], of a package that is read from `file`.
fn with_data_of<T>(
    deb: &Path,
    file: impl Read,
    read: impl FnOnce(&mut dyn Read) -> Result<T, DebError>,
) -> Result<T, DebError> {
    let damaged = damaged(deb);
    let mut members = Members::of(file).map_err(damaged)?;
    while let Some((name, member)) = members.next().map_err(damaged)? {
        let data: Box<dyn Read + '_> = match name.as_slice() {
            b"data.tar.xz" => Box::new(liblzma::read::XzDecoder::new(member)),
            b"data.tar.zst" => {
                Box::new(zstd::Decoder::new(BufReader::new(member)).map_err(damaged)?)
            }
            b"data.tar.gz" => Box::new(flate2::read::GzDecoder::new(member)),
            b"data.tar" => Box::new(member),
            _ => continue,
        };
        return read(&mut data.take(MAX_UNPACKED));
    }
    Err(DebError::NoData(deb.to_path_buf()))
}

/// Path and bytes of each regular file in a package, of whose data at most so much is read.
///
/// # Errors
/// [`DebError`].
pub fn files(package: &[u8], most: u64) -> Result<Vec<(PathBuf, u64)>, DebError> {
    let deb = Path::new("package");
    let damaged = damaged(deb);
    with_data_of(deb, package, |data| {
        let mut files = Vec::new();
        for entry in tar::Archive::new(data.take(most))
            .entries()
            .map_err(damaged)?
        {
            let mut entry = entry.map_err(damaged)?;
            let path = entry.path().map_err(damaged)?;
            if let Some(path) = plain(&path)
                && entry.header().entry_type() == tar::EntryType::Regular
            {
                let bytes = io::copy(&mut entry, &mut io::sink()).map_err(damaged)?;
                files.push((path, bytes));
            }
        }
        Ok(files)
    })
}

enum WriteError {
    Archive(io::Error),
    File(CacheError),
}

/// Writes a regular file or a harmless symbolic link; skips everything else.
fn write(entry: &mut tar::Entry<'_, impl Read>, path: &Path) -> Result<(), WriteError> {
    let at = |source| WriteError::File(CacheError::new(path, source));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(at)?;
    }
    match entry.header().entry_type() {
        tar::EntryType::Regular => {
            let mode = entry.header().mode().map_err(WriteError::Archive)?;
            // Never through a link that an earlier entry made.
            let mut file = File::create_new(path).map_err(at)?;
            copy(entry, &mut file, path)?;
            let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
            file.set_permissions(fs::Permissions::from_mode(mode))
                .map_err(at)
        }
        tar::EntryType::Symlink => {
            let target = entry.link_name().map_err(WriteError::Archive)?;
            match target {
                Some(target) if target.components().count() == 1 && plain(&target).is_some() => {
                    symlink(target, path).map_err(at)
                }
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Copies, and distinguishes errors of the archive from errors of the file system.
fn copy(from: &mut impl Read, to: &mut File, path: &Path) -> Result<(), WriteError> {
    use std::io::Write;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = from.read(&mut buffer).map_err(WriteError::Archive)?;
        let Some(chunk) = buffer.get(..length).filter(|chunk| !chunk.is_empty()) else {
            return Ok(());
        };
        to.write_all(chunk)
            .map_err(|source| WriteError::File(CacheError::new(path, source)))?;
    }
}

/// The path, if it is relative and without `..`. A leading `./` is dropped.
fn plain(path: &Path) -> Option<PathBuf> {
    path.components()
        .filter(|component| *component != Component::CurDir)
        .map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect::<Option<PathBuf>>()
        .filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests;
