//! The parts of the generated mutants together.

use super::Merged;
use super::parts::Parts;
use crate::campaign::generated::{CONTROL, GeneratedRecord};
use crate::judge::outcome::OutcomeClass;
use crate::report::mutation::{Control, MutationRecord, MutationRow, MutationScore};

/// The score as the whole command has it. Of two results of one mutant the worse counts.
pub(super) fn merged(parts: &Parts<'_>, mut lacks: Vec<String>) -> Merged<MutationScore> {
    let mut score = MutationScore::default();
    for unit in parts.head.units.iter().flat_map(|it| it.each()) {
        let is_its = |it: &GeneratedRecord| match &it.result {
            MutationRecord::Control(_) => unit.name == CONTROL,
            MutationRecord::Mutant(row) => row.mutant.name == unit.name,
        };
        let mut rows: Vec<MutationRow> = Vec::new();
        for read in parts.read(&unit, is_its, "a result of another mutant", &mut lacks) {
            match read.result {
                MutationRecord::Control(control) => {
                    let before = score.control.take().unwrap_or(Control::Clean);
                    score.control = Some(before.and(control));
                }
                MutationRecord::Mutant(row) => rows.push(*row),
            }
        }
        score
            .rows
            .extend(rows.into_iter().max_by_key(|it| badness(it.class())));
    }
    let class = score.class();
    Merged::new(score, class, parts, lacks)
}

const fn badness(class: OutcomeClass) -> u8 {
    match class {
        OutcomeClass::Bad => 2,
        OutcomeClass::Untested => 1,
        OutcomeClass::Good => 0,
    }
}
