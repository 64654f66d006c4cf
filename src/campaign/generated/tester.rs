//! What generated mutants are tested by: scenarios, then sweeps, up to the first that tells a mutant from the kernel without it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::campaign::kernel::KernelChoice;
use crate::campaign::mutants::unknown_symptoms;
use crate::campaign::run::{LibraryRun, RunUnit, SkipReason, TrialOptions};
use crate::campaign::setups::SetupsRequest;
use crate::campaign::suite;
use crate::campaign::sweep::{PointChoice, SetRequest, SetSweep, sweep_kernel};
use crate::host::provider::TestKernel;
use crate::judge::outcome::OutcomeClass;
use crate::judge::{Outcome, ScenarioResult};
use crate::report::mutation::{Kill, MutationFate, Survival};
use unwindlab_engine::plan::{ChoicePlan, Executor, TrialPlan};
use unwindlab_guest_kernel::build::generate::MUTANT;
use unwindlab_scenario::Loaded;

/// How often a scenario that failed without a violation is run again.
const AGAIN: u32 = 2;

/// The text of a sweep, and the functions that it is made in.
type SweptCode = (String, Vec<String>);

/// What mutants are tested by.
pub(super) struct Tester<'a> {
    pub(super) library: Vec<Loaded>,
    /// The sweeps that this kernel has everything for.
    pub(super) sweeps: Vec<SetSweep>,
    /// The time for the tests of one mutant. Where there is none, it gets all scenarios and no sweep.
    pub(super) budget: Duration,
    pub(super) base: KernelChoice,
    pub(super) options: TrialOptions,
    pub(super) context: Context<'a>,
    /// The set-ups of perf.
    pub(super) setups: SetupsRequest,
    /// Held for reading by each test, or by one for writing that runs alone.
    pub(super) gate: RwLock<()>,
    /// By text of a sweep and functions: what a kernel with many mutants did not pass of it without one.
    pub(super) unclean: Mutex<BTreeMap<SweptCode, Option<String>>>,
}

/// Which tests are made, by their numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct Tests {
    /// Scenarios, in this order.
    pub(super) scenarios: Vec<usize>,
    /// Sweeps, in this order.
    pub(super) sweeps: Vec<usize>,
    /// The first of the sweeps killed the mutant in an earlier run: it comes before all else.
    pub(super) sweep_first: bool,
    /// Set-ups of perf come last.
    pub(super) setups: bool,
    /// The functions whose instructions are swept; all where there are none.
    pub(super) functions: Vec<String>,
    /// Then the first scenario on a guest that booted as the mutant, whatever the time.
    pub(super) boots: bool,
}

/// What the tests of a kernel came to.
#[derive(Debug, Default)]
pub(super) struct Tested {
    pub(super) kill: Option<Kill>,
    pub(super) tests: usize,
    pub(super) findings: BTreeSet<String>,
    pub(super) unsteady: Vec<String>,
    /// Tests that could not be made.
    pub(super) untested: Vec<String>,
    /// Tests for which there was no time.
    pub(super) left: usize,
    /// There was no scenario in which it makes a difference.
    same: bool,
}

impl Tested {
    /// Notes the findings that a result matches.
    pub(super) fn findings(&mut self, result: &ScenarioResult) {
        let findings = result.findings().into_iter().map(str::to_owned);
        self.findings.extend(findings);
    }

    /// What became of the mutant. `known` are the findings that the kernel without it has, `nearest` is a test that executes it.
    pub(super) fn fate(self, known: &BTreeSet<String>, nearest: Option<String>) -> MutationFate {
        if let Some(kill) = self.kill {
            return MutationFate::Killed(kill);
        }
        if let Some(first) = self.untested.into_iter().next() {
            return MutationFate::Untested(first);
        }
        MutationFate::Survived(Survival {
            tests: self.tests,
            left: self.left,
            same: self.same,
            nearest,
            excused: self.findings.difference(known).cloned().collect(),
            unsteady: self.unsteady,
        })
    }
}

/// What a sweep showed.
struct Swept {
    /// How many points.
    tried: usize,
    /// What fell that is no finding.
    symptoms: Vec<String>,
    findings: BTreeSet<String>,
}

/// A kernel on a KVM host that stays, and the tests that are made there one after the other.
pub(super) struct Bench<'t> {
    pub(super) tester: &'t Tester<'t>,
    pub(super) kernel: &'t dyn TestKernel,
    run: LibraryRun<'t>,
    pub(super) host: Option<Box<dyn Executor>>,
    sweep_host: Option<Box<dyn Executor>>,
    /// By number of a scenario.
    trials: Vec<Result<TrialPlan, SkipReason>>,
    /// The guest boots as the mutant.
    boots: bool,
}

impl<'t> Bench<'t> {
    pub(super) fn new(tester: &'t Tester<'t>, kernel: &'t dyn TestKernel) -> Self {
        let mut run = LibraryRun::new(&tester.options, None, kernel, tester.context);
        let trials = suite::trials(&tester.library, kernel);
        run.get_tools(trials.iter());
        Self {
            tester,
            kernel,
            run,
            host: None,
            sweep_host: None,
            trials,
            boots: false,
        }
    }

