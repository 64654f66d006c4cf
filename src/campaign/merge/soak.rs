//! The parts of a soak together.

use std::collections::BTreeMap;

use super::Merged;
use super::parts::Parts;
use crate::judge::outcome::OutcomeClass;
use crate::judge::soak::{SoakTrial, Soaked};

/// The scenarios as the whole soak has them. A trial that was made several times counts once, as the worst that was judged.
pub(super) fn merged(parts: &Parts<'_>, mut lacks: Vec<String>) -> Merged<Vec<Soaked>> {
    let badness = |trial: &SoakTrial| match trial.class() {
        OutcomeClass::Bad => 2,
        OutcomeClass::Good => 1,
        OutcomeClass::Untested => 0,
    };
    let mut soaked: BTreeMap<&str, Soaked> = BTreeMap::new();
    for units in &parts.head.units {
        let planned = units.trials.unwrap_or(1);
        soaked.insert(&units.name, Soaked::new(&units.name, planned));
    }
    // In the order of trials.
    for unit in parts.lines.keys() {
        let is_its = |it: &SoakTrial| it.name == unit.name;
        let trials = parts.read(unit, is_its, "a trial of another scenario", &mut lacks);
        let worst = trials.iter().max_by_key(|it| badness(it));
        if let (Some(trial), Some(soaked)) = (worst, soaked.get_mut(unit.name.as_str())) {
            soaked.add(unit.trial.unwrap_or(1), trial);
        }
    }
    let in_order = { parts.head.units.iter() }.filter_map(|it| soaked.remove(it.name.as_str()));
    let soaked: Vec<Soaked> = in_order.collect();
    let class = Soaked::class_of(&soaked);
    Merged::new(soaked, class, parts, lacks)
}
