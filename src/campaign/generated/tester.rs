//! Tests one generated mutant: scenarios, then sweeps, up to the first that tells it from the kernel without it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use unwindlab_guest_kernel::build::generate::GeneratedMutant;
use unwindlab_guest_kernel::build::patch::Patch;

use super::order::Order;
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::campaign::kernel::KernelChoice;
use crate::campaign::mutants::unknown_symptoms;
use crate::campaign::run::{LibraryRun, TrialOptions, jobs_of_this_machine};
use crate::campaign::suite;
use crate::campaign::sweep::{SetRequest, SetSweep, sweep_kernel};
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::TestKernel;
use crate::judge::outcome::OutcomeClass;
use crate::judge::{Outcome, ScenarioResult};
use crate::report::mutation::{Control, Kill, MutationFate, Survival};
use crate::scenario::Loaded;

/// How many scenarios are run one by one, those that most probably kill. The others are run side by side.
const ONE_BY_ONE: usize = 16;

/// What mutants are tested by.
pub(super) struct Tester<'a> {
    pub(super) library: Vec<Loaded>,
    /// The sweeps that this kernel has everything for.
    pub(super) sweeps: Vec<SetSweep>,
    /// The time for the sweeps of one mutant.
    pub(super) budget: Duration,
    pub(super) base: KernelChoice,
    pub(super) kvm_host: KvmHost,
    pub(super) context: Context<'a>,
    pub(super) order: Order,
    /// By patch: the first test that executes the statement.
    pub(super) reached: BTreeMap<Vec<u8>, Option<String>>,
}

/// What the tests of a kernel came to.
#[derive(Debug, Default)]
struct Tested {
    kill: Option<Kill>,
    tests: usize,
    findings: BTreeSet<String>,
    unsteady: Vec<String>,
    /// Tests that could not be made.
    untested: Vec<String>,
}

