//! Mutants whose window is a single NMI, caught by sweeps that are not made for them.

use std::collections::BTreeSet;
use std::io;

use unwindlab_guest_kernel::build::header::Mutant;

use super::part::MutantsPart;
use super::{CONTROL, MutantsRequest, caught, not_caught, sweep_text};
use crate::campaign::Context;
use crate::campaign::error::{CampaignError, MutantsError};
use crate::campaign::sweep::{SweepRequest, SweepSummary, sweep};
use crate::judge::sweep::SweepSymptom;
use crate::report::matrix::{Cell, Fate, Matrix, MutantRow};

/// Makes the sweep that each mutant's header names, and each of these sweeps without a mutant.
pub(super) fn mutants(
    request: &MutantsRequest,
    mutants: &[Mutant],
    context: Context<'_>,
    tell: &mut dyn FnMut(&MutantRow) -> io::Result<()>,
) -> Result<Matrix, CampaignError> {
    let swept: Vec<(&Mutant, &String)> = mutants
        .iter()
        .filter_map(|mutant| Some((mutant, mutant.sweep.as_ref()?)))
        .collect();
    if swept.is_empty() {
        return Err(MutantsError::NothingToSweep.into());
    }
    let sweeps: BTreeSet<&String> = swept.iter().map(|(_, text)| *text).collect();
    let mut matrix = Matrix::new(sweeps.iter().copied().cloned().collect());
    let all: Vec<&Mutant> = swept.iter().map(|it| it.0).collect();
    let columns: Vec<String> = sweeps.iter().copied().cloned().collect();
    let library = context.open(&[])?;
    let mut part = MutantsPart::open(request, &all, (&columns, &library), context)?;
    let mut take = |part: &mut MutantsPart, row: MutantRow| -> Result<(), CampaignError> {
        tell(&row)?;
        part.take(row)
    };
    let run = |text: &str, mutant: Option<&Mutant>| {
        sweep(&sweep_of(text, mutant, request)?, context, &mut |_| Ok(()))
    };
    if part.is_left(None) {
        let mut control = row(None);
        for text in sweeps {
            let unknown = unknown_symptoms(&run(text, None)?);
            if !unknown.is_empty() {
                let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
                control.fate = Fate::Unclean(format!("{text}: {}", unknown.join(", ")));
            }
            control.cells.push((text.clone(), cell(unknown)));
        }
        take(&mut part, control)?;
    }
    for (mutant, text) in swept {
        if !part.is_left(Some(mutant)) {
            continue;
        }
        let mut row = row(Some(mutant));
        match run(text, Some(mutant)) {
            Ok(found) => {
                let fell = unknown_symptoms(&found);
                row.fate = fate(mutant, &fell, &found);
                row.cells.push((text.clone(), cell(fell)));
            }
            Err(CampaignError::Interrupted) => return Err(CampaignError::Interrupted),
            Err(error) => row.fate = Fate::Untested(error.to_string()),
        }
        take(&mut part, row)?;
    }
    matrix.rows = part.rows();
    Ok(matrix)
}

/// A row before anything is run.
fn row(mutant: Option<&Mutant>) -> MutantRow {
    MutantRow {
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

fn fate(mutant: &Mutant, fell: &BTreeSet<String>, swept: &SweepSummary) -> Fate {
    let all = swept.failures.iter().flat_map(|it| &it.fell);
    let findings = all.filter_map(|(_, finding)| finding.as_deref());
    caught(&mutant.falls, fell).unwrap_or_else(|| not_caught(findings))
}

/// The invariants that fell at any point without being a finding, and how guests died.
pub(in crate::campaign) fn unknown_symptoms(swept: &SweepSummary) -> BTreeSet<String> {
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

/// The sweep that a mutant's header names, on the kernel with the mutant.
fn sweep_of(
    text: &str,
    mutant: Option<&Mutant>,
    request: &MutantsRequest,
) -> Result<SweepRequest, MutantsError> {
    let path = sweep_text::parse(text).map_err(|why| MutantsError::Sweep {
        text: text.to_owned(),
        why,
    })?;
    Ok(SweepRequest {
        kernel: request.base.patched(mutant.map(|it| &it.patch)),
        kvm_host: request.kvm_host,
        ..SweepRequest::of(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwindlab_guest_kernel::build::header;

    #[test]
    fn a_sweep_is_of_the_kernel_with_the_mutant() {
        let mutant = header::mutants().unwrap().remove(0);
        let request = MutantsRequest::default();
        let sweep = sweep_of("nmi-in-syscall", Some(&mutant), &request).unwrap();
        assert_eq!(sweep.kernel.patch, [mutant.patch.name]);
        assert_eq!(sweep.kernel.source.as_deref(), Some("debian"));
        assert!(sweep_of("--nothing", None, &request).is_err());
    }

    #[test]
    fn a_finding_is_no_kill() {
        let mutant = header::mutants().unwrap().remove(0);
        let known = SweepSymptom {
            died: None,
            fell: [("C4".to_owned(), Some("F001".to_owned()))].into(),
        };
        let swept = |symptom: SweepSymptom| SweepSummary {
            failures: vec![symptom],
            tried: 1,
            incomplete: false,
            release: String::new(),
        };
        let of = |symptom: &SweepSymptom| {
            let summary = swept(symptom.clone());
            fate(&mutant, &unknown_symptoms(&summary), &summary)
        };
        assert_eq!(of(&known), Fate::Excused(vec!["F001".to_owned()]));
        let mut unknown = known;
        unknown.fell.insert((mutant.falls[0].clone(), None));
        assert_eq!(of(&unknown), Fate::Killed);
        let died = SweepSymptom {
            died: Some("hang"),
            fell: BTreeSet::new(),
        };
        assert_eq!(of(&died), Fate::Misjudged(vec!["hang".to_owned()]));
        let nothing = SweepSymptom {
            died: None,
            fell: BTreeSet::new(),
        };
        assert_eq!(of(&nothing), Fate::Survived);
    }
}
