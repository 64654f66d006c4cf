//! The parts of a run together.

use std::collections::BTreeMap;

use super::Merged;
use super::parts::Parts;
use crate::campaign::part::Units;
use crate::campaign::run::FLAKY_IS;
use crate::judge::ScenarioResult;
use crate::judge::flaky::{FlakyIs, class_of};
use crate::judge::unit_record::{Planned, UnitResult};

/// The results as the whole run has them.
pub(super) fn merged(parts: &Parts<'_>, mut lacks: Vec<String>) -> Merged<Vec<ScenarioResult>> {
    let counts_as_pass = |it: &(String, String)| it.0 == FLAKY_IS && it.1 == FlakyIs::Pass.word();
    let flaky_is = match parts.head.same.iter().any(counts_as_pass) {
        true => FlakyIs::Pass,
        false => FlakyIs::Fail,
    };
    let mut by_name: BTreeMap<&str, Vec<ScenarioResult>> = BTreeMap::new();
    // In the order of trials.
    for unit in parts.lines.keys() {
        let is_its = |it: &UnitResult| it.name == unit.name;
        let read = parts.read(unit, is_its, "a result of another scenario", &mut lacks);
        let results = read.into_iter().map(ScenarioResult::from).collect();
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
    let class = class_of(&results, flaky_is);
    Merged::new(results, class, parts, lacks)
}
