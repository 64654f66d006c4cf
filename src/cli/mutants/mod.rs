//! `unwindlab mutants`: kernels that are wrong on purpose, and which scenario tells.

mod swept;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use unwindlab_guest_kernel::BuildSpec;
use unwindlab_guest_kernel::build::header::{self, Mutant};

use crate::cli::analysis::Analysis;
use crate::cli::args::MutantsArgs;
use crate::cli::error::CommandError;
use crate::cli::kernel;
use crate::cli::output::print;
use crate::cli::progress::Spinner;
use crate::cli::suite::{Job, Judged, Suite, choose};
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::Provider;
use crate::interrupt::Interrupt;
use crate::judge::outcome::EXIT_UNTESTED;
use crate::judge::{Outcome, ScenarioResult};
use crate::report::matrix::{Cell, Fate, Matrix, Row};
use crate::scenario::library::LibraryError;
use crate::scenario::{Library, Loaded};

/// The row of the kernel without a mutant.
const CONTROL: &str = "(no mutant)";

/// Builds and runs the mutants, and prints the kill matrix; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn mutants(
    args: &MutantsArgs,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    if args.sweep {
        return swept::mutants(args, provider, analysis, interrupt);
    }
    let start = Instant::now();
    let mutants = chosen(&args.only)?;
    let base = kernel::build_spec(&args.build)?;
    let scenarios = library(args, &mutants, analysis)?;
    let spinner = Spinner::new();
    let suite = Suite {
        library: scenarios,
        kvm_host: args.kvm_host,
        provider,
        analysis,
        spinner: &spinner,
        interrupt,
    };
    let names: Vec<String> = suite
        .library
        .iter()
        .map(|loaded| String::clone(&loaded.scenario.name))
        .collect();
    let jobs = jobs(&base, &mutants, &names, args)?;
    let mut matrix = Matrix::new(names);
    suite.run_each(&jobs, |at, judged| {
        let mutant = at.checked_sub(1).and_then(|at| mutants.get(at));
        let row = row(mutant, judged);
        spinner.suspend(|| print(&format!("{}\n", row.line())))?;
        matrix.rows.push(row);
        Ok(())
    })?;
    spinner.clear();
    conclude(&matrix, start)
}

/// Prints the kill matrix as a whole; the exit code.
fn conclude(matrix: &Matrix, start: Instant) -> Result<u8, CommandError> {
    print(&format!(
        "\n{}\n{} in {:.0} s\n",
        matrix.table(),
        matrix.summary(),
        start.elapsed().as_secs_f64()
    ))?;
    Ok(exit_code(matrix))
}

