//! The logs and replay files that outlive a run.

use std::io;
use std::path::{Path, PathBuf};

use super::output_file::{OutputFile, WriteError};
use crate::judge::outcome::Outcome;
use crate::judge::result::{Artifact, ScenarioResult};
use crate::judge::snapshot::SnapshotComparison;
use unwindlab_oracle::trace::Recording;

/// The folder for the logs of scenarios, one folder each.
#[derive(Debug, Clone)]
pub struct Artifacts {
    root: PathBuf,
    /// Whether scenarios that pass have one too.
    of_all: bool,
    /// Attempts of the scenario before this one; a later attempt has a folder below that of the first.
    pub before: usize,
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
                before: 0,
            });
        };
        std::fs::create_dir_all(root).map_err(WriteError::of(root))?;
        tempfile::tempfile_in(root).map_err(WriteError::of(root))?;
        Ok(Self {
            root: root.to_owned(),
            of_all: true,
            before: 0,
        })
    }

    /// The folder of a result, created. With the first attempt, those of later ones of an earlier run are removed.
    fn folder(&self, result: &ScenarioResult) -> Result<PathBuf, WriteError> {
        let mut folder = self.root.join(&result.name);
        if self.before > 0 {
            folder.push(format!("attempt-{}", self.before + 1));
        }
        std::fs::create_dir_all(&folder).map_err(WriteError::of(&folder))?;
        if self.before == 0 {
            for number in 2.. {
                let stale = folder.join(format!("attempt-{number}"));
                match std::fs::remove_dir_all(&stale) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    removed => removed.map_err(WriteError::of(&stale))?,
                }
            }
        }
        Ok(folder)
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
        let folder = self.folder(result)?;
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
            (
                "KVM host's console",
                "host-console.log",
                recording.host_console.as_str(),
            ),
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
        self.keep_perf_data(&folder, result, recording)
    }

    /// What the distribution's perf recorded, as it wrote it.
    fn keep_perf_data(
        &self,
        folder: &Path,
        result: &mut ScenarioResult,
        recording: &Recording,
    ) -> Result<(), WriteError> {
        let path = folder.join("perf.data");
        let Some(data) = &recording.perf_data else {
            return remove_stale(&path);
        };
        OutputFile::create(&path)?.finish(data)?;
        result.artifacts.push(Artifact {
            kind: "perf data".to_owned(),
            path,
        });
        Ok(())
    }

    /// Writes a replay file beside a trial's logs, and adds its path to the result.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn keep_replay(&self, result: &mut ScenarioResult, text: &str) -> Result<(), WriteError> {
        let path = self.folder(result)?.join(REPLAY);
        OutputFile::create(&path)?.finish(text)?;
        result.artifacts.push(Artifact {
            kind: REPLAY_KIND.to_owned(),
            path,
        });
        Ok(())
    }
}

/// What a replay file is called among the artifacts of a result.
pub(super) const REPLAY_KIND: &str = "replay";
/// Name of the replay file.
const REPLAY: &str = "replay.json";

/// Removes a file of an earlier run, which could be mistaken for one of this run.
fn remove_stale(path: &Path) -> Result<(), WriteError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(WriteError::of(path)(error)),
        _ => Ok(()),
    }
}
