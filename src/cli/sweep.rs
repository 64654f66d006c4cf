//! `unwindlab sweep`.

use std::path::Path;
use std::time::Duration;

use super::args::{Detail, SweepArgs};
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::sweep::{
    self, PairChoice, PathOrigin, PathRequest, PointChoice, SetEvent, SetRequest, SetResult,
    SetSweep, SweepEvent, SweepOptions, SweepRequest, SweptFailure, SweptPath,
};
use crate::judge::outcome::OutcomeClass;
use crate::judge::sweep::SweepSymptom;
use crate::report::artifacts::OutputFile;
use crate::report::coverage::by_line;
use crate::report::listing::{self, Heading};
use crate::report::names::Names;
use crate::report::sweep::report;
use crate::report::{failure, instructions};
use unwindlab_engine::text::printable;

/// Sweeps and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn sweep(
    args: &SweepArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    if args.requests {
        return super::requests::places(args, context, spinner);
    }
    let Some(scenario) = &args.scenario else {
        return set(args, context, spinner);
    };
    let file = args.html.as_deref().map(OutputFile::create).transpose()?;
    let mut page = None;
    let summary = sweep::sweep(
        &request(args, scenario),
        context,
        &mut |event| match event {
            SweepEvent::Failed(failure) => spinner.print(&failure_text(&failure, args.detail)),
            SweepEvent::Ended(swept) => {
                page = file.is_some().then(|| listing(swept)).flatten();
                spinner.clear();
                spinner.print(&text(swept))
            }
            SweepEvent::Replay(path) => spinner.print(&format!("replay: {}\n", path.display())),
        },
    )?;
    if let (Some(file), Some(page)) = (file, page) {
        file.finish(&page)?;
    }
    Ok(class_code(summary.class()))
}

/// Tries the set of sweeps; the exit code.
fn set(args: &SweepArgs, context: Context<'_>, spinner: &Spinner) -> Result<u8, CommandError> {
    let request = SetRequest {
        kernel: args.kernel.choice(),
        kvm_host: args.kvm_host,
        jobs: args.jobs,
        budget: args.budget.map(Duration::from_secs),
        once: args.once,
        witness: args.witness.choice(),
    };
    let (mut tried, mut elapsed, mut rows) = (0, Duration::ZERO, 0);
    let class = sweep::sweep_set(&request, context, &mut |event| match event {
        SetEvent::Swept(swept) => {
            let failures = &swept.summary.verdicts.failures;
            match failures.keys().all(SweepSymptom::is_known) {
                true => Ok(()),
                false => {
                    spinner.clear();
                    spinner.print(&text(swept))
                }
            }
        }
        SetEvent::Row(one, result) => {
            tried += result.tried;
            elapsed += result.elapsed;
            rows += 1;
            spinner.clear();
            spinner.print(&row(one, result))
        }
    });
    if rows > 0 {
        spinner.print(&format!(
            "{rows} sweeps: {tried} points tried in {:.0} s\n",
            elapsed.as_secs_f64()
        ))?;
    }
    Ok(class_code(class?))
}

/// One line of the set: verdict, what and how, points, trials a second, why some were not tried.
fn row(one: &SetSweep, result: &SetResult) -> String {
    let verdict = match result.class {
        Some(OutcomeClass::Good) => "pass",
        Some(OutcomeClass::Bad) => "fail",
        Some(OutcomeClass::Untested) => "untested",
        None => "skip",
    };
    let rate = result.tried as f64 / result.elapsed.as_secs_f64().max(0.001);
    let why_not = result.why_not.as_deref();
    format!(
        "{verdict:<9} {:<40} {:>6} of {:>6} points  {rate:>4.0} a second  sweep {}{}\n",
        one.kind,
        result.tried,
        result.chosen,
        one.text,
        why_not.map_or_else(String::new, |why| format!("\n  {}", printable(why))),
    )
}

fn request(args: &SweepArgs, scenario: &Path) -> SweepRequest {
    let start = match &args.from {
        Some(place) => PathOrigin::From(place.clone()),
        None if args.no_request => PathOrigin::WithoutRequest,
        None => PathOrigin::Request,
    };
    let points = match args.points.as_slice() {
        [] => PointChoice::In {
            functions: args.functions.clone(),
            once: args.once,
        },
        points => PointChoice::Numbered(points.to_vec()),
    };
    SweepRequest {
        path: PathRequest {
            scenario: scenario.to_owned(),
            start,
        },
        kernel: args.kernel.choice(),
        kvm_host: args.kvm_host,
        points,
        pairs: args.pairs.then_some(PairChoice { all: args.all }),
        options: SweepOptions {
            jobs: args.jobs,
            budget: args.budget.map(Duration::from_secs),
            resume: args.resume.clone(),
            others_run: args.free,
            witness: args.witness.choice(),
            check_restores: args.check_restores,
            needs_lines: args.html.is_some(),
            // A single point is there to be looked at.
            keeps_replays: args.points.is_empty(),
        },
    }
}

/// What is shown of a failing trial.
pub(super) fn failure_text(failed: &SweptFailure<'_>, detail: Detail) -> String {
    let names = Names {
        kernel: failed.kernel.symbols(),
        user: &failed.verdicts.common().user_symbols,
    };
    let mut text = failure::block(failed.result, names);
    if let (true, Some(trace)) = (detail.trace, &failed.result.trace) {
        text += &failure::all_events(trace, names);
    }
    if let Some(count) = detail.instructions {
        let point = failed.point;
        text += &format!("  the path around point {point}, as it is without an NMI there:\n");
        text += &instructions::around(failed.verdicts.path(), point.number, count, names);
    }
    text
}

fn text(swept: &SweptPath<'_>) -> String {
    let names = Names {
        kernel: swept.kernel.symbols(),
        user: &swept.summary.verdicts.common().user_symbols,
    };
    format!(
        "{}on {}, KVM host {}\n",
        report(&swept.summary, names),
        swept.kernel.release(),
        swept.kvm_host
    )
}

/// What was done with each line of the source.
fn listing(swept: &SweptPath<'_>) -> Option<String> {
    let lines = swept.kernel.symbols().lines()?;
    let (path, tried) = (
        swept.summary.verdicts.path(),
        swept.summary.verdicts.numbers(),
    );
    let heading = Heading {
        scenario: swept.scenario.to_owned(),
        release: swept.kernel.release().to_owned(),
        points: (tried.len(), path.len()),
    };
    let files = by_line(path, &tried, lines);
    Some(listing::html(&heading, &files, lines))
}
