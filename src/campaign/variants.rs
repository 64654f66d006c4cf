//! The design alternatives of the mailing list, measured side by side.

use std::io;
use std::path::PathBuf;

use unwindlab_guest_kernel::BuildSpec;
use unwindlab_guest_kernel::build::header::{self, Variant};

use super::Context;
use super::error::CampaignError;
use super::kernel::KernelChoice;
use super::suite::{KernelJob, KernelResults, Suite, choose};
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::judge::{Outcome, ScenarioResult};
use crate::report::comparison::{DesignColumn, DesignTable};
use crate::report::figures::{Figures, WHOLE_CALL};
use unwindlab_scenario::Loaded;

/// The kernel as it is, which is an answer on both axes.
const TODAY: &str = "(as it is)";

/// Which variants to compare, by which scenarios.
#[derive(Debug, Clone, Default)]
pub struct VariantsRequest {
    /// Files, folders, or names of scenarios; the whole library where there are none.
    pub scenarios: Vec<PathBuf>,
    /// Only variants of these names; all where there are none.
    pub only: Vec<String>,
    /// The kernel that the variants are made of.
    pub base: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
}

/// Builds and runs variants; each column is told as soon as it is measured.
///
/// # Errors
/// [`CampaignError`].
pub fn variants(
    request: &VariantsRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(&DesignColumn) -> io::Result<()>,
) -> Result<DesignTable, CampaignError> {
    let all = header::variants()?;
    let variants = choose(all, |variant| &variant.name, &request.only, "variant")?;
    let base = request.base.build_spec()?;
    let suite = Suite {
        library: library(&request.scenarios, context)?,
        kvm_host: request.kvm_host,
        context,
    };
    let jobs = jobs(&base, &variants);
    let mut table = DesignTable::default();
    suite.run_each(&jobs, |at, results| {
        let variant = at.checked_sub(1).and_then(|at| variants.get(at));
        let column = column(variant, results);
        tell(&column)?;
        table.columns.push(column);
        Ok(())
    })?;
    Ok(table)
}

/// The scenarios that are named, else the library and the long one that a figure needs.
fn library(named: &[PathBuf], context: Context<'_>) -> Result<Vec<Loaded>, CampaignError> {
    let mut scenarios = context.open(named)?;
    if named.is_empty() {
        scenarios.extend(context.open(&[PathBuf::from(WHOLE_CALL)])?);
    }
    Ok(scenarios)
}

fn jobs(base: &BuildSpec, variants: &[Variant]) -> Vec<KernelJob> {
    let with = |variant: Option<&Variant>| {
        let mut spec = base.clone();
        spec.patches.extend(variant.map(|it| it.patch.clone()));
        KernelJob {
            request: KernelRequest::Build(spec),
            only: None,
        }
    };
    let mut jobs = vec![with(None)];
    jobs.extend(variants.iter().map(|variant| with(Some(variant))));
    jobs
}

fn column(variant: Option<&Variant>, results: KernelResults) -> DesignColumn {
    let name = variant.map_or(TODAY, |variant| &variant.name).to_owned();
    match results {
        Ok(results) => DesignColumn {
            name,
            figures: Figures::of(&results),
            fallen: all_fallen(&results),
            died: died(&results),
            error: untested(&results),
        },
        Err(error) => DesignColumn {
            name,
            error: Some(error.to_string()),
            ..DesignColumn::default()
        },
    }
}

/// Each invariant that fell, and where.
fn all_fallen(results: &[ScenarioResult]) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for result in results {
        for invariant in result.fallen() {
            match all.iter_mut().find(|(id, _)| id == invariant) {
                Some((_, scenarios)) => scenarios.push(result.name.clone()),
                None => all.push((invariant.to_owned(), vec![result.name.clone()])),
            }
        }
    }
    all.sort();
    all
}

/// The scenarios that the kernel did not survive, or did not end.
fn died(results: &[ScenarioResult]) -> Vec<String> {
    results
        .iter()
        .filter(|result| result.outcome.is_death())
        .map(|result| format!("{} ({})", result.name, result.outcome.name()))
        .collect()
}

/// Why a scenario could not be run; a skip says so itself and is no error.
fn untested(results: &[ScenarioResult]) -> Option<String> {
    results
        .iter()
        .filter(|result| result.outcome != Outcome::Skip)
        .find(|result| !result.is_tested())
        .map(ScenarioResult::brief)
}
