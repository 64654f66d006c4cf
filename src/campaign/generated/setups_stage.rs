//! The last tests of a mutant of perf's own code: set-ups of perf, which vary what it is asked for.

use std::time::Instant;

use super::tester::{Bench, Tested};
use crate::campaign::error::CampaignError;
use crate::campaign::setups::Matrix;
use crate::judge::ScenarioResult;
use crate::report::mutation::Kill;
use crate::setup::summary::{Said, TriedSetup};
use unwindlab_engine::plan::ChoicePlan;

/// The files whose mutants get them.
const FOLDER: &str = "kernel/events/";

/// Whether mutants of a file get set-ups.
pub(super) fn is_for(file: &str) -> bool {
    file.starts_with(FOLDER)
}

impl Bench<'_> {
    /// Tries set-ups, up to the first that kills or as long as there is time.
    pub(super) fn setups(
        &mut self,
        until: Instant,
        choice: Option<ChoicePlan>,
        tested: &mut Tested,
    ) -> Result<(), CampaignError> {
        let matrix = Matrix::of(&self.tester.setups, self.kernel, self.tester.context)?;
        for at in 0..matrix.len() {
            if Instant::now() >= until {
                tested.left += matrix.len() - at;
                break;
            }
            self.tester.context.check_interrupt()?;
            tested.tests += 1;
            let (tried, result) = self.setup(&matrix, at, choice)?;
            tested.findings(&result);
            if !is_wrong(&tried, &result) {
                if tried.said == Said::Untested {
                    tested
                        .untested
                        .push(format!("set-up {at}: {}", result.brief()));
                }
                continue;
            }
            let again = self.comes_again(choice, |bench, choice| {
                let (tried, result) = bench.setup(&matrix, at, choice)?;
                Ok(is_wrong(&tried, &result))
            })?;
            if again {
                let fallen: Vec<String> = result.fallen().into_iter().map(str::to_owned).collect();
                tested.kill = Some(Kill {
                    by: match (fallen.is_empty(), result.outcome.is_death()) {
                        (false, _) => fallen,
                        (true, true) => vec![result.outcome.name().to_owned()],
                        (true, false) => vec!["set-up".to_owned()],
                    },
                    test: format!("set-up {at}"),
                    tests: tested.tests,
                });
                break;
            }
            tested.unsteady.push(format!("set-up {at}"));
        }
        Ok(())
    }

    /// Tries a set-up. Those with several vCPUs run alone.
    fn setup(
        &mut self,
        matrix: &Matrix<'_>,
        at: usize,
        choice: Option<ChoicePlan>,
    ) -> Result<(TriedSetup, ScenarioResult), CampaignError> {
        let gate = &self.tester.gate;
        let (_beside, _alone) = match matrix.runs_alone(at) {
            true => (None, gate.write().ok()),
            false => (gate.read().ok(), None),
        };
        matrix.try_one(at, choice, &mut self.host)
    }
}

/// Whether a set-up says that the kernel is wrong.
fn is_wrong(tried: &TriedSetup, result: &ScenarioResult) -> bool {
    tried.said == Said::Violated || result.outcome.is_death()
}
