//! The stages through which mutants go: what the compiler said, one kernel for most, a kernel for each of the others.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::chosen::ChosenMutants;
use super::coverage::{self, Coverage, Surveyed};
use super::order::Order;
use super::part::{CONTROL, GeneratedPart};
use super::tester::{Bench, Tester, Tests};
use super::{GeneratedEvent, GeneratedRequest};
use crate::campaign::error::CampaignError;
use crate::campaign::suite::{Fetched, each_built};
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{ProviderError, TestKernel};
use crate::report::mutation::{Control, MutationFate, MutationRecord, MutationRow};
use unwindlab_engine::plan::ChoicePlan;
use unwindlab_guest_kernel::BuildError;
use unwindlab_guest_kernel::build::generate::{Generated, GeneratedMutant, ObjectCode, argued};

/// The mutants of a kernel under test.
pub(super) struct Campaign<'c, 't> {
    pub(super) request: &'c GeneratedRequest,
    pub(super) tester: &'c Tester<'c>,
    pub(super) generated: &'c Generated,
    /// The hash of the kernel without a mutant.
    pub(super) base: &'c str,
    pub(super) order: Mutex<Order>,
    /// Findings of the kernel itself: they are no news of a mutant.
    pub(super) known: BTreeSet<String>,
    /// What each scenario executes, once it is known.
    pub(super) coverage: Coverage,
    pub(super) results: Results<'t>,
}

impl<'c> Campaign<'c, '_> {
    /// Tests the kernel without a mutant, if that is still to be done here.
    pub(super) fn control(&mut self, kernel: &dyn TestKernel) -> Result<(), CampaignError> {
        if !self.results.part.is_left(CONTROL) {
            return Ok(());
        }
        let surveyed = Surveyed::of(self.tester, kernel, None)?;
        self.known.extend(surveyed.findings);
        let sweeps = Tests {
            sweeps: (0..self.tester.sweeps.len()).collect(),
            ..Tests::default()
        };
        let swept = Bench::new(self.tester, kernel).test(&sweeps, None)?;
        self.known.extend(swept.findings.iter().cloned());
        let control = match (&swept.kill, swept.untested.first()) {
            (Some(kill), _) => Control::Unclean(format!("{}: {}", kill.test, kill.by.join(" "))),
            (None, Some(why)) => Control::Untested(why.clone()),
            (None, None) => Control::Clean,
        };
        let control = surveyed.control.and(control);
        self.results.take(MutationRecord::Control(control))
    }

    /// Deals with what needs no test and with what can be chosen in one kernel; what is left gets kernels of its own.
    pub(super) fn told_and_chosen(&mut self) -> Result<Vec<&'c GeneratedMutant>, CampaignError> {
        let mut own = Vec::new();
        let mut chosen = Vec::new();
        for mutant in &self.generated.mutants {
            match (&mutant.object, mutant.choice) {
                _ if !self.results.part.is_left(&mutant.name) => {}
                (ObjectCode::New, Some(_)) => chosen.push(mutant),
                (ObjectCode::New, None) => own.push(mutant),
                _ => drop(
                    self.results
                        .row(mutant, by_object(mutant), Duration::ZERO)?,
                ),
            }
        }
        if let Some(schema) = &self.generated.schema
            && !(chosen.is_empty() && own.is_empty())
        {
            let mut spec = self.request.base.build_spec()?;
            spec.patches.push(schema.patch());
            let kernel = self.tester.context.fetch(&KernelRequest::Build(spec))?;
            let choice = coverage::choice(kernel.as_ref(), schema)?;
            let surveyed = Surveyed::of(self.tester, kernel.as_ref(), Some(choice))?;
            self.known.extend(surveyed.findings);
            self.coverage =
                { surveyed.coverage }.with(&self.generated.mutants, kernel.as_ref(), choice);
            if surveyed.control != Control::Clean {
                let control = MutationRecord::Control(surveyed.control);
                self.results.take(control)?;
            }
            self.chosen(kernel.as_ref(), choice, &chosen)?;
        }
        Ok(own)
    }

    /// Tests mutants that are chosen in one kernel.
    fn chosen(
        &mut self,
        kernel: &dyn TestKernel,
        choice: ChoicePlan,
        mutants: &[&'c GeneratedMutant],
    ) -> Result<(), CampaignError> {
        let chosen = ChosenMutants {
            tester: self.tester,
            kernel,
            coverage: &self.coverage,
            choice,
            known: &self.known,
        };
        let (order, results) = (&self.order, &mut self.results);
        chosen.test(mutants, order, &mut |mutant, (fate, took)| {
            let row = results.row(mutant, fate, took)?;
            let mut order = order.lock().unwrap_or_else(PoisonError::into_inner);
            order.learn(&row);
            Ok(())
        })
    }

    /// Builds and tests mutants that get a kernel of their own, the next while one is tested. No kernel stays in the cache: there
    /// are many.
    pub(super) fn own(&mut self, mutants: &[&GeneratedMutant]) -> Result<(), CampaignError> {
        let mut builds = Vec::new();
        for mutant in mutants {
            let mut spec = self.request.base.build_spec()?;
            spec.patches.push(mutant.patch());
            builds.push(KernelRequest::Build(spec));
        }
        let builds: Vec<&KernelRequest> = builds.iter().collect();
        let context = self.tester.context;
        each_built(&builds, context, &mut |at, fetched: Fetched| {
            let Some(mutant) = mutants.get(at) else {
                return Ok(());
            };
            let begin = Instant::now();
            let (fate, built) = match fetched {
                Ok(kernel) if kernel.hash() == self.base => (MutationFate::Equivalent, None),
                Ok(kernel) => (self.fate(mutant, kernel.as_ref())?, Some(kernel)),
                Err(ProviderError::Build(BuildError::Compile { .. })) => {
                    (MutationFate::DoesNotCompile, None)
                }
                Err(error) => (MutationFate::Untested(error.to_string()), None),
            };
            let row = self.results.row(mutant, fate, begin.elapsed())?;
            self.order
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .learn(&row);
            match built {
                Some(kernel) => Ok(context.provider.forget(kernel.hash())?),
                None => Ok(()),
            }
        })
    }

    /// What becomes of a mutant on a kernel of its own.
    fn fate(
        &self,
        mutant: &GeneratedMutant,
        kernel: &dyn TestKernel,
    ) -> Result<MutationFate, CampaignError> {
        let nearest = self.coverage.nearest(mutant);
        // A place that is known, and that nothing executes.
        if mutant.place.is_some() && nearest.is_none() {
            return Ok(MutationFate::NotCovered);
        }
        let tests = self.coverage.tests(mutant, self.tester, &self.order);
        let tested = Bench::new(self.tester, kernel).test(&tests, None)?;
        Ok(tested.fate(&self.known, nearest))
    }
}

