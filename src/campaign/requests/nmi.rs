//! A request at a place, and an NMI at each instruction behind it: a sweep for each place.

use std::io;
use std::time::{Duration, Instant};

use super::scenario;
use super::{PlacesEvent, PlacesRequest};
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::campaign::sweep::{
    PathOrigin, PathRequest, PointChoice, SweepEvent, SweepOptions, SweepRequest, SweepSummary,
    sweep_on,
};
use crate::judge::outcome::OutcomeClass;
use crate::judge::requests::{Place, Seat};
use unwindlab_engine::plan::Executor;
use unwindlab_scenario::Loaded;

/// What came of the sweep behind a place.
#[derive(Debug, Clone)]
pub struct PlaceSweep {
    /// The place.
    pub place: Place,
    /// What the sweep found, or why there is none.
    pub swept: Result<SweepSummary, String>,
    /// Why it did not come to its end, if it tried some points.
    pub broke_off: Option<String>,
}

impl PlaceSweep {
    fn of(place: &Place, swept: Result<SweepSummary, String>) -> Self {
        Self {
            place: place.clone(),
            swept,
            broke_off: None,
        }
    }

    /// A sweep that broke off, with what it found before that.
    fn broken_off(place: &Place, found: Option<SweepSummary>, why: String) -> Self {
        match found {
            Some(found) if found.tried > 0 => Self {
                broke_off: Some(why),
                ..Self::of(place, Ok(found))
            },
            _ => Self::of(place, Err(why)),
        }
    }

    /// What it says of the kernel.
    #[must_use]
    pub fn class(&self) -> OutcomeClass {
        let swept = self.swept.as_ref();
        swept.map_or(OutcomeClass::Untested, SweepSummary::class)
    }
}

/// Sweeps behind each place that a path can begin at: the entries of functions. The time of each is
/// an equal share of what is left.
pub(super) fn sweeps(
    request: &PlacesRequest,
    loaded: &Loaded,
    found: &[Place],
    context: Context<'_>,
    tell: &mut dyn FnMut(PlacesEvent<'_>) -> io::Result<()>,
) -> Result<Vec<PlaceSweep>, CampaignError> {
    let is_entry = |place: &&Place| matches!(place.seat, Seat::Entry { .. });
    let places: Vec<&Place> = found.iter().filter(is_entry).collect();
    let begin = Instant::now();
    let (mut host, mut swept) = (None, Vec::new());
    for (number, place) in places.iter().enumerate() {
        if context.interrupt.is_set() {
            break;
        }
        let left = places.len().saturating_sub(number);
        let share = request
            .budget
            .map(|budget| share(budget, begin.elapsed(), left));
        let done = one(
            &mut host,
            request,
            loaded,
            (number, place),
            share,
            context,
            tell,
        )?;
        tell(PlacesEvent::Swept(&done))?;
        swept.push(done);
    }
    Ok(swept)
}

/// The time for the next sweep, of so many that are left.
fn share(budget: Duration, used: Duration, left: usize) -> Duration {
    let left = u32::try_from(left).unwrap_or(u32::MAX).max(1);
    budget.saturating_sub(used) / left
}

fn one(
    host: &mut Option<Box<dyn Executor>>,
    request: &PlacesRequest,
    loaded: &Loaded,
    (number, place): (usize, &Place),
    budget: Option<Duration>,
    context: Context<'_>,
    tell: &mut dyn FnMut(PlacesEvent<'_>) -> io::Result<()>,
) -> Result<PlaceSweep, CampaignError> {
    let Ok(start) = place.seat.name().parse().map(PathOrigin::From) else {
        let why = "it is no name of a scenario's".to_owned();
        return Ok(PlaceSweep::of(place, Err(why)));
    };
    let invariants = context.analysis.invariant_ids();
    let trial = scenario::trial(loaded, Some(place), place.company, number, &invariants)?;
    let folder = tempfile::tempdir()?;
    let scenario = folder.path().join(format!("{}.yaml", *trial.scenario.name));
    std::fs::write(&scenario, &trial.text)?;
    let of = SweepRequest {
        kernel: request.kernel.clone(),
        kvm_host: request.kvm_host,
        points: PointChoice::In {
            functions: Vec::new(),
            once: request.once,
            each: request.each,
        },
        options: SweepOptions {
            jobs: request.jobs.max(1),
            budget,
            keeps_replays: true,
            ..SweepOptions::default()
        },
        ..SweepRequest::of(PathRequest { scenario, start })
    };
    let mut found = None;
    let swept = sweep_on(host, &of, context, &mut |event| match event {
        SweepEvent::Replay(path) => tell(PlacesEvent::Replay(path)),
        SweepEvent::Ended(path) => {
            found = Some(path.so_far());
            Ok(())
        }
        _ => Ok(()),
    });
    match swept {
        Ok(swept) => Ok(PlaceSweep::of(place, Ok(swept))),
        // The user stopped it, the KVM host failed, or no path begins there: the function is a module's, is not passed in every iteration, or in
        // an NMI's handler only.
        Err(
            error @ (CampaignError::Provider(_)
            | CampaignError::Sweep(_)
            | CampaignError::Interrupted),
        ) => Ok(PlaceSweep::broken_off(place, found, error.to_string())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::requests::Company;
    use crate::judge::sweep::SweepSymptom;

    /// Who stops a sweep does not lose the failure that it has found.
    #[test]
    fn what_a_broken_off_sweep_found_counts() {
        let place = Place {
            seat: Seat::Entry {
                function: "f".to_owned(),
            },
            company: Company::Beside,
            hits: 1,
            contexts: 0,
        };
        let found = |tried| SweepSummary {
            failures: vec![SweepSymptom {
                died: None,
                fell: [("C4".to_owned(), None)].into(),
            }],
            tried,
            incomplete: true,
            release: String::new(),
        };
        let broken_off =
            |found| PlaceSweep::broken_off(&place, found, "interrupted".to_owned()).class();
        assert_eq!(broken_off(Some(found(3))), OutcomeClass::Bad);
        assert_eq!(broken_off(None), OutcomeClass::Untested);
    }

    #[test]
    fn what_is_left_is_shared() {
        let seconds = Duration::from_secs;
        assert_eq!(share(seconds(100), seconds(0), 10), seconds(10));
        assert_eq!(share(seconds(100), seconds(90), 2), seconds(5));
        assert_eq!(share(seconds(100), seconds(120), 2), seconds(0));
        assert_eq!(share(seconds(100), seconds(0), 0), seconds(100));
    }
}
