//! Files that outlive a run. They are complete or absent, and checked to be writable before
//! anything runs.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use tempfile::NamedTempFile;

use crate::judge::outcome::Outcome;
use crate::judge::result::{Artifact, ScenarioResult};
use crate::judge::snapshot::SnapshotComparison;
use unwindlab_oracle::trace::Recording;

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}", path = path.display())]
#[expect(missing_docs, reason = "the message says what the fields are")]
pub struct WriteError {
    pub path: PathBuf,
    pub source: io::Error,
}

impl WriteError {
    fn of(path: &Path) -> impl Fn(io::Error) -> Self {
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
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// Beside the final file; removed if this is dropped.
    Fresh(NamedTempFile),
    /// A pipe or a device, which cannot be replaced.
    Stream(File),
}

impl OutputFile {
    /// Checks that the file can be written.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn create(path: &Path) -> Result<Self, WriteError> {
        let error = WriteError::of(path);
        let target = match std::fs::metadata(path) {
            Ok(there) if there.is_dir() => return Err(error(io::ErrorKind::IsADirectory.into())),
            Ok(there) if !there.is_file() => {
                Target::Stream(OpenOptions::new().write(true).open(path).map_err(error)?)
            }
            _ => Target::Fresh(fresh_beside(path).map_err(error)?),
        };
        Ok(Self {
            path: path.to_owned(),
            target,
        })
    }

    /// Writes it and gives it its name.
    ///
    /// # Errors
    /// [`WriteError`]; the file is then unchanged.
    pub fn finish(self, contents: &str) -> Result<(), WriteError> {
        let error = WriteError::of(&self.path);
        match self.target {
            Target::Stream(mut file) => file.write_all(contents.as_bytes()).map_err(error),
            Target::Fresh(mut file) => {
                file.write_all(contents.as_bytes()).map_err(&error)?;
                file.as_file().sync_data().map_err(&error)?;
                file.persist(&self.path)
                    .map(drop)
                    .map_err(|failed| error(failed.error))
            }
        }
    }
}

/// An unnamed sibling, with the permissions that a plain `open` would give (minus the umask).
fn fresh_beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // First, because tempfile's errors name its own file, which means nothing to users.
    access(folder, Access::WRITE_OK)?;
    tempfile::Builder::new()
        .prefix(".unwindlab-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
}

/// The folder for the logs of scenarios, one folder each.
#[derive(Debug, Clone)]
pub struct Artifacts {
    root: PathBuf,
    /// Whether scenarios that pass have one too.
    of_all: bool,
}

/// The folder if the user names none.
const DEFAULT_ROOT: &str = "unwindlab-out";

impl Artifacts {
    /// The folder that the user named, created and writable; or the default one, which is created
    /// only when a scenario does not pass.
    ///
    /// # Errors
    /// [`WriteError`] if the user's folder cannot be created or written.
    pub fn open(root: Option<&Path>) -> Result<Self, WriteError> {
        let Some(root) = root else {
            return Ok(Self {
                root: DEFAULT_ROOT.into(),
                of_all: false,
            });
        };
        std::fs::create_dir_all(root).map_err(WriteError::of(root))?;
        tempfile::tempfile_in(root).map_err(WriteError::of(root))?;
        Ok(Self {
            root: root.to_owned(),
            of_all: true,
        })
    }

    /// Writes a trial's logs, and adds their paths to the result.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn keep(
        &self,
        result: &mut ScenarioResult,
        recording: &Recording,
    ) -> Result<(), WriteError> {
        if result.outcome == Outcome::Pass && !self.of_all {
            return Ok(());
        }
        let folder = self.root.join(&result.name);
        std::fs::create_dir_all(&folder).map_err(WriteError::of(&folder))?;
        remove_stale(&folder.join(REPLAY))?;
        let actual = match &result.snapshot {
            Some(
                SnapshotComparison::Different { actual, .. }
                | SnapshotComparison::Missing { actual },
            ) => actual.as_str(),
            _ => "",
        };
        for (kind, file, contents) in [
            ("console", "console.log", recording.console.as_str()),
            ("kernel log", "kernel.log", recording.kernel_log.as_str()),
            (
                "perf script",
                "perf-script.txt",
                recording.perf_script.as_deref().unwrap_or_default(),
            ),
            ("snapshot", "snapshot.txt", actual),
        ] {
            let path = folder.join(file);
            if contents.is_empty() {
                remove_stale(&path)?;
                continue;
            }
            OutputFile::create(&path)?.finish(contents)?;
            result.artifacts.push(Artifact {
                kind: kind.to_owned(),
                path,
            });
        }
        Ok(())
    }

    /// Writes a replay file beside a trial's logs, and adds its path to the result.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn keep_replay(&self, result: &mut ScenarioResult, text: &str) -> Result<(), WriteError> {
        let folder = self.root.join(&result.name);
        std::fs::create_dir_all(&folder).map_err(WriteError::of(&folder))?;
        let path = folder.join(REPLAY);
        OutputFile::create(&path)?.finish(text)?;
        result.artifacts.push(Artifact {
            kind: "replay".to_owned(),
            path,
        });
        Ok(())
    }
}

/// Name of the replay file.
const REPLAY: &str = "replay.json";

/// Removes a file of an earlier run, which could be mistaken for one of this run.
fn remove_stale(path: &Path) -> Result<(), WriteError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(WriteError::of(path)(error)),
        _ => Ok(()),
    }
}
