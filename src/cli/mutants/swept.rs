//! `unwindlab mutants --sweep`: those whose window is a single NMI, told by a sweep that knows nothing of them.

use std::collections::BTreeSet;
use std::time::Instant;

use clap::Parser as _;
use unwindlab_guest_kernel::build::header::Mutant;

use super::{CONTROL, chosen, conclude, told};
use crate::cli::analysis::Analysis;
use crate::cli::args::{Cli, Command, MutantsArgs, SweepArgs};
use crate::cli::error::CommandError;
use crate::cli::output::print;
use crate::cli::sweep::{Swept, points, sweep_with};
use crate::host::provider::{Provider, TestKernel};
use crate::interrupt::Interrupt;
use crate::judge::sweep::SweepSymptom;
use crate::report::matrix::{Cell, Fate, Matrix, Row};

/// Sweeps each mutant as its header says, and the kernel without one in each of these ways; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub(super) fn mutants(
    args: &MutantsArgs,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    let start = Instant::now();
    let mutants = chosen(&args.only)?;
    let swept: Vec<(&Mutant, &String)> = mutants
        .iter()
        .filter_map(|mutant| Some((mutant, mutant.sweep.as_ref()?)))
        .collect();
    if swept.is_empty() {
        return Err(CommandError::Usage(
            "none of these mutants has a single NMI's window: their headers name no sweep"
                .to_owned(),
        ));
    }
    let ways: BTreeSet<&String> = swept.iter().map(|(_, way)| *way).collect();
    let mut matrix = Matrix::new(ways.iter().copied().cloned().collect());
    let run = |way: &str, mutant: Option<&Mutant>| {
        let sweep = sweep_of(way, mutant, args)?;
        let points = |kernel: &dyn TestKernel| points(&sweep, kernel.symbols());
        sweep_with(&sweep, &points, provider, analysis, interrupt)
    };
    let mut control = row(None);
    for way in ways {
        let found = run(way, None)?;
        let unknown = fallen(&found);
        if !unknown.is_empty() {
            let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
            control.fate = Fate::Unclean(format!("{way}: {}", unknown.join(", ")));
        }
        control.cells.push((way.clone(), cell(unknown)));
    }
    take(&mut matrix, control)?;
    for (mutant, way) in swept {
        let mut row = row(Some(mutant));
        match run(way, Some(mutant)) {
            Ok(found) => {
                let fell = fallen(&found);
                row.fate = fate(mutant, &fell);
                row.cells.push((way.clone(), cell(fell)));
            }
            Err(CommandError::Interrupted) => return Err(CommandError::Interrupted),
            Err(error) => row.fate = Fate::Untested(error.to_string()),
        }
        take(&mut matrix, row)?;
    }
    conclude(&matrix, start)
}

fn take(matrix: &mut Matrix, row: Row) -> Result<(), CommandError> {
    print(&format!("{}\n", row.line()))?;
    matrix.rows.push(row);
    Ok(())
}

/// What nothing was run for yet.
fn row(mutant: Option<&Mutant>) -> Row {
    Row {
        name: mutant.map_or(CONTROL, |mutant| &mutant.name).to_owned(),
        falls: mutant.map_or_else(Vec::new, |mutant| mutant.falls.clone()),
        cells: Vec::new(),
        fate: Fate::Clean,
    }
}

fn cell(fell: BTreeSet<String>) -> Cell {
    match fell.is_empty() {
        true => Cell::Pass,
        false => Cell::Fell(fell.into_iter().collect()),
    }
}

fn fate(mutant: &Mutant, fell: &BTreeSet<String>) -> Fate {
    told(&mutant.falls, fell).unwrap_or(Fate::Survived)
}

/// The invariants that fell at any point and are no finding; of a guest that died there, how.
fn fallen(swept: &Swept) -> BTreeSet<String> {
    let of = |symptom: &SweepSymptom| {
        let fell = symptom.fell.iter();
        let unknown = fell.filter(|(_, finding)| finding.is_none());
        let names = unknown.map(|(invariant, _)| invariant.clone());
        names
            .chain(symptom.died.map(str::to_owned))
            .collect::<Vec<_>>()
    };
    swept.failures.iter().flat_map(of).collect()
}

/// The command that a mutant's header names, on the kernel with it.
fn sweep_of(
    way: &str,
    mutant: Option<&Mutant>,
    args: &MutantsArgs,
) -> Result<SweepArgs, CommandError> {
    let wrong = |why: String| CommandError::Usage(format!("sweep {way:?} of a mutant: {why}"));
    let words = ["unwindlab", "sweep"].into_iter().chain(way.split(' '));
    let cli = Cli::try_parse_from(words).map_err(|error| wrong(error.to_string()))?;
    let Command::Sweep(mut sweep) = cli.command else {
        return Err(wrong("no sweep".to_owned()));
    };
    sweep.kernel.build = args.build.clone();
    let build = &mut sweep.kernel.build;
    if build.tree.is_none() && build.source.is_none() {
        build.source = Some("debian".to_owned());
    }
    build.patch.extend(mutant.map(|it| it.patch.name.clone()));
    sweep.kvm_host = args.kvm_host;
    Ok(sweep)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwindlab_guest_kernel::build::header;

    #[test]
    fn every_sweep_that_a_mutant_names_is_one() {
        let cli = Cli::try_parse_from(["unwindlab", "mutants", "--sweep"]).unwrap();
        let Command::Mutants(args) = cli.command else {
            panic!()
        };
        let all = header::mutants().unwrap();
        let named = all.iter().filter(|mutant| mutant.sweep.is_some());
        assert!(named.clone().count() > 10);
        for mutant in named {
            let way = mutant.sweep.as_ref().unwrap();
            let sweep = sweep_of(way, Some(mutant), &args).unwrap();
            assert_eq!(
                sweep.kernel.build.patch.as_slice(),
                std::slice::from_ref(&mutant.patch.name)
            );
            let file = format!("scenarios/{}.yaml", sweep.scenario.display());
            assert!(std::path::Path::new(&file).exists(), "{file}");
        }
        assert!(sweep_of("--nothing", None, &args).is_err());
    }

    #[test]
    fn a_finding_is_no_kill() {
        let mutant = header::mutants().unwrap().remove(0);
        let known = SweepSymptom {
            died: None,
            fell: [("C4".to_owned(), Some("F001".to_owned()))].into(),
        };
        let swept = |symptom: SweepSymptom| Swept {
            failures: vec![symptom],
            tried: 1,
            release: String::new(),
        };
        let fell = fallen(&swept(known.clone()));
        assert_eq!(fate(&mutant, &fell), Fate::Survived);
        let mut unknown = known;
        unknown.fell.insert((mutant.falls[0].clone(), None));
        assert_eq!(fate(&mutant, &fallen(&swept(unknown))), Fate::Killed);
        let died = SweepSymptom {
            died: Some("hang"),
            fell: BTreeSet::new(),
        };
        let fell = fallen(&swept(died));
        assert_eq!(
            fate(&mutant, &fell),
            Fate::Misjudged(vec!["hang".to_owned()])
        );
    }
}
