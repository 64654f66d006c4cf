//! Every patch of a series, built and judged in order.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use unwindlab_guest_kernel::build::history::History;
use unwindlab_guest_kernel::build::patch::Patch;
use unwindlab_guest_kernel::{BuildSpec, Source};

use super::Context;
use super::error::{CampaignError, SeriesError};
use super::kernel::KernelChoice;
use super::suite::{KernelJob, KernelResults, Suite};
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{Provider, ProviderError, ProviderFailure};
use crate::judge::ScenarioResult;
use crate::judge::outcome::OutcomeClass;

/// Which series to judge, by which scenarios.
#[derive(Debug, Clone, Default)]
pub struct SeriesRequest {
    /// An mbox, a folder of patches, or a range `A..B` of the repository in the tree of `build`.
    pub series: PathBuf,
    /// Files, folders, or names of scenarios; the whole library where there are none.
    pub scenarios: Vec<PathBuf>,
    /// The revision that the series is for.
    pub base: Option<String>,
    /// What the series is applied to.
    pub build: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
}

/// What came of one patch, or of the base.
#[derive(Debug)]
pub struct PatchReport {
    /// Its place in the series; the base is 0.
    pub number: usize,
    /// `base`, or the patch.
    pub title: String,
    /// The results, each with what it is compared with the patches before; or why there is no
    /// kernel.
    pub results: Result<Vec<(ScenarioResult, Change)>, ProviderError>,
}

/// A result compared with those of the patches before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is no worse.
    NoWorse,
    /// The scenario passed before, and fails now.
    Broken,
    /// The scenario passed before, and could not be tested now: no less a loss.
    Unclear,
}

/// What came of a series.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SeriesSummary {
    /// Kernels that were built, the base among them.
    pub built: usize,
    /// Patches that break what passed before them.
    pub broken: usize,
    /// Patches that do not build.
    pub unbuilt: usize,
    /// Patches that could not be tested, or not for what passed before them.
    pub untested: usize,
}

impl SeriesSummary {
    /// What it says of the series.
    #[must_use]
    pub const fn class(&self) -> OutcomeClass {
        match (self.broken + self.unbuilt, self.untested) {
            (0, 0) => OutcomeClass::Good,
            (0, _) => OutcomeClass::Untested,
            _ => OutcomeClass::Bad,
        }
    }
}

/// Builds and judges each state of the series; each is told as soon as it is judged.
///
/// # Errors
/// [`CampaignError`].
pub fn series(
    request: &SeriesRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(&PatchReport) -> io::Result<()>,
) -> Result<SeriesSummary, CampaignError> {
    let kernels = kernels(request, context.provider)?;
    let suite = Suite {
        library: context.open(&request.scenarios)?,
        kvm_host: request.kvm_host,
        context,
    };
    let jobs: Vec<KernelJob> = kernels
        .iter()
        .map(|kernel| KernelJob {
            request: kernel.request.clone(),
            only: None,
        })
        .collect();
    let mut titles = kernels.into_iter().map(|kernel| kernel.title);
    let mut tally = SeriesTally::default();
    suite.run_each(&jobs, |number, results| {
        let report = PatchReport {
            number,
            title: titles.next().unwrap_or_default(),
            results: tally.take(results),
        };
        Ok(tell(&report)?)
    })?;
    Ok(tally.summary)
}

/// The kernel after a patch.
struct SeriesKernel {
    /// `base`, or the patch.
    title: String,
    request: KernelRequest,
}

/// The base and each patch on it.
fn kernels(
    request: &SeriesRequest,
    provider: &dyn Provider,
) -> Result<Vec<SeriesKernel>, CampaignError> {
    let mut build = request.build.clone();
    let range = request.series.to_string_lossy().into_owned();
    let is_range = range.contains("..") && !request.series.exists();
    if let Some(base) = &request.base {
        if build.tree.is_none() {
            return Err(SeriesError::BaseWithoutTree.into());
        }
        build.rev = Some(base.clone());
    }
    let spec = build.build_spec()?;
    if !is_range {
        return Ok(on_base(&spec, provider.series(&request.series)?));
    }
    let Some(tree) = build.tree else {
        return Err(SeriesError::RangeWithoutTree(range).into());
    };
    let history = History::open(&tree).map_err(ProviderError::from)?;
    let commits = history.range(&range).map_err(ProviderError::from)?;
    let Some(first) = commits.first() else {
        return Err(SeriesError::EmptyRange(range).into());
    };
    let base = request
        .base
        .clone()
        .unwrap_or_else(|| format!("{}^", first.id));
    let at = |title: String, revision: String| SeriesKernel {
        title,
        request: KernelRequest::Build(BuildSpec {
            source: Source::Revision {
                tree: tree.clone(),
                revision,
            },
            ..spec.clone()
        }),
    };
    let mut kernels = vec![at("base".to_owned(), base)];
    kernels.extend(commits.into_iter().map(|commit| {
        let title = format!("{} {}", commit.short(), commit.subject);
        at(title, commit.id)
    }));
    Ok(kernels)
}

