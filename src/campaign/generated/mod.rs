//! All first-order mutants of the deferred unwinder, and what becomes of each: the mutation score of the tests.
//!
//! A mutant is built while the one before it is tested. Its scenarios come in the order in which they killed its neighbours;
//! the first that does not pass ends it. Most die in the first few. When all mutants have been through those, what is left of them is
//! probed (does any test execute what it changes?), and gets all scenarios and sweeps.

mod order;
mod part;
mod tester;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use unwindlab_guest_kernel::BuildError;
use unwindlab_guest_kernel::build::generate::{Generated, GeneratedMutant, ObjectCode, argued};
use unwindlab_guest_kernel::build::header;

use self::order::Order;
use self::part::GeneratedPart;
pub(in crate::campaign) use self::part::{CONTROL, GeneratedRecord};
use self::tester::Tester;
use super::Context;
use super::error::{CampaignError, SweepRequestError};
use super::kernel::KernelChoice;
use super::part::PartRequest;
use super::suite::{Fetched, each_built};
use super::sweep::sweeps;
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{ProviderError, TestKernel};
use crate::report::mutation::{MutationFate, MutationRecord, MutationRow};

/// Which mutants to generate, and how to test them.
#[derive(Debug, Clone, Default)]
pub struct GeneratedRequest {
    /// Only mutants whose names match one of these patterns; all where there are none.
    pub only: Vec<glob::Pattern>,
    /// The scenarios that test them; the whole library where there are none.
    pub scenarios: Vec<PathBuf>,
    /// The time for the sweeps of one mutant; with none, it is not swept.
    pub budget: Duration,
    /// The kernel that they are mutants of.
    pub base: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
    /// The part that is made and its file, if there is one.
    pub part: Option<PartRequest>,
}

/// What happens.
#[derive(Debug, Clone, Copy)]
pub enum GeneratedEvent<'a> {
    /// These are the mutants, and what the compiler makes of them.
    Generated(&'a Generated),
    /// This became of one.
    Result(&'a MutationRecord),
}

/// All results, those of an earlier start first.
#[derive(Debug)]
pub struct GeneratedResults {
    /// The mutants and the source that they are of.
    pub generated: Generated,
    /// The results.
    pub records: Vec<MutationRecord>,
    /// `uname -r` of the kernel without a mutant.
    pub release: String,
}

/// The mutants of a kernel that match the request, without a test.
///
/// # Errors
/// [`CampaignError`].
pub fn generate(
    request: &GeneratedRequest,
    context: Context<'_>,
) -> Result<Generated, CampaignError> {
    let spec = request.base.build_spec()?;
    let (provider, interrupt) = (context.provider, context.interrupt);
    let is_wanted =
        |name: &str| request.only.is_empty() || request.only.iter().any(|it| it.matches(name));
    Ok(provider.generate(&spec, &is_wanted, context.progress, interrupt)?)
}

/// Generates mutants and tests each; `tell` gets results as soon as they are known.
///
/// # Errors
/// [`CampaignError`].
pub fn mutants(
    request: &GeneratedRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(GeneratedEvent<'_>) -> io::Result<()>,
) -> Result<GeneratedResults, CampaignError> {
    let generated = generate(request, context)?;
    tell(GeneratedEvent::Generated(&generated))?;
    let base = KernelRequest::Build(request.base.build_spec()?);
    let kernel = context.fetch(&base)?;
    let mut tester = tester(request, kernel.as_ref(), context)?;
    let part = GeneratedPart::open(request, kernel.as_ref(), &generated.mutants, &tester)?;
    let mut results = Results {
        records: part.before.clone(),
        part,
        tell,
    };
    for record in &results.records {
        if let MutationRecord::Mutant(row) = record {
            tester.order.learn(row);
            if let MutationFate::Killed(kill) = &row.fate
                && let Some(mutant) =
                    { generated.mutants.iter() }.find(|it| it.name == row.mutant.name)
            {
                tester.executes(mutant, kill);
            }
        }
    }
    let base_hash = kernel.hash();
    // Findings of the kernel itself are no news of a mutant.
    let mut known = BTreeSet::new();
    if results.part.is_left(CONTROL) {
        let (control, findings) = tester.control(kernel.as_ref())?;
        known = findings;
        results.take(MutationRecord::Control(control))?;
    }
    let left: Vec<&GeneratedMutant> = { generated.mutants.iter() }
        .filter(|it| results.part.is_left(&it.name))
        .collect();
    let (tested, told): (Vec<&GeneratedMutant>, Vec<_>) = left
        .into_iter()
        .partition(|it| it.object == ObjectCode::New);
    for mutant in told {
        results.row(mutant, by_object(mutant), Duration::ZERO)?;
    }
    let mut survivors = Vec::new();
    let mut unsteady = Vec::new();
    each_kernel(request, &tested, context, &mut |mutant, kernel| {
        let begin = Instant::now();
        let fate = match kernel {
            Ok(kernel) if kernel.hash() == base_hash => Some(MutationFate::Equivalent),
            Ok(kernel) => match tester.first_tests(mutant, kernel)? {
                Ok(kill) => Some(MutationFate::Killed(kill)),
                Err(once) => {
                    unsteady.push(once);
                    None
                }
            },
            Err(fate) => Some(fate),
        };
        match fate {
            Some(fate) => tester
                .order
                .learn(&results.row(mutant, fate, begin.elapsed())?),
            None => survivors.push(mutant),
        }
        Ok(())
    })?;
    let mut unsteady = unsteady.into_iter();
    each_kernel(request, &survivors, context, &mut |mutant, kernel| {
        let begin = Instant::now();
        let once = unsteady.next().unwrap_or_default();
        let fate = match kernel {
            Ok(kernel) => tester.all_tests(mutant, kernel, &known, once)?,
            Err(fate) => fate,
        };
        tester
            .order
            .learn(&results.row(mutant, fate, begin.elapsed())?);
        Ok(())
    })?;
    Ok(GeneratedResults {
        records: results.records,
        release: kernel.release().to_owned(),
        generated,
    })
}

/// What mutants of this kernel are tested by.
fn tester<'a>(
    request: &GeneratedRequest,
    kernel: &dyn TestKernel,
    context: Context<'a>,
) -> Result<Tester<'a>, CampaignError> {
    let mut usable = Vec::new();
    let set = sweeps().map_err(SweepRequestError::from)?.into_iter();
    for sweep in set.filter(|_| !request.budget.is_zero()) {
        if sweep.lacks(kernel, context)?.is_none() {
            usable.push(sweep);
        }
    }
    Ok(Tester {
        library: context.open(&request.scenarios)?,
        sweeps: usable,
        budget: request.budget,
        base: request.base.clone(),
        kvm_host: request.kvm_host,
        context,
        order: Order::new(&header::mutants()?),
        reached: BTreeMap::new(),
    })
}