/// What the objects of a mutant say that needs no test.
fn by_object(mutant: &GeneratedMutant) -> MutationFate {
    match &mutant.object {
        ObjectCode::None => MutationFate::DoesNotCompile,
        ObjectCode::Same => MutationFate::Equivalent,
        ObjectCode::Twin(twin) => MutationFate::Twin(twin.clone()),
        ObjectCode::New => MutationFate::Untested("it was not tested".to_owned()),
    }
}

/// Results as they come.
pub(super) struct Results<'t> {
    pub(super) records: Vec<MutationRecord>,
    pub(super) part: GeneratedPart,
    pub(super) tell: &'t mut dyn FnMut(GeneratedEvent<'_>) -> io::Result<()>,
}

impl Results<'_> {
    fn row(
        &mut self,
        mutant: &GeneratedMutant,
        fate: MutationFate,
        took: Duration,
    ) -> Result<MutationRow, CampaignError> {
        let row = MutationRow {
            mutant: mutant.clone(),
            fate,
            argued: argued(mutant),
            seconds: took.as_secs_f64(),
        };
        self.take(MutationRecord::Mutant(Box::new(row.clone())))?;
        Ok(row)
    }

    fn take(&mut self, record: MutationRecord) -> Result<(), CampaignError> {
        self.part.take(&record)?;
        (self.tell)(GeneratedEvent::Result(&record))?;
        self.records.push(record);
        Ok(())
    }
}
