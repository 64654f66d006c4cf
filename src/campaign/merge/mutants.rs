//! The parts of the mutants together.

use super::Merged;
use super::parts::Parts;
use crate::campaign::mutants::RowRecord;
use crate::judge::outcome::OutcomeClass;
use crate::report::matrix::{Matrix, MutantRow};

/// The matrix as the whole command has it. Of two rows of one mutant the worse counts.
pub(super) fn merged(parts: &Parts<'_>, mut lacks: Vec<String>) -> Merged<Matrix> {
    let mut matrix = Matrix::new(parts.head.columns.clone());
    for unit in parts.head.units.iter().flat_map(|it| it.each()) {
        let is_its = |it: &RowRecord| it.row.name == unit.name;
        let read = parts.read(&unit, is_its, "a row of another mutant", &mut lacks);
        let rows = read.into_iter().map(|it| it.row);
        let badness = |row: &MutantRow| match row.fate.class() {
            OutcomeClass::Bad => 2,
            OutcomeClass::Untested => 1,
            OutcomeClass::Good => 0,
        };
        matrix.rows.extend(rows.max_by_key(badness));
    }
    let class = matrix.class();
    Merged::new(matrix, class, parts, lacks)
}
