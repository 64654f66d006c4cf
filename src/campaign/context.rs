//! What every campaign works with.

use std::path::{Path, PathBuf};

use unwindlab_guest_kernel::BuildError;
use unwindlab_guest_kernel::build::history::History;

use super::analysis::Analysis;
use super::error::CampaignError;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{HostRequest, Provider, ProviderError, TestKernel};
use crate::judge::{Judge, JudgeLimit};
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_engine::plan::{Executor, Progress, TrialPlan};
use unwindlab_scenario::{KernelSymbols, Library, Loaded, ResolveError, resolve};

/// What every campaign works with.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Where kernels and KVM hosts come from.
    pub provider: &'a dyn Provider,
    /// The invariants and findings that trials are judged by.
    pub analysis: &'a Analysis,
    /// Who is told what is being done.
    pub progress: &'a (dyn Progress + Sync),
    /// Set when the user wants to stop.
    pub interrupt: &'a Interrupt,
    /// Outer machines are booted rather than taken from the cache, and not saved.
    pub fresh: bool,
}

impl<'a> Context<'a> {
    /// A judge of trials of a kernel, by all invariants and findings.
    pub(super) fn judge(
        &self,
        symbols: &'a dyn KernelSymbols,
        compare_snapshots: bool,
    ) -> Judge<'a> {
        Judge {
            invariants: self.analysis.invariants,
            findings: self.analysis.findings.as_ref(),
            symbols,
            compare_snapshots,
            limit: JudgeLimit::usual(self.interrupt),
        }
    }

    /// Ends a campaign that the user interrupted.
    pub(super) fn check_interrupt(&self) -> Result<(), CampaignError> {
        match self.interrupt.is_set() {
            true => Err(CampaignError::Interrupted),
            false => Ok(()),
        }
    }

    /// Gets a kernel.
    pub(super) fn fetch(
        &self,
        request: &KernelRequest,
    ) -> Result<Box<dyn TestKernel>, ProviderError> {
        self.provider.fetch(request, self.progress, self.interrupt)
    }

    /// Starts a KVM host.
    pub(super) fn start(
        &self,
        request: HostRequest<'_>,
        kernel: &dyn TestKernel,
    ) -> Result<Box<dyn Executor>, ProviderError> {
        let (progress, interrupt) = (self.progress, self.interrupt);
        let request = HostRequest {
            fresh: self.fresh || request.fresh,
            ..request
        };
        self.provider.executor(request, kernel, progress, interrupt)
    }

    /// The scenarios of these files, folders or names; the whole library where there are none.
    pub(super) fn open(&self, scenarios: &[PathBuf]) -> Result<Vec<Loaded>, CampaignError> {
        let library = Library::open(scenarios, &self.analysis.invariant_ids())?;
        Ok(library.scenarios)
    }
}

/// The repository that this folder is in.
pub(super) fn repository(tree: &Path) -> Result<History, ProviderError> {
    History::open(tree).map_err(|error| match error {
        BuildError::Git { message, .. } => ProviderError::Usage(format!(
            "{} is in no git repository: {message}",
            tree.display()
        )),
        error => error.into(),
    })
}

/// The trial of a scenario that this kernel must have everything for.
pub(super) fn required_trial(
    loaded: &Loaded,
    kernel: &dyn TestKernel,
) -> Result<TrialPlan, CampaignError> {
    let plan = resolve(
        &loaded.file,
        &loaded.scenario,
        kernel.symbols(),
        kernel.hash(),
    );
    plan.map_err(|error| match error {
        ResolveError::Unsupported(lack) => ProviderError::Unavailable(lack.to_string()).into(),
        ResolveError::Scenario(errors) => errors.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::provider::ProviderFailure;

    #[test]
    fn a_folder_in_no_repository_is_wrong_usage_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = repository(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ProviderFailure::Usage, "{error}");
        let path = folder.path().display().to_string();
        assert!(error.to_string().starts_with(&path), "{error}");
    }
}
