//! A trial of a sweep once more, and files of such trials.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::analysis::Analysis;
use super::super::args::{ReplayArgs, SweepArgs};
use super::super::error::CommandError;
use super::super::sweep::{Choice, Swept, code_of, sweep_with};
use super::{Again, kernel_of, options, text};
use crate::host::provider::{Provider, TestKernel};
use crate::interrupt::Interrupt;
use crate::judge::sweep::Verdicts;
use crate::plan::sweep::{Boundary, Points};
use crate::report::artifacts::OutputFile;
use crate::report::replay::{
    Replay, ReplayPlace, ReplaySweep, ReplayTrial, ReplayVerdict, VERSION,
};
use crate::scenario::KernelSymbols;

/// Where replay files go, with other things that outlive a run.
const FOLDER: &str = "unwindlab-out";

/// The sweep that has the trial; its points are chosen by the kernel.
pub(super) fn of(
    args: &ReplayArgs,
    replay: &Replay,
    trial: &ReplaySweep,
    scenario: &Path,
) -> Result<SweepArgs, CommandError> {
    let from = trial.from.as_deref().map(str::parse).transpose();
    let from = from.map_err(|_| {
        let file = args.file.display();
        CommandError::Usage(format!("{file}: `from` is no place of the kernel"))
    })?;
    Ok(SweepArgs {
        scenario: scenario.to_owned(),
        kernel: options(args, replay),
        no_request: !trial.asks,
        from,
        pairs: trial.then.is_some(),
        all: trial.then.is_some(),
        resume: None,
        once: false,
        functions: Vec::new(),
        points: Vec::new(),
        detail: args.detail,
        budget: None,
        jobs: 1,
        check_restores: false,
        html: None,
        kvm_host: args.kvm_host,
    })
}

/// Makes it again.
pub(super) fn again(
    sweep: &SweepArgs,
    replay: &Replay,
    trial: &ReplaySweep,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<Again, CommandError> {
    let ReplaySweep { place, then, .. } = trial;
    let points = |kernel: &dyn TestKernel| {
        let same = kernel.hash() == replay.kernel.hash;
        let first = points(place, same, kernel.symbols())?;
        let second = points(then.as_ref().unwrap_or(place), same, kernel.symbols())?;
        Ok(Choice { first, second })
    };
    let Swept {
        failures,
        tried,
        release,
    } = sweep_with(sweep, &points, provider, analysis, interrupt)?;
    let places: Vec<_> = [place].into_iter().chain(then).collect();
    let join = |name: fn(&ReplayPlace) -> String| {
        let names: Vec<String> = places.iter().map(|place| name(place)).collect();
        names.join(" and then ")
    };
    let of = match tried {
        0 => format!(
            "on {release}: the path does not come by {}",
            join(|it| format!("{}+{:#x}", it.function, it.offset))
        ),
        1 => format!(
            "at {} of {release}",
            join(|it| format!("{}+{:#x}", it.function, it.offset))
        ),
        tried => format!(
            "at {tried} points in {} of {release}",
            join(|it| it.function.clone())
        ),
    };
    Ok(Again {
        shown: failures.iter().map(ReplayVerdict::of_sweep).collect(),
        made: tried,
        of,
    })
}

/// The place in a kernel: in another image than the one it was found in, all of its function.
fn points(
    place: &ReplayPlace,
    same: bool,
    symbols: &dyn KernelSymbols,
) -> Result<Points, CommandError> {
    let code = code_of(&place.function, symbols)?;
    Ok(match same {
        true => Points::At {
            addresses: code
                .iter()
                .map(|code| code.start.wrapping_add(place.offset))
                .collect(),
            occurrence: place.occurrence,
        },
        false => Points::In {
            functions: Some(code),
            once: false,
        },
    })
}

/// Writes a file for each distinct failure of a sweep, at its first point; their names.
///
/// # Errors
/// [`CommandError`] where one cannot be written.
pub(in super::super) fn write(
    args: &SweepArgs,
    scenario: (&str, &str),
    kernel: &dyn TestKernel,
    verdicts: &Verdicts<'_>,
) -> Result<Vec<PathBuf>, CommandError> {
    let mut written = Vec::new();
    for (symptom, failure) in &verdicts.failures {
        let Some(point) = failure.points.first() else {
            continue;
        };
        let Some(place) = place(point.at, kernel.symbols()) else {
            continue;
        };
        let then = match point.then {
            None => None,
            Some(then) => match self::place(then.at, kernel.symbols()) {
                None => continue,
                then => then,
            },
        };
        let replay = Replay {
            version: VERSION,
            name: scenario.0.to_owned(),
            scenario: scenario.1.to_owned(),
            snapshot: None,
            kernel: kernel_of(&args.kernel, kernel)?,
            trial: ReplayTrial::Sweep(ReplaySweep {
                asks: !args.no_request,
                from: args.from.as_ref().map(ToString::to_string),
                place,
                then,
            }),
            verdict: ReplayVerdict::of_sweep(symptom),
        };
        fs::create_dir_all(FOLDER)?;
        let point = point.to_string().replace(':', "-");
        let path = Path::new(FOLDER).join(format!("{}-point-{point}.replay.json", scenario.0));
        OutputFile::create(&path)?.finish(&text(&replay)?)?;
        written.push(path);
    }
    Ok(written)
}

fn place(boundary: Boundary, symbols: &dyn KernelSymbols) -> Option<ReplayPlace> {
    let (function, offset) = symbols.resolve(boundary.rip)?;
    Some(ReplayPlace {
        function,
        offset,
        occurrence: boundary.occurrence,
    })
}
