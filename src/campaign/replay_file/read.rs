//! Reading a replay file, and its scenario as files.

use std::io;
use std::path::{Path, PathBuf};
use unwindlab_guest_kernel::input;

use serde::Deserialize;

use super::{Replay, VERSION};
use crate::campaign::error::{ReplayFileError, ReplayFileProblem};

/// A replay file as read.
#[derive(Debug, Clone)]
pub struct ReplayFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub replay: Replay,
}

/// What every version of a replay file has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl ReplayFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ReplayFileError`].
    pub fn read(path: &Path) -> Result<Self, ReplayFileError> {
        let text = input::text(path, input::RECORDED).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => ReplayFileProblem::NotText,
            _ => error.into(),
        });
        match text.and_then(|it| Replay::parse(&it)) {
            Ok(replay) => Ok(Self {
                path: path.to_owned(),
                replay,
            }),
            Err(why) => Err(ReplayFileError {
                path: path.to_owned(),
                why,
            }),
        }
    }

    /// An error that names the file.
    pub(in crate::campaign) fn wrong(&self, why: ReplayFileProblem) -> ReplayFileError {
        ReplayFileError {
            path: self.path.clone(),
            why,
        }
    }
}

impl Replay {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// [`ReplayFileProblem`].
    pub fn parse(text: &str) -> Result<Self, ReplayFileProblem> {
        let Version { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(ReplayFileProblem::Version {
                found: version,
                known: VERSION,
            });
        }
        let replay: Self = serde_json::from_str(text)?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        match !replay.name.is_empty() && replay.name.chars().all(is_word) {
            true => Ok(replay),
            false => Err(ReplayFileProblem::Name(replay.name)),
        }
    }
}

/// The scenario of a replay file and its snapshot as files, until it is dropped.
pub(in crate::campaign) struct UnpackedScenario {
    pub(in crate::campaign) path: PathBuf,
    _folder: tempfile::TempDir,
}

impl UnpackedScenario {
    pub(in crate::campaign) fn of(replay: &Replay) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let [scenarios, snapshots] = ["scenarios", "snapshots"].map(|it| folder.path().join(it));
        std::fs::create_dir(&scenarios)?;
        std::fs::create_dir(&snapshots)?;
        let path = scenarios.join(format!("{}.yaml", replay.name));
        std::fs::write(&path, &replay.scenario)?;
        if let Some(snapshot) = &replay.snapshot {
            std::fs::write(snapshots.join(format!("{}.snap", replay.name)), snapshot)?;
        }
        Ok(Self {
            path,
            _folder: folder,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_no_replay_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlinux");
        std::fs::write(&path, b"\x7fELF\xff").unwrap();
        let told = ReplayFile::read(&path).unwrap_err().to_string();
        assert!(
            told.ends_with(": no replay file: it is not a text"),
            "{told}"
        );
    }
}
