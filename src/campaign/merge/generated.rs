//! The parts of the generated mutants together.

use super::MergedGenerated;
use super::parts::Parts;
use crate::campaign::generated::{CONTROL, GeneratedRecord};
use crate::judge::outcome::OutcomeClass;
use crate::report::mutation::{Control, MutationRecord, MutationRow, MutationScore};

/// The score as the whole command has it. Of two results of one mutant the worse counts.
pub(super) fn merged(parts: &Parts<'_>, mut lacks: Vec<String>) -> MergedGenerated {
    let mut score = MutationScore::default();
    for unit in parts.head.units.iter().flat_map(|it| it.each()) {
        let mut rows: Vec<MutationRow> = Vec::new();
        for line in parts.lines.get(&unit).into_iter().flatten() {
            match serde_json::from_str::<GeneratedRecord>(line).map(|it| it.result) {
                Ok(MutationRecord::Control(control)) if unit.name == CONTROL => {
                    let before = score.control.take().unwrap_or(Control::Clean);
                    score.control = Some(before.and(control));
                }
                Ok(MutationRecord::Mutant(row)) if row.mutant.name == unit.name => rows.push(*row),
                Ok(_) => lacks.push(format!("{unit}: a result of another mutant")),
                Err(error) => lacks.push(format!("{unit}: {error}")),
            }
        }
        score
            .rows
            .extend(rows.into_iter().max_by_key(|it| badness(it.class())));
    }
    let class = match score.class() {
        OutcomeClass::Good if !lacks.is_empty() => OutcomeClass::Untested,
        class => class,
    };
    MergedGenerated {
        score,
        release: parts.head.release.clone(),
        lacks,
        class,
    }
}

const fn badness(class: OutcomeClass) -> u8 {
    match class {
        OutcomeClass::Bad => 2,
        OutcomeClass::Untested => 1,
        OutcomeClass::Good => 0,
    }
}
