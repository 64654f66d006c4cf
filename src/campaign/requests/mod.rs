//! One trial for each place of a path at which a tracer can sit.
//!
//! Two surveys for each company find the places: the kernel's own tracers say which functions and
//! tracepoints the workload's tasks pass. Then, one trial for each: an event at the place requests
//! a stack each time that it is passed. Every invariant is checked on every trial.

mod nmi;
mod part;
mod scenario;
mod trials;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use self::nmi::PlaceSweep;
use self::part::PlacesPart;
use self::trials::Trials;
use super::Context;
use super::error::{CampaignError, SweepRequestError};
use super::kernel::KernelChoice;
use super::part::PartRequest;
use crate::host::choice::KvmHost;
use crate::host::provider::TestKernel;
use crate::judge::ScenarioResult;
use crate::judge::outcome::OutcomeClass;
use crate::judge::requests::{Company, Fate, Place, PlaceRecord, RequestVerdicts, Seat, places};
use unwindlab_abi::SurveyPlan;
use unwindlab_scenario::{KernelSymbols, Loaded};

/// Which places to try, on which kernel.
#[derive(Debug, Clone, Default)]
pub struct PlacesRequest {
    /// The scenario: a file, or a name of the library.
    pub scenario: PathBuf,
    /// The kernel under test.
    pub kernel: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
    /// Functions and tracepoints to try; all of the path where there are none.
    pub only: Vec<String>,
    /// Sweep the path behind each place with NMIs, instead of one trial.
    pub nmi: bool,
    /// In those sweeps, try each instruction only the first time that it is executed.
    pub once: bool,
    /// In those sweeps, also try the boundaries for which the next one stands.
    pub each: bool,
    /// Machines that work side by side in those sweeps.
    pub jobs: u32,
    /// The time for trials, if it is limited.
    pub budget: Option<Duration>,
    /// The part that is made and its file, if there is one.
    pub part: Option<PartRequest>,
}

