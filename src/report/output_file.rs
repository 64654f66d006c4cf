//! A file that is complete or absent, and is checked to be writable before anything runs. A process that is
//! killed leaves nothing beside it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, OFlags, access, fcntl_setfl};
use unwindlab_guest_kernel::unnamed::{Unnamed, folder};

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}", path = path.display())]
#[expect(missing_docs, reason = "the message says what the fields are")]
pub struct WriteError {
    pub path: PathBuf,
    pub source: io::Error,
}

impl WriteError {
    /// Adds the path.
    pub fn of(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self {
            path: path.to_owned(),
            source,
        }
    }
}

/// A file that gets its name when it is complete.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    /// A pipe or a device, which cannot be replaced.
    stream: Option<File>,
}

impl OutputFile {
    /// Checks that the file can be written.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn create(path: &Path) -> Result<Self, WriteError> {
        let error = WriteError::of(path);
        let stream = match std::fs::metadata(path) {
            Ok(there) if there.is_dir() => return Err(error(io::ErrorKind::IsADirectory.into())),
            Ok(there) if !there.is_file() => Some(stream(path).map_err(error)?),
            _ => {
                access(folder(path), Access::WRITE_OK).map_err(|errno| error(errno.into()))?;
                // A full device or a quota says so now.
                drop(Unnamed::beside(path).map_err(error)?);
                None
            }
        };
        Ok(Self {
            path: path.to_owned(),
            stream,
        })
    }

    /// Whether both would write the same file.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let place = |path: &Path| {
            Some((
                folder(path).canonicalize().ok()?,
                path.file_name()?.to_owned(),
            ))
        };
        self.stream.is_none()
            && other.stream.is_none()
            && (self.path == other.path || place(&self.path) == place(&other.path))
    }

    /// Writes it and gives it its name.
    ///
    /// # Errors
    /// [`WriteError`]; the file is then unchanged.
    pub fn finish(self, contents: impl AsRef<[u8]>) -> Result<(), WriteError> {
        let contents = contents.as_ref();
        let error = WriteError::of(&self.path);
        if let Some(mut stream) = self.stream {
            return stream.write_all(contents).map_err(error);
        }
        let written = Unnamed::beside(&self.path).and_then(|mut file| {
            file.write(contents)?;
            file.replace(&self.path).map(drop)
        });
        written.map_err(error)
    }
}

/// A file of lines that are there as soon as they are written, whatever becomes of the run. The file of
/// before is replaced with the first line.
#[derive(Debug)]
pub struct LineFile {
    file: OutputFile,
    begun: Option<File>,
}

impl LineFile {
    /// Checks that the file can be written.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn create(path: &Path) -> Result<Self, WriteError> {
        let file = OutputFile::create(path)?;
        Ok(Self { file, begun: None })
    }

    /// Whether both would write the same file.
    #[must_use]
    pub fn is_same(&self, other: &OutputFile) -> bool {
        self.file.is_same(other)
    }

    /// Writes lines.
    ///
    /// # Errors
    /// [`WriteError`]; the lines before stay.
    pub fn write(&mut self, lines: &str) -> Result<(), WriteError> {
        let error = WriteError::of(&self.file.path);
        let begun = match self.begun.take() {
            Some(begun) => Ok(begun),
            None => self.begin(),
        };
        let written = begun.and_then(|mut begun| {
            begun.write_all(lines.as_bytes())?;
            self.begun = Some(begun);
            Ok(())
        });
        written.map_err(error)
    }

    /// The file without a line: it has its name from now on.
    fn begin(&self) -> io::Result<File> {
        if let Some(stream) = &self.file.stream {
            return stream.try_clone();
        }
        Unnamed::beside(&self.file.path)?.replace(&self.file.path)
    }

    /// All lines are written.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn finish(mut self) -> Result<(), WriteError> {
        self.write("")?;
        match (self.begun, self.file.stream) {
            (Some(begun), None) => begun.sync_data().map_err(WriteError::of(&self.file.path)),
            _ => Ok(()),
        }
    }
}

/// Opens a pipe or a device. One that nobody reads is an error, and not waited for.
fn stream(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    // From now on a slow reader is waited for.
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}
