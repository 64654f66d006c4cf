//! All first-order mutants of the deferred unwinder, and what becomes of each: the mutation score of the tests.
//!
//! Most mutants are in one kernel, which is told before each trial which of them it is to be, and which notes what it executes. It is built and
//! booted once. Those that C does not allow there get a kernel each, built while the one before is tested.
//!
//! A mutant gets the scenarios that execute what it changes, in the order in which they killed its neighbours; then sweeps. The first test that does
//! not pass ends it.

mod chosen;
mod coverage;
mod order;
mod part;
mod setups_stage;
mod stages;
mod tester;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use unwindlab_guest_kernel::build::generate::Generated;
use unwindlab_guest_kernel::build::header;

use self::coverage::Coverage;
use self::order::Order;
use self::part::GeneratedPart;
pub(in crate::campaign) use self::part::{CONTROL, GeneratedRecord};
use self::stages::{Campaign, Results};
use self::tester::Tester;
use super::Context;
use super::error::{CampaignError, SweepRequestError};
use super::kernel::KernelChoice;
use super::part::PartRequest;
use super::run::TrialOptions;
use super::setups::SetupsRequest;
use super::sweep::sweeps;
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::TestKernel;
use crate::report::mutation::MutationRecord;
use crate::setup::Strength;
use unwindlab_scenario::Loaded;

/// The seed of the set-ups: the same for each mutant.
const SETUPS_SEED: u64 = 1;

/// Which mutants to generate, and how to test them.
#[derive(Debug, Clone, Default)]
pub struct GeneratedRequest {
    /// Only mutants whose names match one of these patterns; all where there are none.
    pub only: Vec<glob::Pattern>,
    /// The scenarios that test them; the whole library where there are none.
    pub scenarios: Vec<PathBuf>,
    /// The time for the tests of one mutant. With none it gets all scenarios and no sweep.
    pub budget: Duration,
    /// The kernel that they are mutants of.
    pub base: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
    /// How many tests are made at a time, each on a KVM host of its own; 0 is 1.
    pub jobs: usize,
    /// Results of earlier runs: what killed a mutant then is tried first.
    pub learn: Vec<PathBuf>,
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
    // What is wrong with the request is told before all mutants are compiled.
    let library = context.open(&request.scenarios)?;
    let mut order = Order::new(&header::mutants()?);
    for file in &request.learn {
        order.learn_from(file)?;
    }
    let generated = generate(request, context)?;
    tell(GeneratedEvent::Generated(&generated))?;
    let base = KernelRequest::Build(request.base.build_spec()?);
    let kernel = context.fetch(&base)?;
    let tester = tester(request, library, kernel.as_ref(), context)?;
    let part = GeneratedPart::open(request, kernel.as_ref(), &generated.mutants, &tester)?;
    let before = part.before.clone();
    for record in &before {
        if let MutationRecord::Mutant(row) = record {
            order.learn(row);
        }
    }
    let mut campaign = Campaign {
        request,
        tester: &tester,
        generated: &generated,
        base: kernel.hash(),
        order: Mutex::new(order),
        known: BTreeSet::new(),
        coverage: Coverage::default(),
        results: Results {
            records: before,
            part,
            tell,
        },
    };
    campaign.control(kernel.as_ref())?;
    let own = campaign.told_and_chosen()?;
    campaign.own(&own)?;
    let Results { records, .. } = campaign.results;
    Ok(GeneratedResults {
        records,
        release: kernel.release().to_owned(),
        generated,
    })
}

/// What mutants of this kernel are tested by.
fn tester<'a>(
    request: &GeneratedRequest,
    library: Vec<Loaded>,
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
        library,
        sweeps: usable,
        budget: request.budget,
        base: request.base.clone(),
        options: TrialOptions {
            kvm_host: request.kvm_host,
            jobs: request.jobs.max(1),
            ..TrialOptions::default()
        },
        context,
        setups: SetupsRequest {
            seed: SETUPS_SEED,
            strength: Strength::Pairs,
            only: Vec::new(),
            kernel: request.base.clone(),
            kvm_host: request.kvm_host,
        },
        gate: RwLock::default(),
        unclean: Mutex::default(),
    })
}

#[cfg(test)]
mod tests;
