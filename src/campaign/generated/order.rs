//! In which order tests are made of a mutant: what killed its neighbours comes first.

use std::collections::BTreeMap;

use unwindlab_guest_kernel::build::generate::{GeneratedMutant, Operator};
use unwindlab_guest_kernel::build::header::Mutant;

use crate::report::mutation::{MutationFate, MutationRow};

/// What a kill of a mutant of the same function is worth, next to one of any other.
const SAME_FUNCTION: u32 = 8;
/// The same, of the same operator.
const SAME_OPERATOR: u32 = 2;

/// Which test killed what.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// How many of the chosen mutants name a scenario.
    named: BTreeMap<String, u32>,
    kills: Vec<(String, Operator, String)>,
}

impl Order {
    /// Before anything is known: the scenarios that most of the chosen mutants are made for come first.
    pub(super) fn new(chosen: &[Mutant]) -> Self {
        let mut order = Self::default();
        for scenario in chosen.iter().flat_map(|it| &it.scenarios) {
            *order.named.entry(scenario.clone()).or_default() += 1;
        }
        order
    }

    /// Learns from a mutant.
    pub(super) fn learn(&mut self, row: &MutationRow) {
        if let MutationFate::Killed(kill) = &row.fate {
            let MutationRow { mutant, .. } = row;
            let kill = (mutant.function.clone(), mutant.operator, kill.test.clone());
            self.kills.push(kill);
        }
    }

    /// How probably a scenario kills this mutant, next to the others.
    pub(super) fn of(&self, mutant: &GeneratedMutant) -> impl Fn(&str) -> u32 {
        let mut worth: BTreeMap<String, u32> = self.named.clone();
        for (function, operator, test) in &self.kills {
            let near = match (*function == mutant.function, *operator == mutant.operator) {
                (true, true) => SAME_FUNCTION * SAME_OPERATOR,
                (true, false) => SAME_FUNCTION,
                (false, true) => SAME_OPERATOR,
                (false, false) => 1,
            };
            *worth.entry(test.clone()).or_default() += near;
        }
        move |name| worth.get(name).copied().unwrap_or_default()
    }
}
