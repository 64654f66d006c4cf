//! `unwindlab sweep`: one trial for every instruction boundary of a path.

mod plan;
mod under_way;

use std::fs;
use std::time::{Duration, Instant};

use unwindlab_guest_kernel::lines::NO_LINES;

use super::analysis::Analysis;
use super::args::SweepArgs;
use super::error::CommandError;
use super::kernel;
use super::output::print;
use super::progress::Spinner;
use super::replay;
use crate::host::provider::{Provider, ProviderError, TestKernel};
use crate::interrupt::Interrupt;
use crate::judge::sweep::SweepSymptom;
use crate::judge::sweep_record::{SweepIdentity, SweepRecord};
use crate::plan::Progress as _;
use crate::plan::sweep::Points;
use crate::plan::sweep::SweepPlan;
use crate::report::artifacts::OutputFile;
use crate::report::coverage::by_line;
use crate::report::listing::{self, Heading};
use crate::scenario::{Library, Loaded};

pub(super) use plan::{Choice, ChoosePoints, code_of, plan, points};
use under_way::{Resume, Run};

/// What came of a sweep.
pub(super) struct Swept {
    /// The distinct failures.
    pub(super) failures: Vec<SweepSymptom>,
    /// Points that were tried.
    pub(super) tried: usize,
    /// The kernel.
    pub(super) release: String,
}

/// Sweeps, reports, and writes a replay file for each distinct failure; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn sweep(
    args: &SweepArgs,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    let points = |kernel: &dyn TestKernel| plan::points(args, kernel.symbols());
    let mut listing = args.html.as_deref().map(OutputFile::create).transpose()?;
    let mut code = 0;
    run(
        args,
        &points,
        provider,
        analysis,
        interrupt,
        |run, loaded, host| {
            code = run.report(host)?;
            if let Some(file) = listing.take() {
                list(file, run, &loaded.scenario.name)?;
            }
            if let Some(verdicts) = &run.verdicts
                && args.points.is_empty()
            {
                let scenario = (loaded.scenario.name.as_str(), loaded.text.as_str());
                for path in replay::write(args, scenario, run.kernel, verdicts)? {
                    print(&format!("replay: {}\n", path.display()))?;
                }
            }
            Ok(())
        },
    )?;
    Ok(code)
}

/// Sweeps these points; nothing is printed but the failures.
pub(super) fn sweep_with(
    args: &SweepArgs,
    points: ChoosePoints<'_>,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<Swept, CommandError> {
    let mut swept = Swept {
        failures: Vec::new(),
        tried: 0,
        release: String::new(),
    };
    run(args, points, provider, analysis, interrupt, |run, _, _| {
        if let Some(reason) = &run.failed {
            return Err(ProviderError::Unavailable(reason.clone()).into());
        }
        swept.release = run.kernel.release().to_owned();
        if let Some(verdicts) = &run.verdicts {
            swept.failures = verdicts.failures.keys().cloned().collect();
            swept.tried = verdicts.tried.len();
        }
        Ok(())
    })?;
    Ok(swept)
}

fn run(
    args: &SweepArgs,
    points: ChoosePoints<'_>,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
    end: impl FnOnce(&Run<'_>, &Loaded, &str) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let request = kernel::request(&args.kernel)?;
    let loaded = one(args, analysis)?;
    let spinner = Spinner::new();
    let kernel = provider.fetch(&request, &spinner, interrupt)?;
    if args.html.is_some() && kernel.symbols().lines().is_none() {
        return Err(ProviderError::Unavailable(NO_LINES.to_owned()).into());
    }
    let mut plan = plan::plan(args, &loaded, kernel.as_ref(), points)?;
    let resume = resume(args, &loaded, kernel.as_ref(), &mut plan)?;
    let mut host = provider.executor(
        args.kvm_host,
        None,
        kernel.as_ref(),
        None,
        &spinner,
        interrupt,
    )?;
    let mut run = Run {
        analysis,
        kernel: kernel.as_ref(),
        spinner: &spinner,
        budget: args.budget.map(Duration::from_secs),
        begin: Instant::now(),
        verdicts: None,
        effort: None,
        failed: None,
        stopped: false,
        shows: !args.points.is_empty() || matches!(plan.points, Points::At { .. }),
        detail: args.detail,
        resume,
        kept: Instant::now(),
    };
    spinner.step(&format!("{}: recording the path", plan.trial.scenario));
    let swept = host.sweep(&plan, &mut |message| {
        run.take(message) && !interrupt.is_set()
    });
    spinner.clear();
    run.keep()?;
    if interrupt.is_set() {
        return Err(CommandError::Interrupted);
    }
    if let Err(error) = swept
        && !run.stopped
    {
        return Err(ProviderError::from(error).into());
    }
    end(&run, &loaded, &host.host())
}

/// Writes what was done with each line of the source.
fn list(file: OutputFile, run: &Run<'_>, scenario: &str) -> Result<(), CommandError> {
    if let (Some(verdicts), Some(lines)) = (&run.verdicts, run.kernel.symbols().lines()) {
        let (path, tried) = (verdicts.path(), &verdicts.numbers());
        let heading = Heading {
            scenario: scenario.to_owned(),
            release: run.kernel.release().to_owned(),
            points: (tried.len(), path.len()),
        };
        let files = by_line(path, tried, lines);
        let page = listing::html(&heading, &files, lines);
        file.finish(&page)?;
    }
    Ok(())
}

/// The file for a later sweep; what it has already need not be tried again.
fn resume(
    args: &SweepArgs,
    loaded: &Loaded,
    kernel: &dyn TestKernel,
    plan: &mut SweepPlan,
) -> Result<Option<Resume>, CommandError> {
    let Some(path) = args.resume.clone() else {
        return Ok(None);
    };
    let of = SweepIdentity {
        scenario: loaded.text.clone(),
        kernel: kernel.hash().to_owned(),
        asks: plan.asks,
        from: args.from.as_ref().map(ToString::to_string),
        pairs: args.pairs,
    };
    let wrong = |why: String| CommandError::Usage(format!("{}: {why}", path.display()));
    let kept = match fs::read_to_string(&path) {
        Ok(text) => Some(SweepRecord::parse(&text, &of).map_err(|error| wrong(error.to_string()))?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(wrong(error.to_string())),
    };
    if let Some(kept) = &kept {
        plan.done = kept.done();
    }
    // What cannot be written is told now, not at the end.
    drop(OutputFile::create(&path)?);
    Ok(Some(Resume { path, of, kept }))
}

/// The one scenario that is named.
fn one(args: &SweepArgs, analysis: &Analysis) -> Result<Loaded, CommandError> {
    let library = Library::open(
        std::slice::from_ref(&args.scenario),
        &analysis.invariant_ids(),
    )?;
    let mut scenarios = library.scenarios.into_iter();
    match (scenarios.next(), scenarios.next()) {
        (Some(loaded), None) => Ok(loaded),
        _ => Err(CommandError::Usage(
            "a sweep is of one scenario: name its file".to_owned(),
        )),
    }
}
