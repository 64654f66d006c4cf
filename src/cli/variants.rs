//! `unwindlab variants`: the design alternatives, measured side by side.

use std::path::PathBuf;
use std::time::Instant;

use unwindlab_guest_kernel::BuildSpec;
use unwindlab_guest_kernel::build::header::{self, Variant};

use super::analysis::Analysis;
use super::args::VariantsArgs;
use super::error::CommandError;
use super::kernel;
use super::output::print;
use super::progress::Spinner;
use super::suite::{Job, Judged, Suite, choose};
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::Provider;
use crate::interrupt::Interrupt;
use crate::judge::ScenarioResult;
use crate::judge::outcome::EXIT_UNTESTED;
use crate::report::comparison::{Column, Comparison};
use crate::report::figures::{Figures, WHOLE_CALL};
use crate::scenario::{Library, Loaded};

/// The kernel as it is, which is an answer on both axes.
const TODAY: &str = "(as it is)";

/// Builds and runs the variants and prints the comparison; the exit code: 0 where all could be
/// measured, whatever they do wrong.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn variants(
    args: &VariantsArgs,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    let start = Instant::now();
    let all = header::variants().map_err(|error| CommandError::Usage(error.to_string()))?;
    let variants = choose(all, |variant| &variant.name, &args.only, "variant")?;
    let base = kernel::build_spec(&args.build)?;
    let spinner = Spinner::new();
    let suite = Suite {
        library: library(&args.scenarios, &analysis.invariant_ids())?,
        kvm_host: args.kvm_host,
        provider,
        analysis,
        spinner: &spinner,
        interrupt,
    };
    let jobs = jobs(&base, &variants);
    let mut comparison = Comparison::default();
    suite.run_each(&jobs, |at, judged| {
        let variant = at.checked_sub(1).and_then(|at| variants.get(at));
        let column = column(variant, judged);
        let line = match &column.error {
            Some(error) => format!("{}: not measured: {error}\n", column.name),
            None => format!("{}: measured\n", column.name),
        };
        comparison.columns.push(column);
        Ok(spinner.suspend(|| print(&line))?)
    })?;
    spinner.clear();
    print(&format!(
        "\n{}\n{:.0} s\n",
        comparison.table(),
        start.elapsed().as_secs_f64()
    ))?;
    let all = comparison.columns.iter().all(|it| it.error.is_none());
    Ok(if all { 0 } else { EXIT_UNTESTED })
}

/// The scenarios that are named, else the library and the long one that a figure needs.
fn library(named: &[PathBuf], invariants: &[&str]) -> Result<Vec<Loaded>, CommandError> {
    let mut scenarios = Library::open(named, invariants)?.scenarios;
    if named.is_empty() {
        scenarios.extend(Library::open(&[PathBuf::from(WHOLE_CALL)], invariants)?.scenarios);
    }
    Ok(scenarios)
}

fn jobs(base: &BuildSpec, variants: &[Variant]) -> Vec<Job> {
    let with = |variant: Option<&Variant>| {
        let mut spec = base.clone();
        spec.patches.extend(variant.map(|it| it.patch.clone()));
        Job {
            request: KernelRequest::Build(spec),
            only: None,
        }
    };
    let mut jobs = vec![with(None)];
    jobs.extend(variants.iter().map(|variant| with(Some(variant))));
    jobs
}

fn column(variant: Option<&Variant>, judged: Judged) -> Column {
    let name = variant.map_or(TODAY, |variant| &variant.name).to_owned();
    match judged {
        Judged::Ran { results } => Column {
            name,
            figures: Figures::of(&results),
            fallen: all_fallen(&results),
            died: died(&results),
            error: untested(&results),
        },
        Judged::NotBuilt(error) => Column {
            name,
            error: Some(error.to_string()),
            ..Column::default()
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
    use crate::judge::Outcome::{GuestPanic, Hang};
    results
        .iter()
        .filter(|result| matches!(result.outcome, GuestPanic | Hang))
        .map(|result| format!("{} ({})", result.name, result.outcome.name()))
        .collect()
}

/// Why a scenario could not be run; a skip says so itself and is no error.
fn untested(results: &[ScenarioResult]) -> Option<String> {
    results
        .iter()
        .filter(|result| result.outcome != crate::judge::Outcome::Skip)
        .find(|result| !result.outcome.is_tested())
        .map(ScenarioResult::brief)
}
