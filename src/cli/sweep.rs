//! `unwindlab sweep`.

use std::time::Duration;

use super::args::{Detail, SweepArgs};
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::sweep::{
    self, PairChoice, PathOrigin, PathRequest, PointChoice, SweepEvent, SweepOptions, SweepRequest,
    SweptFailure, SweptPath,
};
use crate::report::artifacts::OutputFile;
use crate::report::coverage::by_line;
use crate::report::listing::{self, Heading};
use crate::report::names::Names;
use crate::report::sweep::report;
use crate::report::{failure, instructions};

/// Sweeps and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn sweep(
    args: &SweepArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let file = args.html.as_deref().map(OutputFile::create).transpose()?;
    let mut page = None;
    let summary = sweep::sweep(&request(args), context, &mut |event| match event {
        SweepEvent::Failed(failure) => spinner.print(&failure_text(&failure, args.detail)),
        SweepEvent::Ended(swept) => {
            page = file.is_some().then(|| listing(swept)).flatten();
            spinner.clear();
            spinner.print(&text(swept))
        }
        SweepEvent::Replay(path) => spinner.print(&format!("replay: {}\n", path.display())),
    })?;
    if let (Some(file), Some(page)) = (file, page) {
        file.finish(&page)?;
    }
    Ok(class_code(summary.class()))
}

fn request(args: &SweepArgs) -> SweepRequest {
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
            scenario: args.scenario.clone(),
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
