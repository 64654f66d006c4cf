//! Every patch of a series, built and judged in order.

mod places;
mod tally;

use std::io;
use std::path::{Path, PathBuf};

use unwindlab_guest_kernel::build::series::Series;
use unwindlab_guest_kernel::{BuildError, BuildSpec, Source, input};

use super::Context;
use super::context::repository;
use super::error::{CampaignError, SeriesError};
use super::kernel::KernelChoice;
use super::suite::{KernelJob, Suite};
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::ProviderError;
use crate::judge::ScenarioResult;
use crate::judge::outcome::OutcomeClass;
pub use places::{PlaceReport, PlaceState};
use tally::SeriesTally;

/// Instead of a file: the patches of Debian's own kernel, to the upstream release under it.
pub const DEBIAN: &str = "debian";

/// Which series to judge, by which scenarios.
#[derive(Debug, Clone, Default)]
pub struct SeriesRequest {
    /// An mbox, a folder of mails or patches, a range `A..B` of the repository in the tree of `build`, or [`DEBIAN`].
    pub series: PathBuf,
    /// Files, folders, or names of scenarios; the whole library where there are none.
    pub scenarios: Vec<PathBuf>,
    /// The revision that the series is for.
    pub base: Option<String>,
    /// What the series is applied to.
    pub build: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
    /// Go on behind a patch that does not apply or is missing, without it.
    pub skip_conflicts: bool,
    /// Build nothing.
    pub apply_only: bool,
    /// Build only what follows a patch that changes a file below one of these; all where there are none.
    pub touching: Vec<String>,
}