/// The library, and of the scenarios that are too long for it those that a mutant names.
fn library(
    args: &MutantsArgs,
    mutants: &[Mutant],
    analysis: &Analysis,
) -> Result<Vec<Loaded>, CommandError> {
    let ids = analysis.invariant_ids();
    let Library { mut scenarios } = Library::open(&args.scenarios, &ids)?;
    if args.all || !args.scenarios.is_empty() {
        return Ok(scenarios);
    }
    let known = |name: &String| scenarios.iter().any(|it| *it.scenario.name == *name);
    let named = mutants.iter().flat_map(|mutant| &mutant.scenarios);
    let long: BTreeSet<PathBuf> = named
        .filter(|name| !known(name))
        .map(PathBuf::from)
        .collect();
    for name in long {
        match Library::open(&[name], &ids) {
            Ok(found) => scenarios.extend(found.scenarios),
            // Said with the mutant's name, see `jobs`.
            Err(LibraryError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(scenarios)
}

fn chosen(only: &[String]) -> Result<Vec<Mutant>, CommandError> {
    let all = header::mutants().map_err(|error| CommandError::Usage(error.to_string()))?;
    let mut all = choose(all, |mutant| &mutant.name, only, "mutant")?;
    // A header is compiled into most of the kernel: those that change one are built in a row.
    all.sort_by_key(|mutant| {
        let text = String::from_utf8_lossy(&mutant.patch.content).into_owned();
        let in_header = text
            .lines()
            .any(|line| line.starts_with("+++ b/") && line.ends_with(".h"));
        (in_header, mutant.name.clone())
    });
    Ok(all)
}

/// The kernel without a mutant first, then each mutant, with the scenarios of each.
fn jobs(
    base: &BuildSpec,
    mutants: &[Mutant],
    names: &[String],
    args: &MutantsArgs,
) -> Result<Vec<Job>, CommandError> {
    let everything = args.all || !args.scenarios.is_empty();
    let mut jobs = vec![Job {
        request: KernelRequest::Build(base.clone()),
        only: None,
    }];
    for mutant in mutants {
        if let Some(unknown) = mutant.scenarios.iter().find(|it| !names.contains(it))
            && !everything
        {
            return Err(CommandError::Usage(format!(
                "{} names the scenario {unknown}, which is not in the library",
                mutant.patch.name
            )));
        }
        let mut spec = base.clone();
        spec.patches.push(mutant.patch.clone());
        jobs.push(Job {
            request: KernelRequest::Build(spec),
            only: (!everything && !mutant.scenarios.is_empty()).then(|| mutant.scenarios.clone()),
        });
    }
    let all_name_theirs = mutants.iter().all(|it| !it.scenarios.is_empty());
    if !everything
        && all_name_theirs
        && let Some(control) = jobs.first_mut()
    {
        // The scenarios that some mutant is to be killed by must pass without one.
        let mut used: Vec<String> = mutants
            .iter()
            .flat_map(|mutant| mutant.scenarios.iter().cloned())
            .collect();
        used.sort();
        used.dedup();
        control.only = Some(used);
    }
    Ok(jobs)
}

fn row(mutant: Option<&Mutant>, judged: Judged) -> Row {
    let name = mutant.map_or(CONTROL, |mutant| &mutant.name).to_owned();
    let falls = mutant
        .map(|mutant| mutant.falls.clone())
        .unwrap_or_default();
    let results = match judged {
        Judged::Ran { results, .. } => results,
        Judged::NotBuilt(error) => {
            return Row {
                name,
                falls,
                cells: Vec::new(),
                fate: Fate::Untested(error.to_string()),
            };
        }
    };
    let cells: Vec<(String, Cell)> = results
        .iter()
        .map(|result| (result.name.clone(), cell(result)))
        .collect();
    let fate = match mutant {
        Some(mutant) => fate(&mutant.falls, &results),
        None => control(&results),
    };
    Row {
        name,
        falls,
        cells,
        fate,
    }
}

fn cell(result: &ScenarioResult) -> Cell {
    let fallen = result.fallen();
    if !result.outcome.is_tested() {
        Cell::Untested(result.outcome)
    } else if fallen.is_empty() {
        match result.outcome {
            Outcome::Pass | Outcome::ExpectedFailure => Cell::Pass,
            // It is not right, but no invariant says why: that is no kill by one.
            other => Cell::Unexplained(other),
        }
    } else {
        Cell::Fell(fallen.into_iter().map(str::to_owned).collect())
    }
}

/// The fate of a mutant of which these fell; none where nothing did.
fn told(falls: &[String], fallen: &BTreeSet<String>) -> Option<Fate> {
    if fallen.iter().any(|it| falls.contains(it)) {
        return Some(Fate::Killed);
    }
    let others: Vec<String> = fallen.iter().cloned().collect();
    (!others.is_empty()).then_some(Fate::Misjudged(others))
}

fn fate(falls: &[String], results: &[ScenarioResult]) -> Fate {
    let fallen = results.iter().flat_map(|result| result.fallen());
    if let Some(fate) = told(falls, &fallen.map(str::to_owned).collect()) {
        return fate;
    }
    let untested = results.iter().find(|result| !result.outcome.is_tested());
    match untested {
        Some(result) => Fate::Untested(result.brief()),
        None => Fate::Survived,
    }
}

/// The kernel without a mutant must pass whatever a mutant is killed by.
fn control(results: &[ScenarioResult]) -> Fate {
    let good = |result: &&ScenarioResult| {
        matches!(
            result.outcome,
            Outcome::Pass | Outcome::ExpectedFailure | Outcome::Skip
        )
    };
    match results.iter().find(|result| !good(result)) {
        None => Fate::Clean,
        Some(result) if result.outcome.is_tested() => Fate::Unclean(result.brief()),
        Some(result) => Fate::Untested(result.brief()),
    }
}

fn exit_code(matrix: &Matrix) -> u8 {
    let any = |test: fn(&Fate) -> bool| matrix.rows.iter().any(|row| test(&row.fate));
    if any(|fate| matches!(fate, Fate::Survived | Fate::Misjudged(_) | Fate::Unclean(_))) {
        1
    } else if any(|fate| matches!(fate, Fate::Untested(_))) {
        EXIT_UNTESTED
    } else {
        0
    }
}
