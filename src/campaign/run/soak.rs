//! Many trials of each scenario, all of them, whatever comes of those before.

use std::io;
use std::time::{Duration, Instant};

use super::{LibraryRun, Prepared, RunRequest, SkipReason};
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::judge::outcome::OutcomeClass;
use crate::judge::soak::Soaked;
use crate::report::json::Setting;
use crate::scenario::Loaded;
use unwindlab_engine::plan::{Executor, TrialPlan};

/// What came of it.
#[derive(Debug)]
pub struct SoakSummary {
    /// Each scenario, in the order in which they ran.
    pub soaked: Vec<Soaked>,
    /// What was tested, and where.
    pub setting: Setting,
    /// How long it took.
    pub elapsed: Duration,
    /// Why some logs or replay files could not be kept.
    pub unkept: Vec<CampaignError>,
}

/// What happens meanwhile.
#[derive(Debug, Clone, Copy)]
pub enum SoakEvent<'a> {
    /// These scenarios are about to be run, in this order.
    Started(&'a [String]),
    /// The trials of a scenario are over.
    Soaked(&'a Setting, &'a Soaked),
}

/// Makes `trials` of each scenario. Of the first trial of each that is not good, the logs are kept. If the user
/// interrupts it, the summary has what was made so far.
///
/// # Errors
/// [`CampaignError`] where nothing was run, or a KVM host could not be started.
pub fn soak(
    request: &RunRequest,
    trials: u32,
    context: Context<'_>,
    tell: &mut dyn FnMut(SoakEvent<'_>) -> io::Result<()>,
) -> Result<SoakSummary, CampaignError> {
    let start = Instant::now();
    let prepared = Prepared::new(request, context)?;
    let (library, plans) = (&prepared.library, &prepared.trials);
    let names = library.iter().map(|it| it.scenario.name.to_string());
    tell(SoakEvent::Started(&names.collect::<Vec<_>>()))?;
    let kept = Prepared::kept(request);
    let mut run = LibraryRun::new(&request.trials, None, prepared.kernel.as_ref(), context);
    run.get_tools(plans.iter());
    let (mut executor, mut all) = (None, Vec::new());
    let count = usize::try_from(trials).unwrap_or(usize::MAX);
    for (at, (loaded, plan)) in library.iter().zip(plans).enumerate() {
        if context.interrupt.is_set() {
            break;
        }
        let mut soaked = Soaked::new(loaded.scenario.name.as_str(), trials);
        run.kept.clone_from(&kept);
        match plan {
            Err(SkipReason(reason)) => soaked.skipped = Some(reason.clone()),
            Ok(plan) => {
                let made = |trials: u32| {
                    let trials = usize::try_from(trials).unwrap_or(usize::MAX);
                    let done = at.saturating_mul(count).saturating_add(trials);
                    let total = library.len().saturating_mul(count);
                    context.progress.overall(done, total);
                };
                run.soak_one(&mut executor, loaded, plan, &mut soaked, &made)?;
            }
        }
        tell(SoakEvent::Soaked(&prepared.setting(&run.host), &soaked))?;
        all.push(soaked);
    }
    Ok(SoakSummary {
        soaked: all,
        setting: prepared.setting(&run.host),
        elapsed: start.elapsed(),
        unkept: run.unkept,
    })
}

impl LibraryRun<'_> {
    /// Makes all trials of a scenario, up to the user's interrupt; `made` is told how many there are.
    fn soak_one(
        &mut self,
        executor: &mut Option<Box<dyn Executor>>,
        loaded: &Loaded,
        plan: &TrialPlan,
        soaked: &mut Soaked,
        made: &dyn Fn(u32),
    ) -> Result<(), CampaignError> {
        if let Some(reason) = self.missing(plan) {
            soaked.reasons.push((1, reason));
            return Ok(());
        }
        for number in 1..=soaked.planned {
            made(number - 1);
            let step = format!("{}, trial {number} of {}", soaked.name, soaked.planned);
            self.context.progress.step(&step);
            let Some(result) = self.run_trial(executor, loaded, plan, number)? else {
                break;
            };
            if result.outcome.class() != OutcomeClass::Good {
                self.kept = None;
            }
            soaked.add(&result);
        }
        Ok(())
    }
}