/// What is told of a series, in this order.
#[derive(Debug)]
pub enum SeriesEvent<'a> {
    /// It was read.
    Read(&'a Series),
    /// Whether the patch of a place applies. Not told of a range of commits.
    Place(&'a PlaceReport),
    /// A kernel was built and judged, or could not be.
    Kernel(&'a PatchReport),
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
    /// Patches that apply, and those that the tree has already.
    pub applied: usize,
    /// Patches that do not apply.
    pub conflicts: usize,
    /// Patches that the series lacks.
    pub missing: usize,
    /// Patches behind one that does not apply or is missing.
    pub not_tried: usize,
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
        let bad = self.broken + self.unbuilt + self.conflicts + self.missing;
        match (bad, self.untested + self.not_tried) {
            (0, 0) => OutcomeClass::Good,
            (0, _) => OutcomeClass::Untested,
            _ => OutcomeClass::Bad,
        }
    }
}

/// Tells how the patches of a series apply, and builds and judges each state of it.
///
/// # Errors
/// [`CampaignError`].
pub fn series(
    request: &SeriesRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(SeriesEvent<'_>) -> io::Result<()>,
) -> Result<SeriesSummary, CampaignError> {
    let mut tally = SeriesTally::default();
    let library = context.open(&request.scenarios)?;
    let kernels = kernels(request, context, &mut tally.summary, tell)?;
    if request.apply_only {
        return Ok(tally.summary);
    }
    let suite = Suite {
        library,
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
    let mut kernels = kernels.into_iter();
    suite.run_each(&jobs, |at, results| {
        let (number, title) = match kernels.next() {
            Some(kernel) => (kernel.number, kernel.title),
            None => (at, String::new()),
        };
        let report = PatchReport {
            number,
            title,
            results: tally.take(results),
        };
        Ok(tell(SeriesEvent::Kernel(&report))?)
    })?;
    Ok(tally.summary)
}

/// The kernel after a patch.
struct SeriesKernel {
    /// The place of the patch in the series; the base is 0.
    number: usize,
    /// `base`, or the patch.
    title: String,
    request: KernelRequest,
}

impl SeriesKernel {
    fn base(spec: BuildSpec) -> Self {
        Self {
            number: 0,
            title: "base".to_owned(),
            request: KernelRequest::Build(spec),
        }
    }
}

/// The base and each patch on it.
fn kernels(
    request: &SeriesRequest,
    context: Context<'_>,
    summary: &mut SeriesSummary,
    tell: &mut dyn FnMut(SeriesEvent<'_>) -> io::Result<()>,
) -> Result<Vec<SeriesKernel>, CampaignError> {
    let mut build = request.build.clone();
    if let Some(base) = &request.base {
        if build.tree.is_none() {
            return Err(SeriesError::BaseWithoutTree.into());
        }
        build.rev = Some(base.clone());
    }
    if let Some(range) = range(&request.series) {
        if request.apply_only || request.skip_conflicts || !request.touching.is_empty() {
            return Err(SeriesError::NoPatches(range).into());
        }
        return commits(request, &build, &range);
    }
    let provider = context.provider;
    let mut spec = build.build_spec()?;
    let series = if request.series == Path::new(DEBIAN) && !request.series.exists() {
        let (series, upstream) = provider.debian_series(context.progress)?;
        if build.tree.is_none() && build.source.is_none() {
            spec.source = upstream;
        }
        series
    } else {
        // git-mailsplit(1) does not say what is wrong with such a file.
        let read = input::read(&request.series, input::RECORDED);
        if read.is_ok_and(|it| it.trim_ascii().is_empty()) {
            let error = BuildError::NoPatches(request.series.clone());
            return Err(ProviderError::from(error).into());
        }
        provider.series(&request.series)?
    };
    tell(SeriesEvent::Read(&series))?;
    let places = places::places(&series, &spec, request.skip_conflicts, context)?;
    for place in &places {
        summary.count(&place.state);
        tell(SeriesEvent::Place(place))?;
    }
    Ok(on_base(spec, places, &request.touching))
}

/// The range of commits that a series is, if it is one. No revision begins or ends like the path of a file.
fn range(series: &Path) -> Option<String> {
    let text = series.to_string_lossy();
    let is_path = ["/", "./", "../"].iter().any(|it| text.starts_with(it))
        || [".mbox", ".patch"].iter().any(|it| text.ends_with(it));
    (text.contains("..") && !is_path && !series.exists()).then(|| text.into_owned())
}

/// The base and the commits of a range.
fn commits(
    request: &SeriesRequest,
    build: &KernelChoice,
    range: &str,
) -> Result<Vec<SeriesKernel>, CampaignError> {
    let spec = build.build_spec()?;
    let Some(tree) = build.tree.clone() else {
        return Err(SeriesError::RangeWithoutTree(range.to_owned()).into());
    };
    let history = repository(&tree)?;
    let commits = history.range(range).map_err(ProviderError::from)?;
    let Some(first) = commits.first() else {
        return Err(SeriesError::EmptyRange(range.to_owned()).into());
    };
    let base = request.base.clone();
    let base = base.unwrap_or_else(|| format!("{}^", first.id));
    let at = |revision: String| BuildSpec {
        source: Source::Revision {
            tree: tree.clone(),
            revision,
        },
        ..spec.clone()
    };
    let mut kernels = vec![SeriesKernel::base(at(base))];
    for (commit, number) in commits.into_iter().zip(1..) {
        kernels.push(SeriesKernel {
            number,
            title: format!("{} {}", commit.short(), commit.subject),
            request: KernelRequest::Build(at(commit.id)),
        });
    }
    Ok(kernels)
}

/// The base, and what follows each patch that applies, and changes a file below one of `touching` if there are some.
fn on_base(
    mut spec: BuildSpec,
    places: Vec<PlaceReport>,
    touching: &[String],
) -> Vec<SeriesKernel> {
    let mut kernels = vec![SeriesKernel::base(spec.clone())];
    for place in places {
        let PlaceState::Tried(attempt) = place.state else {
            continue;
        };
        if !attempt.application.changes() {
            continue;
        }
        let touches = |below: &String| attempt.files.iter().any(|file| file.starts_with(below));
        let wanted = touching.is_empty() || touching.iter().any(touches);
        spec.patches.push(attempt.patch);
        if wanted {
            kernels.push(SeriesKernel {
                number: place.number,
                title: place.title,
                request: KernelRequest::Build(spec.clone()),
            });
        }
    }
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::testing::{FakeProvider, folder};

    #[test]
    fn a_missing_file_is_no_range() {
        let of = |text: &str| range(Path::new(text));
        for file in [
            "../v9.mbox",
            "./a..b",
            "/tmp/a..b",
            "v9..mbox.patch",
            "v9.mbox",
        ] {
            assert_eq!(of(file), None, "{file}");
        }
        for commits in ["v7.0..v7.1", "HEAD~3..", "..HEAD", "v7.0..topic/x"] {
            assert_eq!(of(commits), Some(commits.to_owned()));
        }
    }

    #[test]
    fn an_mbox_without_a_mail_is_wrong_usage() {
        let folder = folder();
        let mbox = folder.path().join("empty.mbox");
        std::fs::write(&mbox, "\n").unwrap();
        let request = SeriesRequest {
            series: mbox,
            scenarios: vec![folder.path().join("a.yaml")],
            ..SeriesRequest::default()
        };
        let provider = FakeProvider::new([]);
        let error = series(&request, provider.context(), &mut |_| Ok(())).unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert!(error.to_string().starts_with("no patch in "), "{error}");
    }
}