/// The kernel with a mutant.
fn with(
    request: &GeneratedRequest,
    mutant: &GeneratedMutant,
) -> Result<unwindlab_guest_kernel::BuildSpec, CampaignError> {
    let mut spec = request.base.build_spec()?;
    spec.patches.push(mutant.patch());
    Ok(spec)
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

/// Who is given a mutant and its kernel; or, of one that is not built, what became of it.
type TakeKernel<'m, 't> = dyn FnMut(&'m GeneratedMutant, Result<&dyn TestKernel, MutationFate>) -> Result<(), CampaignError>
    + 't;

/// Builds one mutant after the other. No kernel stays in the cache: there are hundreds.
fn each_kernel<'m>(
    request: &GeneratedRequest,
    mutants: &[&'m GeneratedMutant],
    context: Context<'_>,
    take: &mut TakeKernel<'m, '_>,
) -> Result<(), CampaignError> {
    let builds = { mutants.iter() }.map(|it| Ok(KernelRequest::Build(with(request, it)?)));
    let builds: Vec<KernelRequest> = builds.collect::<Result<_, CampaignError>>()?;
    let builds: Vec<&KernelRequest> = builds.iter().collect();
    each_built(&builds, context, &mut |at, fetched: Fetched| {
        let Some(mutant) = mutants.get(at) else {
            return Ok(());
        };
        match fetched {
            Ok(kernel) => {
                take(mutant, Ok(kernel.as_ref()))?;
                Ok(context.provider.forget(kernel.hash())?)
            }
            Err(ProviderError::Build(BuildError::Compile { .. })) => {
                take(mutant, Err(MutationFate::DoesNotCompile))
            }
            Err(error) => take(mutant, Err(MutationFate::Untested(error.to_string()))),
        }
    })
}

/// Results as they come.
struct Results<'t> {
    records: Vec<MutationRecord>,
    part: GeneratedPart,
    tell: &'t mut dyn FnMut(GeneratedEvent<'_>) -> io::Result<()>,
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

#[cfg(test)]
mod tests;
