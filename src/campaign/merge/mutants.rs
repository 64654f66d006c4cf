//! The parts of the mutants together.

use super::MergedMutants;
use super::parts::Parts;
use crate::campaign::mutants::RowRecord;
use crate::judge::outcome::OutcomeClass;
use crate::report::matrix::{Matrix, MutantRow};

/// The matrix as the whole command has it. Of two rows of one mutant the worse counts.
pub(super) fn merged(parts: &Parts<'_>, mut lacks: Vec<String>) -> MergedMutants {
    let mut matrix = Matrix::new(parts.head.columns.clone());
    for unit in parts.head.units.iter().flat_map(|it| it.each()) {
        let mut rows: Vec<MutantRow> = Vec::new();
        for line in parts.lines.get(&unit).into_iter().flatten() {
            match serde_json::from_str::<RowRecord>(line) {
                Ok(read) if read.row.name == unit.name => rows.push(read.row),
                Ok(_) => lacks.push(format!("{unit}: a row of another mutant")),
                Err(error) => lacks.push(format!("{unit}: {error}")),
            }
        }
        let badness = |row: &MutantRow| match row.fate.class() {
            OutcomeClass::Bad => 2,
            OutcomeClass::Untested => 1,
            OutcomeClass::Good => 0,
        };
        matrix.rows.extend(rows.into_iter().max_by_key(badness));
    }
    let class = match matrix.class() {
        OutcomeClass::Good if !lacks.is_empty() => OutcomeClass::Untested,
        class => class,
    };
    MergedMutants {
        matrix,
        release: parts.head.release.clone(),
        lacks,
        class,
    }
}