/// What happens meanwhile.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
#[derive(Clone, Copy)]
pub enum PlacesEvent<'a> {
    /// A place is the first that fails in its way.
    Failed {
        /// The place.
        place: &'a Place,
        /// The trial, judged.
        result: &'a ScenarioResult,
        /// The kernel under test.
        kernel: &'a dyn TestKernel,
    },
    /// The path behind a place was swept.
    Swept(&'a PlaceSweep),
    /// A replay file was written.
    Replay(&'a Path),
    /// All trials are made.
    Ended(&'a PlacesSummary),
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct PlacesSummary {
    /// All places that were tried.
    pub verdicts: RequestVerdicts,
    /// The sweeps behind places, instead, if those were asked for.
    pub sweeps: Option<Vec<PlaceSweep>>,
    /// How many places the surveys found.
    pub found: usize,
    /// How long the trials took.
    pub elapsed: Duration,
    /// `uname -r` of the kernel.
    pub release: String,
    /// What the KVM host says of itself.
    pub kvm_host: String,
}

impl PlacesSummary {
    /// What it says of the kernel. That a place was not reached, or is refused, says nothing.
    #[must_use]
    pub fn class(&self) -> OutcomeClass {
        if let Some(sweeps) = &self.sweeps {
            let of = |class| sweeps.iter().any(|it| it.class() == class);
            return match (of(OutcomeClass::Bad), of(OutcomeClass::Untested)) {
                (true, _) => OutcomeClass::Bad,
                (false, false) if !sweeps.is_empty() => OutcomeClass::Good,
                _ => OutcomeClass::Untested,
            };
        }
        let count = |is: fn(&Fate) -> bool| self.verdicts.count(is);
        if count(|it| *it == Fate::Failed) > 0 {
            OutcomeClass::Bad
        } else if self.is_incomplete() || count(|it| matches!(it, Fate::Passed | Fate::Known)) == 0
        {
            OutcomeClass::Untested
        } else {
            OutcomeClass::Good
        }
    }

    /// Whether places were not tried, or their trials say nothing.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        let untested = self.verdicts.count(|it| matches!(it, Fate::Untested(_)));
        untested > 0 || self.verdicts.places.len() < self.found
    }
}

/// Tries the places of a path.
///
/// # Errors
/// [`CampaignError`]; where the user stopped it, the end is told all the same.
pub fn requests(
    request: &PlacesRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(PlacesEvent<'_>) -> io::Result<()>,
) -> Result<PlacesSummary, CampaignError> {
    let kernel_request = request.kernel.request()?;
    let loaded = one_scenario(request, context)?;
    let kernel = context.fetch(&kernel_request)?;
    let kernel = kernel.as_ref();
    let mut trials = Trials::new(request, &loaded, kernel, context)?;
    let mut found = Vec::new();
    // The NMIs are requests of the scenario's own events.
    let companies: &[Company] = match request.nmi {
        true => &[Company::Beside],
        false => &[Company::Alone, Company::Beside],
    };
    for &company in companies {
        for survey in [SurveyPlan::Functions, SurveyPlan::Tracepoints] {
            found.extend(places(&trials.survey(survey, company)?, company));
        }
    }
    found.retain(|it| {
        let mut only = request.only.iter();
        request.only.is_empty() || only.any(|name| is_named(it, name, kernel.symbols()))
    });
    if found.is_empty() {
        return Err(SweepRequestError::NoPlace.into());
    }
    let of = (&loaded, kernel);
    let part = { request.part.as_ref() }
        .map(|part| PlacesPart::open(part, request, of, &found))
        .transpose()?;
    let begin = Instant::now();
    if request.nmi {
        let host = trials.host_name();
        // The sweeps have their own.
        drop(trials);
        let sweeps = nmi::sweeps(request, &loaded, &found, context, tell)?;
        let summary = PlacesSummary {
            verdicts: RequestVerdicts::default(),
            found: found.len(),
            sweeps: Some(sweeps),
            elapsed: begin.elapsed(),
            release: kernel.release().to_owned(),
            kvm_host: host,
        };
        tell(PlacesEvent::Ended(&summary))?;
        context.check_interrupt()?;
        return Ok(summary);
    }
    let mut part = part;
    let mut verdicts =
        { part.as_ref() }.map_or_else(|| Ok(RequestVerdicts::default()), PlacesPart::before)?;
    found.retain(|place| part.as_ref().is_none_or(|part| part.is_left(place)));
    let all = verdicts.places.len() + found.len();
    for (number, place) in found.iter().enumerate() {
        if request
            .budget
            .is_some_and(|budget| begin.elapsed() > budget)
        {
            break;
        }
        let failures = verdicts.failures.len();
        context.progress.overall(number, found.len());
        context
            .progress
            .step(&format!("{failures} failures: {place}"));
        let (tried, result) = match trials.make(number, place) {
            // What was tried is told.
            Err(CampaignError::Interrupted) => break,
            made => made?,
        };
        let record = PlaceRecord::of(place.clone(), &result, kernel.symbols());
        if let Some(part) = &mut part {
            part.take(&record)?;
        }
        if verdicts.add(record) {
            tell(PlacesEvent::Failed {
                place,
                result: &result,
                kernel,
            })?;
            if let Some(path) = trials.keep_replay(&tried, &result)? {
                tell(PlacesEvent::Replay(&path))?;
            }
        }
    }
    let summary = PlacesSummary {
        verdicts,
        found: all,
        sweeps: None,
        elapsed: begin.elapsed(),
        release: kernel.release().to_owned(),
        kvm_host: trials.host_name(),
    };
    tell(PlacesEvent::Ended(&summary))?;
    context.check_interrupt()?;
    Ok(summary)
}

/// Whether a place has this name. The kernel's tracers know a function by one of its names
/// (`__do_sys_getppid`), and the user may by another (`__x64_sys_getppid`).
fn is_named(place: &Place, name: &str, symbols: &dyn KernelSymbols) -> bool {
    let own = place.seat.name();
    let is_function = !matches!(place.seat, Seat::Tracepoint { .. });
    name == own
        || is_function && {
            let addresses = symbols.addresses(own);
            symbols
                .addresses(name)
                .iter()
                .any(|it| addresses.contains(it))
        }
}

fn one_scenario(request: &PlacesRequest, context: Context<'_>) -> Result<Loaded, CampaignError> {
    let mut scenarios = context.open(std::slice::from_ref(&request.scenario))?;
    match (scenarios.pop(), scenarios.is_empty()) {
        (Some(loaded), true) => Ok(loaded),
        _ => Err(SweepRequestError::NotOneScenario.into()),
    }
}

#[cfg(test)]
mod tests;
