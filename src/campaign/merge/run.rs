//! The parts of a run together.

use std::collections::BTreeMap;

use super::MergedRun;
use super::parts::Parts;
use crate::campaign::part::Units;
use crate::campaign::run::FLAKY_IS;
use crate::judge::ScenarioResult;
use crate::judge::flaky::{FlakyIs, class_of};
use crate::judge::outcome::OutcomeClass;
use crate::judge::unit_record::{Planned, UnitResult};

/// The results as the whole run has them.
pub(super) fn merged(parts: &Parts<'_>, mut lacks: Vec<String>) -> MergedRun {
    let counts_as_pass = |it: &(String, String)| it.0 == FLAKY_IS && it.1 == FlakyIs::Pass.word();
    let flaky_is = match parts.head.same.iter().any(counts_as_pass) {
        true => FlakyIs::Pass,
        false => FlakyIs::Fail,
    };
    let mut by_name: BTreeMap<&str, Vec<ScenarioResult>> = BTreeMap::new();
    // In the order of trials.
    for (unit, lines) in &parts.lines {
        let mut results = Vec::new();
        for line in lines {
            match UnitResult::read(line) {
                Ok(read) if read.name == unit.name => results.push(ScenarioResult::from(read)),
                Ok(_) => lacks.push(format!("{unit}: a result of another scenario")),
                Err(error) => lacks.push(format!("{unit}: {error}")),
            }
        }
        by_name
            .entry(&unit.name)
            .or_default()
            .extend(ScenarioResult::of_several(results));
    }
    let result = |units: &Units| {
        let results = by_name.get(units.name.as_str())?;
        let Some(planned) = units.trials else {
            return results.first().cloned();
        };
        let of = Planned {
            name: &units.name,
            planned,
            explores: units.explores,
        };
        Some(ScenarioResult::of_trials(of, results, flaky_is))
    };
    let results: Vec<ScenarioResult> = parts.head.units.iter().filter_map(result).collect();
    let class = match class_of(&results, flaky_is) {
        OutcomeClass::Good if !lacks.is_empty() => OutcomeClass::Untested,
        class => class,
    };
    MergedRun {
        results,
        release: parts.head.release.clone(),
        lacks,
        class,
    }
}