    /// Makes tests, up to the first that kills or as long as there is time. `choice` says which mutant the kernel is to be.
    pub(super) fn test(
        &mut self,
        tests: &Tests,
        choice: Option<ChoicePlan>,
    ) -> Result<Tested, CampaignError> {
        let begin = Instant::now();
        let until = begin + self.tester.budget;
        // Half of the time is for sweeps, where there are any, and a quarter for set-ups.
        let setups_from = until - self.tester.budget * u32::from(tests.setups) / 4;
        let scenarios_until = match tests.sweeps.is_empty() {
            true => setups_from,
            false => begin + self.tester.budget / 2,
        };
        let mut tested = Tested {
            same: tests.scenarios.is_empty() && !tests.boots,
            ..Tested::default()
        };
        let first = usize::from(tests.sweep_first).min(tests.sweeps.len());
        let (first, sweeps) = tests.sweeps.split_at(first);
        self.sweeps(first, tests, scenarios_until, choice, &mut tested)?;
        if tested.kill.is_some() {
            return Ok(tested);
        }
        for at in &tests.scenarios {
            let is_over = !self.tester.budget.is_zero() && Instant::now() >= scenarios_until;
            if is_over && tested.tests > 0 {
                tested.left += 1;
                continue;
            }
            let result = self.scenario(*at, choice)?;
            self.take(*at, choice, &result, &mut tested)?;
            if tested.kill.is_some() {
                return Ok(tested);
            }
        }
        if let Some(choice) = choice.filter(|_| tests.boots) {
            self.boot(choice, &mut tested)?;
            if tested.kill.is_some() {
                return Ok(tested);
            }
        }
        self.sweeps(sweeps, tests, setups_from, choice, &mut tested)?;
        if tested.kill.is_some() {
            return Ok(tested);
        }
        if tests.setups {
            self.setups(until, choice, &mut tested)?;
        }
        Ok(tested)
    }

