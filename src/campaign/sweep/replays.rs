//! Replay files of the failures of a sweep.

use std::fs;
use std::io;
use std::path::Path;

use super::event::SweepEvent;
use super::request::SweepRequest;
use crate::campaign::error::CampaignError;
use crate::campaign::replay_file::{
    Replay, ReplayKernel, ReplayPlace, ReplaySweep, ReplayTrial, ReplayVerdict, VERSION, save,
};
use crate::host::provider::TestKernel;
use crate::judge::sweep::Verdicts;
use unwindlab_engine::plan::sweep::{Boundary, Point};
use unwindlab_scenario::{KernelSymbols, Loaded};

/// The folder of replay files, with other things that outlive a run.
const FOLDER: &str = "unwindlab-out";

/// Writes a file for each distinct failure, at its first point.
pub(super) fn write(
    request: &SweepRequest,
    loaded: &Loaded,
    kernel: &dyn TestKernel,
    verdicts: &Verdicts<'_>,
    tell: &mut dyn FnMut(SweepEvent<'_>) -> io::Result<()>,
) -> Result<(), CampaignError> {
    let name = loaded.scenario.name.as_str();
    for (symptom, failure) in &verdicts.failures {
        let Some(point) = failure.points.first() else {
            continue;
        };
        let Some(trial) = trial(request, point, kernel.symbols()) else {
            continue;
        };
        let replay = Replay {
            version: VERSION,
            name: name.to_owned(),
            scenario: loaded.text.clone(),
            snapshot: None,
            kernel: ReplayKernel::of(kernel, &request.kernel)?,
            trial: ReplayTrial::Sweep(trial),
            verdict: ReplayVerdict::of_sweep(symptom),
        };
        fs::create_dir_all(FOLDER)?;
        let point = point.to_string().replace(':', "-");
        let path = Path::new(FOLDER).join(format!("{name}-point-{point}.replay.json"));
        save(&path, &replay)?;
        tell(SweepEvent::Replay(&path))?;
    }
    Ok(())
}

/// The trial at a point; nothing where the point is in no function.
fn trial(
    request: &SweepRequest,
    point: &Point,
    symbols: &dyn KernelSymbols,
) -> Option<ReplaySweep> {
    let start = &request.path.start;
    Some(ReplaySweep {
        asks: start.allows_request(),
        from: start.from().map(ToString::to_string),
        place: place(point.at, symbols)?,
        then: match point.then {
            Some(then) => Some(place(then.at, symbols)?),
            None => None,
        },
        witness: request.options.witness,
    })
}

fn place(boundary: Boundary, symbols: &dyn KernelSymbols) -> Option<ReplayPlace> {
    let (function, offset) = symbols.resolve(boundary.rip)?;
    Some(ReplayPlace {
        function,
        offset,
        occurrence: boundary.occurrence,
    })
}
