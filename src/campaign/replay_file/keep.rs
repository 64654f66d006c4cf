//! Writing replay files of trials that failed.

use std::path::Path;

use super::{Replay, ReplayKernel, ReplayRun, ReplayTrial, ReplayVerdict, VERSION};
use crate::campaign::error::CampaignError;
use crate::campaign::kernel::KernelChoice;
use crate::host::provider::TestKernel;
use crate::judge::ScenarioResult;
use crate::report::artifacts::Artifacts;
use crate::report::output_file::OutputFile;
use unwindlab_scenario::Loaded;

/// Where the logs and replay files of a run are kept, and how to get its kernel again.
#[derive(Debug, Clone)]
pub(in crate::campaign) struct KeptTrials<'a> {
    pub(in crate::campaign) artifacts: Artifacts,
    pub(in crate::campaign) kernel: &'a KernelChoice,
}

impl KeptTrials<'_> {
    /// Keeps a file of a trial that failed beside its logs, and notes where in the result.
    pub(in crate::campaign) fn keep_replay(
        &self,
        trial: ReplayRun,
        loaded: &Loaded,
        has_snapshot: bool,
        kernel: &dyn TestKernel,
        result: &mut ScenarioResult,
    ) -> Result<(), CampaignError> {
        let Some(verdict) = ReplayVerdict::of_run(result) else {
            return Ok(());
        };
        let replay = Replay {
            version: VERSION,
            name: loaded.scenario.name.to_string(),
            scenario: loaded.text.clone(),
            snapshot: loaded.snapshot.clone().filter(|_| has_snapshot),
            kernel: ReplayKernel::of(kernel, self.kernel)?,
            trial: ReplayTrial::Run(trial),
            verdict,
        };
        Ok(self.artifacts.keep_replay(result, &text(&replay)?)?)
    }
}

/// Writes a replay file.
pub(in crate::campaign) fn save(path: &Path, replay: &Replay) -> Result<(), CampaignError> {
    Ok(OutputFile::create(path)?.finish(&text(replay)?)?)
}

fn text(replay: &Replay) -> Result<String, serde_json::Error> {
    Ok(format!("{}\n", serde_json::to_string_pretty(replay)?))
}

impl ReplayKernel {
    /// A kernel, and how it was named.
    pub(in crate::campaign) fn of(
        kernel: &dyn TestKernel,
        choice: &KernelChoice,
    ) -> std::io::Result<Self> {
        Ok(Self {
            hash: kernel.hash().to_owned(),
            release: kernel.release().to_owned(),
            choice: choice.absolute()?,
        })
    }
}