    /// Makes these sweeps, up to the first that kills or as long as there is time.
    fn sweeps(
        &mut self,
        sweeps: &[usize],
        tests: &Tests,
        until: Instant,
        choice: Option<ChoicePlan>,
        tested: &mut Tested,
    ) -> Result<(), CampaignError> {
        for at in sweeps {
            let left = until.saturating_duration_since(Instant::now());
            let Some(sweep) = { self.tester.sweeps.get(*at) }.filter(|_| !left.is_zero()) else {
                tested.left += 1;
                continue;
            };
            let swept = self.swept(sweep, &tests.functions, left, choice)?;
            self.take_sweep(sweep, &tests.functions, swept, choice, tested)?;
            if tested.kill.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Runs the first scenario on a machine that the mutant has booted.
    fn boot(&mut self, choice: ChoicePlan, tested: &mut Tested) -> Result<(), CampaignError> {
        self.boots = true;
        let result = self.scenario(0, Some(choice))?;
        let taken = self.take(0, Some(choice), &result, tested);
        self.boots = false;
        taken
    }

    /// Takes a result.
    fn take(
        &mut self,
        at: usize,
        choice: Option<ChoicePlan>,
        result: &ScenarioResult,
        tested: &mut Tested,
    ) -> Result<(), CampaignError> {
        if result.outcome != Outcome::Skip {
            tested.tests += 1;
        }
        tested.findings(result);
        match ends(result) {
            true if !result.fallen().is_empty()
                || self.comes_again(choice, |bench, choice| {
                    Ok(ends(&bench.scenario(at, choice)?))
                })? =>
            {
                tested.kill = Some(kill(result, tested.tests));
            }
            true => tested.unsteady.push(result.brief()),
            false if !result.is_tested() && result.outcome != Outcome::Skip => {
                tested.untested.push(result.brief());
            }
            false => {}
        }
        Ok(())
    }

    /// Whether a test that failed without a violation does so for the mutant. The host may have done it, or have been too slow for what
    /// is expected: so it must fail each time again, and each time in between the kernel without the mutant must not, where it is the same one.
    pub(super) fn comes_again(
        &mut self,
        choice: Option<ChoicePlan>,
        mut fails: impl FnMut(&mut Self, Option<ChoicePlan>) -> Result<bool, CampaignError>,
    ) -> Result<bool, CampaignError> {
        let without = choice.map(|it| ChoicePlan { number: 0, ..it });
        let again = match without {
            Some(_) => AGAIN,
            None => 1,
        };
        for _ in 0..again {
            if !fails(self, choice)? {
                return Ok(false);
            }
            if without.is_some() && fails(self, without)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs a scenario.
    pub(super) fn scenario(
        &mut self,
        at: usize,
        choice: Option<ChoicePlan>,
    ) -> Result<ScenarioResult, CampaignError> {
        let (Some(loaded), Some(trial)) = (self.tester.library.get(at), self.trials.get(at)) else {
            return Err(CampaignError::NothingSelected);
        };
        let mut trial = trial.clone();
        if let Ok(trial) = &mut trial {
            trial.choice = choice;
            if let Some(choice) = choice.filter(|_| self.boots) {
                let parameter = format!(" {MUTANT}={}", choice.number);
                trial.cmdline.push_str(&parameter);
            }
        }
        let unit = RunUnit::whole(loaded, &trial);
        let gate = &self.tester.gate;
        let runs_alone = unit.kind().is_some_and(|it| it.has_several_vcpus());
        let (_beside, _alone) = match runs_alone {
            true => (None, gate.write().ok()),
            false => (gate.read().ok(), None),
        };
        let result = self.run.run_or_skip(&mut self.host, unit)?;
        result.ok_or(CampaignError::Interrupted)
    }

    /// Takes what came of a sweep.
    fn take_sweep(
        &mut self,
        sweep: &SetSweep,
        functions: &[String],
        swept: Result<Swept, String>,
        choice: Option<ChoicePlan>,
        tested: &mut Tested,
    ) -> Result<(), CampaignError> {
        let swept = match swept {
            Ok(swept) => swept,
            Err(why) => {
                tested.untested.push(why);
                return Ok(());
            }
        };
        tested.tests += usize::from(swept.tried > 0);
        tested.findings.extend(swept.findings);
        if swept.symptoms.is_empty() {
            return Ok(());
        }
        if let Some(choice) = choice.filter(|it| it.number > 0)
            && let Some(why) = self.unclean(
                sweep,
                functions,
                ChoicePlan {
                    number: 0,
                    ..choice
                },
            )?
        {
            tested.untested.push(why);
            return Ok(());
        }
        tested.kill = Some(Kill {
            by: swept.symptoms,
            test: sweep.name(),
            tests: tested.tests,
        });
        Ok(())
    }

    /// What the kernel without a mutant does not pass of a sweep. That is asked of each sweep that kills, once.
    fn unclean(
        &mut self,
        sweep: &SetSweep,
        functions: &[String],
        none: ChoicePlan,
    ) -> Result<Option<String>, CampaignError> {
        let known = { self.tester.unclean.lock() }
            .unwrap_or_else(PoisonError::into_inner)
            .get(&(sweep.text.clone(), functions.to_vec()))
            .cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let unclean = match self.swept(sweep, functions, self.tester.budget, Some(none))? {
            Ok(swept) if swept.symptoms.is_empty() => None,
            Ok(swept) => Some(format!(
                "sweep {}: the kernel without a mutant does not pass it: {}",
                sweep.text,
                swept.symptoms.join(" ")
            )),
            Err(why) => Some(why),
        };
        { self.tester.unclean.lock() }
            .unwrap_or_else(PoisonError::into_inner)
            .insert((sweep.text.clone(), functions.to_vec()), unclean.clone());
        Ok(unclean)
    }

    /// Makes a sweep in this time; or why it could not be made.
    fn swept(
        &mut self,
        sweep: &SetSweep,
        functions: &[String],
        time: Duration,
        choice: Option<ChoicePlan>,
    ) -> Result<Result<Swept, String>, CampaignError> {
        let set = SetRequest {
            kernel: self.tester.base.clone(),
            kvm_host: self.tester.options.kvm_host,
            jobs: 2,
            budget: None,
            once: true,
            each: false,
            witness: None,
        };
        let mut request = sweep.request(&set, Some(time));
        request.options.choice = choice;
        request.points = PointChoice::In {
            functions: functions.to_vec(),
            once: true,
            each: false,
        };
        let context = self.tester.context;
        let host = &mut self.sweep_host;
        let _beside = self.tester.gate.read();
        let made = sweep_kernel(host, &request, self.kernel, context, &mut |_| Ok(()));
        match made {
            Ok(summary) => {
                let all = summary.failures.iter().flat_map(|it| &it.fell);
                let findings = all.filter_map(|(_, finding)| finding.clone());
                Ok(Ok(Swept {
                    tried: summary.tried,
                    findings: findings.collect(),
                    symptoms: unknown_symptoms(&summary).into_iter().collect(),
                }))
            }
            Err(CampaignError::Interrupted) => Err(CampaignError::Interrupted),
            Err(error) => Ok(Err(format!("sweep {}: {error}", sweep.text))),
        }
    }
}

/// Whether a result says that a kernel is wrong: no other is needed.
pub(super) fn ends(result: &ScenarioResult) -> bool {
    result.class() == OutcomeClass::Bad || result.outcome == Outcome::BootError
}

fn kill(result: &ScenarioResult, tests: usize) -> Kill {
    let fallen: Vec<String> = result.fallen().into_iter().map(str::to_owned).collect();
    Kill {
        by: match fallen.is_empty() {
            true => vec![result.outcome.name().to_owned()],
            false => fallen,
        },
        test: result.name.clone(),
        tests,
    }
}
