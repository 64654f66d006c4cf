//! What is known of a series after some patches.

use std::collections::BTreeMap;

use super::{Change, SeriesSummary};
use crate::campaign::suite::KernelResults;
use crate::host::provider::{ProviderError, ProviderFailure};
use crate::judge::ScenarioResult;
use crate::judge::outcome::OutcomeClass;

/// What is known after some patches.
#[derive(Debug, Default)]
pub(super) struct SeriesTally {
    /// Whether each scenario passed the last time that it could be tested.
    passing: BTreeMap<String, bool>,
    pub summary: SeriesSummary,
}

impl SeriesTally {
    /// Takes the results of the next patch.
    pub fn take(
        &mut self,
        results: KernelResults,
    ) -> Result<Vec<(ScenarioResult, Change)>, ProviderError> {
        let results = results.inspect_err(|error| match error.kind() {
            ProviderFailure::Unbuildable => self.summary.unbuilt += 1,
            ProviderFailure::Usage | ProviderFailure::Unavailable => self.summary.untested += 1,
        })?;
        self.summary.built += 1;
        let compared: Vec<_> = results
            .into_iter()
            .map(|result| {
                let change = self.compare(&result);
                (result, change)
            })
            .collect();
        let any = |wanted| compared.iter().any(|(_, change)| *change == wanted);
        if any(Change::Broken) {
            self.summary.broken += 1;
        } else if any(Change::Unclear) {
            self.summary.untested += 1;
        }
        Ok(compared)
    }

    fn compare(&mut self, result: &ScenarioResult) -> Change {
        let passes = match result.class() {
            OutcomeClass::Good => true,
            OutcomeClass::Bad => false,
            OutcomeClass::Untested => {
                return match self.passing.get(&result.name) {
                    Some(true) => Change::Unclear,
                    _ => Change::NoWorse,
                };
            }
        };
        match self.passing.insert(result.name.clone(), passes) {
            Some(true) if !passes => Change::Broken,
            _ => Change::NoWorse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::testing::unbuildable;
    use crate::judge::Outcome;

    fn ran(outcomes: &[(&str, Outcome)]) -> KernelResults {
        let result = |(name, outcome): &(&str, Outcome)| {
            ScenarioResult::not_run(name, *outcome, "why".to_owned())
        };
        Ok(outcomes.iter().map(result).collect())
    }

    fn changes(results: Result<Vec<(ScenarioResult, Change)>, ProviderError>) -> Vec<Change> {
        let results = results.unwrap().into_iter();
        results.map(|(_, change)| change).collect()
    }

    #[test]
    fn a_patch_must_pass_what_passed_before() {
        let mut tally = SeriesTally::default();
        changes(tally.take(ran(&[("a", Outcome::Pass), ("b", Outcome::Fail)])));
        assert_eq!(tally.summary.class(), OutcomeClass::Good, "b never passed");
        let compared = tally.take(ran(&[("a", Outcome::Fail), ("b", Outcome::Pass)]));
        assert_eq!(changes(compared), [Change::Broken, Change::NoWorse]);
        assert_eq!(tally.summary.class(), OutcomeClass::Bad);
    }

    #[test]
    fn what_cannot_be_tested_any_more_is_no_pass() {
        let mut tally = SeriesTally::default();
        changes(tally.take(ran(&[("a", Outcome::Pass)])));
        let compared = tally.take(ran(&[("a", Outcome::BootError)]));
        assert_eq!(changes(compared), [Change::Unclear]);
        assert_eq!(tally.summary.class(), OutcomeClass::Untested);
        assert!(tally.take(Err(unbuildable().into())).is_err());
        assert_eq!(tally.summary.unbuilt, 1);
        assert_eq!(tally.summary.class(), OutcomeClass::Bad);
    }
}