impl Tester<'_> {
    /// Makes those tests of a mutant that most probably kill it: how it was killed, or what did not pass once.
    pub(super) fn first_tests(
        &mut self,
        mutant: &GeneratedMutant,
        kernel: &dyn TestKernel,
    ) -> Result<Result<Kill, Vec<String>>, CampaignError> {
        let ordered = self.order.of(&self.library, mutant);
        let mut tested = Tested::default();
        self.scenarios(kernel, first_of(&ordered).0, 1, &mut tested)?;
        let Some(kill) = tested.kill else {
            return Ok(Err(tested.unsteady));
        };
        self.executes(mutant, &kill);
        Ok(Ok(kill))
    }

    /// Makes all tests of a mutant. `known` are the findings that the kernel without it has, `unsteady` what did not pass once
    /// before.
    pub(super) fn all_tests(
        &mut self,
        mutant: &GeneratedMutant,
        kernel: &dyn TestKernel,
        known: &BTreeSet<String>,
        mut unsteady: Vec<String>,
    ) -> Result<MutationFate, CampaignError> {
        let ordered = self.order.of(&self.library, mutant);
        let mut reached = None;
        if let Some(statement) = mutant.probe() {
            reached = match self.first_reached(&statement, &ordered)? {
                Ok(Some(test)) => Some(test),
                Ok(None) => return Ok(MutationFate::NotCovered),
                Err(why) => return Ok(MutationFate::Untested(why)),
            };
        }
        let tested = self.test(kernel, &ordered)?;
        if let Some(kill) = tested.kill {
            self.executes(mutant, &kill);
            return Ok(MutationFate::Killed(kill));
        }
        if let Some(first) = tested.untested.first() {
            return Ok(MutationFate::Untested(first.clone()));
        }
        unsteady.extend(tested.unsteady);
        Ok(MutationFate::Survived(Survival {
            tests: tested.tests,
            nearest: reached,
            excused: tested.findings.difference(known).cloned().collect(),
            unsteady,
        }))
    }

    /// Notes that what killed a mutant executes the statement that it changes.
    pub(super) fn executes(&mut self, mutant: &GeneratedMutant, kill: &Kill) {
        if let Some(statement) = mutant.probe() {
            self.reached
                .insert(statement.content, Some(kill.test.clone()));
        }
    }

    /// Makes all tests of the kernel without a mutant; the findings that it has, too.
    pub(super) fn control(
        &self,
        kernel: &dyn TestKernel,
    ) -> Result<(Control, BTreeSet<String>), CampaignError> {
        let tested = self.test(kernel, &self.library)?;
        let control = match (tested.kill, tested.untested.into_iter().next()) {
            (Some(kill), _) => Control::Unclean(format!("{}: {}", kill.test, kill.by.join(" "))),
            (None, Some(untested)) => Control::Untested(untested),
            (None, None) => Control::Clean,
        };
        Ok((control, tested.findings))
    }

    /// The first test that executes a statement, told by a kernel that dies there; or why that is not known.
    fn first_reached(
        &mut self,
        statement: &Patch,
        ordered: &[Loaded],
    ) -> Result<Result<Option<String>, String>, CampaignError> {
        if let Some(known) = self.reached.get(&statement.content) {
            return Ok(Ok(known.clone()));
        }
        let mut spec = self.base.build_spec()?;
        spec.patches.push(statement.clone());
        let kernel = self.context.fetch(&KernelRequest::Build(spec))?;
        let tested = self.test(kernel.as_ref(), ordered)?;
        self.context.provider.forget(kernel.hash())?;
        let reached = tested.kill.map(|it| it.test);
        // A test that was not made may execute it.
        if let (None, Some(why)) = (&reached, tested.untested.into_iter().next()) {
            return Ok(Err(why));
        }
        self.reached
            .insert(statement.content.clone(), reached.clone());
        Ok(Ok(reached))
    }

    /// Makes tests in this order up to the first that kills.
    fn test(&self, kernel: &dyn TestKernel, library: &[Loaded]) -> Result<Tested, CampaignError> {
        let mut tested = Tested::default();
        let (first, others) = first_of(library);
        self.scenarios(kernel, first, 1, &mut tested)?;
        self.scenarios(kernel, others, jobs_of_this_machine(), &mut tested)?;
        if tested.kill.is_none() {
            self.sweeps(kernel, &mut tested)?;
        }
        Ok(tested)
    }

    /// Runs scenarios, so many at a time, up to the first that kills.
    fn scenarios(
        &self,
        kernel: &dyn TestKernel,
        library: &[Loaded],
        jobs: usize,
        tested: &mut Tested,
    ) -> Result<(), CampaignError> {
        let mut left = library.to_vec();
        while !left.is_empty() && tested.kill.is_none() {
            let results = self.run(kernel, &left, jobs)?;
            self.take(kernel, &left, &results, tested)?;
            left.retain(|it| results.iter().all(|of| of.name != *it.scenario.name));
        }
        Ok(())
    }

    /// Takes results of scenarios up to one that kills.
    fn take(
        &self,
        kernel: &dyn TestKernel,
        library: &[Loaded],
        results: &[ScenarioResult],
        tested: &mut Tested,
    ) -> Result<(), CampaignError> {
        for result in results {
            if result.outcome != Outcome::Skip {
                tested.tests += 1;
            }
            let findings = result.findings().into_iter().map(str::to_owned);
            tested.findings.extend(findings);
            match ends(result) {
                // The host may have done it, once: what comes again is the kernel's.
                true if result.outcome.is_death() && result.fallen().is_empty() => {
                    let is_it = |it: &&Loaded| *it.scenario.name == result.name;
                    let same: Vec<Loaded> = library.iter().filter(is_it).cloned().collect();
                    let again = self.run(kernel, &same, 1)?;
                    match again.first().filter(|it| ends(it)) {
                        Some(again) => tested.kill = Some(kill(again, tested.tests)),
                        None => tested.unsteady.push(result.brief()),
                    }
                }
                true => tested.kill = Some(kill(result, tested.tests)),
                false if !result.is_tested() && result.outcome != Outcome::Skip => {
                    tested.untested.push(result.brief());
                }
                false => {}
            }
            if tested.kill.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Runs scenarios, so many at a time, up to one that does not pass.
    fn run(
        &self,
        kernel: &dyn TestKernel,
        library: &[Loaded],
        jobs: usize,
    ) -> Result<Vec<ScenarioResult>, CampaignError> {
        let options = TrialOptions {
            kvm_host: self.kvm_host,
            jobs,
            ..TrialOptions::default()
        };
        let run = LibraryRun::new(&options, None, kernel, self.context);
        let mut run = run.forgetting().up_to(ends);
        let trials = suite::trials(library, kernel);
        run.run_all(library, &trials, &mut |_, _| Ok(()))?;
        self.context.check_interrupt()?;
        Ok(run.results)
    }

    /// Makes sweeps while there is time, up to the first with a failure that is no finding.
    fn sweeps(&self, kernel: &dyn TestKernel, tested: &mut Tested) -> Result<(), CampaignError> {
        let set = SetRequest {
            kernel: self.base.clone(),
            kvm_host: self.kvm_host,
            jobs: 2,
            budget: None,
            once: true,
            witness: None,
        };
        let begin = Instant::now();
        let mut host = None;
        for sweep in &self.sweeps {
            let left = self.budget.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            let request = sweep.request(&set, Some(left));
            let made = sweep_kernel(&mut host, &request, kernel, self.context, &mut |_| Ok(()));
            tested.tests += 1;
            match made {
                Ok(summary) => {
                    let all = summary.failures.iter().flat_map(|it| &it.fell);
                    let findings = all.filter_map(|(_, finding)| finding.clone());
                    tested.findings.extend(findings);
                    let by: Vec<String> = unknown_symptoms(&summary).into_iter().collect();
                    if !by.is_empty() {
                        tested.kill = Some(Kill {
                            by,
                            test: format!("sweep {}", sweep.text),
                            tests: tested.tests,
                        });
                        break;
                    }
                }
                Err(CampaignError::Interrupted) => return Err(CampaignError::Interrupted),
                Err(error) => tested
                    .untested
                    .push(format!("sweep {}: {error}", sweep.text)),
            }
        }
        Ok(())
    }
}

/// Those scenarios that are run one by one, and the others.
fn first_of(ordered: &[Loaded]) -> (&[Loaded], &[Loaded]) {
    ordered.split_at(ONE_BY_ONE.min(ordered.len()))
}

/// Whether a result says that a kernel is wrong: no other is needed.
fn ends(result: &ScenarioResult) -> bool {
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
