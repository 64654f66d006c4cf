//! A trial of a sweep again.

use std::io;
use std::path::Path;

use super::{ReplayEvent, ReplayRequest, ReplaySummary, compare, kernel, other_kernel};
use crate::campaign::Context;
use crate::campaign::error::{CampaignError, ReplayFileError, ReplayFileProblem};
use crate::campaign::replay_file::{ReplayPlace, ReplaySweep, ReplayVerdict};
use crate::campaign::sweep::{
    PairChoice, PathOrigin, PathRequest, PointChoice, ReplayedPoint, SweepEvent, SweepOptions,
    SweepRequest, SweepSummary, sweep,
};

/// The sweep that has the trial.
fn sweep_of(
    request: &ReplayRequest,
    trial: &ReplaySweep,
    scenario: &Path,
) -> Result<SweepRequest, ReplayFileError> {
    let start = match (&trial.from, trial.asks) {
        (Some(from), _) => {
            let place = from.parse();
            PathOrigin::From(place.map_err(|_| request.file.wrong(ReplayFileProblem::From))?)
        }
        (None, true) => PathOrigin::Request,
        (None, false) => PathOrigin::WithoutRequest,
    };
    Ok(SweepRequest {
        path: PathRequest {
            scenario: scenario.to_owned(),
            start,
        },
        kernel: kernel(request),
        kvm_host: request.kvm_host,
        points: PointChoice::Replayed(ReplayedPoint {
            kernel: request.file.replay.kernel.hash.clone(),
            first: trial.place.clone(),
            second: trial.then.clone(),
        }),
        pairs: trial.then.is_some().then_some(PairChoice { all: true }),
        options: SweepOptions {
            jobs: 1,
            witness: trial.witness,
            ..SweepOptions::default()
        },
    })
}

/// Makes the trial again.
pub(super) fn replay(
    request: &ReplayRequest,
    trial: &ReplaySweep,
    scenario: &Path,
    context: Context<'_>,
    tell: &mut dyn FnMut(ReplayEvent<'_>) -> io::Result<()>,
) -> Result<ReplaySummary, CampaignError> {
    let repetition = sweep_of(request, trial, scenario)?;
    let mut other = None;
    let summary = sweep(&repetition, context, &mut |event| {
        if let SweepEvent::Ended(path) = event {
            other = other_kernel(request, path.kernel.hash(), path.kernel.release());
        }
        tell(ReplayEvent::Sweep(event))
    })?;
    let failures: Vec<_> = summary
        .failures
        .iter()
        .map(ReplayVerdict::of_sweep)
        .collect();
    Ok(ReplaySummary {
        result: compare(&request.file.replay.verdict, summary.tried, &failures),
        place: place(trial, &summary),
        other_kernel: other,
    })
}

/// Where the trials were made, or why there are none.
fn place(trial: &ReplaySweep, summary: &SweepSummary) -> String {
    let places: Vec<_> = [&trial.place].into_iter().chain(&trial.then).collect();
    let join = |name: fn(&ReplayPlace) -> String| {
        let names: Vec<String> = places.iter().map(|place| name(place)).collect();
        names.join(" and then ")
    };
    let instructions = || join(|it| format!("{}+{:#x}", it.function, it.offset));
    let release = &summary.release;
    match summary.tried {
        0 => format!("on {release}: the path does not come by {}", instructions()),
        1 => format!("at {} of {release}", instructions()),
        tried => format!(
            "at {tried} points in {} of {release}",
            join(|it| it.function.clone())
        ),
    }
}
