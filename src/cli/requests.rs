//! `unwindlab sweep --requests`.

use std::time::Duration;

use super::error::{CommandError, class_code};
use super::progress::Spinner;
use super::sweep::SweepArgs;
use crate::campaign::Context;
use crate::campaign::part::PartRequest;
use crate::campaign::requests::{PlaceSweep, PlacesEvent, PlacesRequest, PlacesSummary, requests};
use crate::judge::outcome::OutcomeClass;
use crate::report::failure;
use crate::report::names::Names;
use crate::report::requests::{TriedPlaces, report};
use crate::report::sweep::what;
use unwindlab_engine::plan::Shard;

/// Tries the places and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub(super) fn places(
    args: &SweepArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let request = PlacesRequest {
        scenario: args.scenario.clone().unwrap_or_default(),
        kernel: args.kernel.choice(),
        kvm_host: args.kvm_host,
        only: args.functions.clone(),
        nmi: args.nmi,
        once: args.once,
        each: args.all,
        jobs: args.jobs,
        budget: args.budget.map(Duration::from_secs),
        part: args.resume.clone().map(|file| PartRequest {
            shard: args.shard.unwrap_or(Shard { number: 1, of: 1 }),
            file,
        }),
    };
    let summary = requests(&request, context, &mut |event| match event {
        PlacesEvent::Failed {
            place,
            result,
            kernel,
        } => {
            let user = result.trace.as_ref().map(|it| it.user_symbols.as_slice());
            let names = Names {
                kernel: kernel.symbols(),
                user: user.unwrap_or_default(),
            };
            let (outcome, block) = (result.outcome.name(), failure::block(result, names));
            spinner.print(&format!("{outcome}  {place}\n{block}"))
        }
        PlacesEvent::Swept(done) => spinner.print(&swept_line(done)),
        PlacesEvent::Replay(path) => spinner.print(&format!("  replay: {}\n", path.display())),
        PlacesEvent::Ended(summary) => {
            spinner.clear();
            spinner.print(&text(summary))
        }
    })?;
    Ok(class_code(summary.class()))
}

/// What came of the sweep behind a place.
fn swept_line(done: &PlaceSweep) -> String {
    let place = &done.place;
    let swept = match &done.swept {
        Ok(swept) => swept,
        Err(why) => return format!("not tested        {place}: {why}\n"),
    };
    let verdict = match done.class() {
        OutcomeClass::Bad => "FAIL",
        _ if !swept.failures.is_empty() => "expected-failure",
        OutcomeClass::Good => "pass",
        OutcomeClass::Untested => "incomplete",
    };
    let failures: Vec<String> = swept.failures.iter().map(what).collect();
    let (tried, failures) = (swept.tried, failures.join("; "));
    let broke_off =
        { done.broke_off.as_ref() }.map_or_else(String::new, |why| format!("  ({why})"));
    format!("{verdict:<16}  {place}: {tried} points  {failures}{broke_off}\n")
}

fn text(summary: &PlacesSummary) -> String {
    if let Some(sweeps) = &summary.sweeps {
        let points: usize = { sweeps.iter() }
            .filter_map(|it| it.swept.as_ref().ok())
            .map(|it| it.tried)
            .sum();
        let untested = sweeps.iter().filter(|it| it.swept.is_err()).count();
        return format!(
            "\n{} sweeps behind requests, {untested} not tested: {points} points in {:.0} s\non {}\n",
            sweeps.len(),
            summary.elapsed.as_secs_f64(),
            summary.release,
        );
    }
    let tried = TriedPlaces {
        verdicts: &summary.verdicts,
        found: summary.found,
        elapsed: summary.elapsed,
    };
    format!(
        "{}on {}, KVM host {}\n",
        report(&tried),
        summary.release,
        summary.kvm_host
    )
}