fn on_base(spec: &BuildSpec, patches: Vec<Patch>) -> Vec<SeriesKernel> {
    let mut spec = spec.clone();
    let mut kernels = vec![SeriesKernel {
        title: "base".to_owned(),
        request: KernelRequest::Build(spec.clone()),
    }];
    for patch in patches {
        let title = patch.name.clone();
        spec.patches.push(patch);
        kernels.push(SeriesKernel {
            title,
            request: KernelRequest::Build(spec.clone()),
        });
    }
    kernels
}

/// What is known after some patches.
#[derive(Debug, Default)]
struct SeriesTally {
    /// Whether each scenario passed the last time that it could be tested.
    passing: BTreeMap<String, bool>,
    summary: SeriesSummary,
}

impl SeriesTally {
    /// Takes the results of the next patch.
    fn take(
        &mut self,
        results: KernelResults,
    ) -> Result<Vec<(ScenarioResult, Change)>, ProviderError> {
        let results = results.inspect_err(|error| match error.kind() {
            ProviderFailure::Unbuildable => self.summary.unbuilt += 1,
            ProviderFailure::Usage | ProviderFailure::Unavailable => self.summary.untested += 1,
        })?;
        self.summary.built += 1;
        let compared: Vec<_> = results
            .into_iter()
            .map(|result| {
                let change = self.compare(&result);
                (result, change)
            })
            .collect();
        let any = |wanted| compared.iter().any(|(_, change)| *change == wanted);
        if any(Change::Broken) {
            self.summary.broken += 1;
        } else if any(Change::Unclear) {
            self.summary.untested += 1;
        }
        Ok(compared)
    }

    fn compare(&mut self, result: &ScenarioResult) -> Change {
        let passes = match result.outcome.class() {
            OutcomeClass::Good => true,
            OutcomeClass::Bad => false,
            OutcomeClass::Untested => {
                return match self.passing.get(&result.name) {
                    Some(true) => Change::Unclear,
                    _ => Change::NoWorse,
                };
            }
        };
        match self.passing.insert(result.name.clone(), passes) {
            Some(true) if !passes => Change::Broken,
            _ => Change::NoWorse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::testing::unbuildable;
    use crate::judge::Outcome;

    fn ran(outcomes: &[(&str, Outcome)]) -> KernelResults {
        let result = |(name, outcome): &(&str, Outcome)| {
            ScenarioResult::not_run(name, *outcome, "why".to_owned())
        };
        Ok(outcomes.iter().map(result).collect())
    }

    fn changes(results: Result<Vec<(ScenarioResult, Change)>, ProviderError>) -> Vec<Change> {
        let results = results.unwrap().into_iter();
        results.map(|(_, change)| change).collect()
    }

    #[test]
    fn a_patch_must_pass_what_passed_before() {
        let mut tally = SeriesTally::default();
        changes(tally.take(ran(&[("a", Outcome::Pass), ("b", Outcome::Fail)])));
        assert_eq!(tally.summary.class(), OutcomeClass::Good, "b never passed");
        let compared = tally.take(ran(&[("a", Outcome::Fail), ("b", Outcome::Pass)]));
        assert_eq!(changes(compared), [Change::Broken, Change::NoWorse]);
        assert_eq!(tally.summary.class(), OutcomeClass::Bad);
    }

    #[test]
    fn what_cannot_be_tested_any_more_is_no_pass() {
        let mut tally = SeriesTally::default();
        changes(tally.take(ran(&[("a", Outcome::Pass)])));
        let compared = tally.take(ran(&[("a", Outcome::BootError)]));
        assert_eq!(changes(compared), [Change::Unclear]);
        assert_eq!(tally.summary.class(), OutcomeClass::Untested);
        assert!(tally.take(Err(unbuildable().into())).is_err());
        assert_eq!(tally.summary.unbuilt, 1);
        assert_eq!(tally.summary.class(), OutcomeClass::Bad);
    }
}
