//! `unwindlab sweep`: one trial for every instruction boundary of a path.

use std::ops::Range;
use std::time::{Duration, Instant};

use unwindlab_guest_kernel::lines::NO_LINES;

use super::analysis::Analysis;
use super::args::SweepArgs;
use super::error::CommandError;
use super::kernel;
use super::lab::{Lab, LabError, TestKernel};
use super::output::print;
use super::progress::Spinner;
use super::replay;
use crate::report::artifacts::OutputFile;
use crate::report::failure;
use crate::report::listing::{self, Heading};
use crate::report::names::Names;
use crate::report::outcome::EXIT_UNTESTED;
use crate::report::sweep::{self as text, Summary};
use crate::runner::plan::{ActionPlan, ArrivalPlan, Place, TriggerPlan};
use crate::runner::{Interrupt, Progress as _, TrialPlan};
use crate::scenario::{KernelSymbols, Library, Loaded, ResolveError, near, resolve};
use crate::sweep::coverage::by_line;
use crate::sweep::plan::{Effort, Points};
use crate::sweep::verdicts::{Symptom, Verdicts};
use crate::sweep::{Message, SweepPlan};

/// Longest path, in instructions; the exit work of an entry with a long stack has some ten thousand.
const LONGEST: u32 = 200_000;
/// A trial takes milliseconds; on a machine with other work ten times as many.
const LIMIT_MS: u64 = 5_000;

/// What came of a sweep.
pub(super) struct Swept {
    /// The distinct failures.
    pub(super) failures: Vec<Symptom>,
    /// Points that were tried.
    pub(super) tried: usize,
    /// The kernel.
    pub(super) release: String,
}

/// Which points of a path to try, for a kernel.
pub(super) type ChoosePoints<'a> = &'a dyn Fn(&dyn TestKernel) -> Result<Points, CommandError>;

/// Sweeps, reports, and writes a replay file for each distinct failure; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn sweep(
    args: &SweepArgs,
    lab: &dyn Lab,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    let points = |kernel: &dyn TestKernel| points(args, kernel.symbols());
    let mut listing = args.html.as_deref().map(OutputFile::create).transpose()?;
    let mut code = 0;
    run(
        args,
        &points,
        lab,
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
    lab: &dyn Lab,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<Swept, CommandError> {
    let mut swept = Swept {
        failures: Vec::new(),
        tried: 0,
        release: String::new(),
    };
    run(args, points, lab, analysis, interrupt, |run, _, _| {
        if let Some(reason) = &run.failed {
            return Err(LabError::Unavailable(reason.clone()).into());
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
    lab: &dyn Lab,
    analysis: &Analysis,
    interrupt: &Interrupt,
    end: impl FnOnce(&Run<'_>, &Loaded, &str) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let request = kernel::request(&args.kernel)?;
    let loaded = one(args, analysis)?;
    let spinner = Spinner::new();
    let kernel = lab.fetch(&request, &spinner, interrupt)?;
    if args.html.is_some() && kernel.symbols().lines().is_none() {
        return Err(LabError::Unavailable(NO_LINES.to_owned()).into());
    }
    let plan = plan(args, &loaded, kernel.as_ref(), points)?;
    let mut host = lab.executor(args.kvm_host, kernel.as_ref(), None, &spinner, interrupt)?;
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
    };
    spinner.step(&format!("{}: recording the path", plan.trial.scenario));
    let swept = host.sweep(&plan, &mut |message| {
        run.take(message) && !interrupt.is_set()
    });
    spinner.clear();
    if interrupt.is_set() {
        return Err(CommandError::Interrupted);
    }
    if let Err(error) = swept
        && !run.stopped
    {
        return Err(LabError::Unavailable(error.reason).into());
    }
    end(&run, &loaded, &host.host())
}

/// Writes what was done with each line of the source.
fn list(file: OutputFile, run: &Run<'_>, scenario: &str) -> Result<(), CommandError> {
    if let (Some(verdicts), Some(lines)) = (&run.verdicts, run.kernel.symbols().lines()) {
        let (path, tried) = (verdicts.path(), &verdicts.tried);
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

fn plan(
    args: &SweepArgs,
    loaded: &Loaded,
    kernel: &dyn TestKernel,
    points: ChoosePoints<'_>,
) -> Result<SweepPlan, CommandError> {
    let resolved = resolve(
        &loaded.file,
        &loaded.scenario,
        kernel.symbols(),
        kernel.hash(),
    );
    let trial = resolved.map_err(|error| match error {
        ResolveError::Unsupported(reason) => LabError::Unavailable(reason).into(),
        ResolveError::Scenario(errors) => CommandError::Scenario(errors),
    })?;
    if trial.guest.lab.is_some() {
        return Err(CommandError::Usage(format!(
            "{}: a sweep takes scenarios without `lab`, whose log it does not read",
            loaded.file
        )));
    }
    let request = request(&trial).ok_or_else(|| {
        CommandError::Usage(format!(
            "{}: a sweep begins at an NMI at an instruction of the kernel, and the scenario has \
             none",
            loaded.file
        ))
    })?;
    Ok(SweepPlan {
        request,
        asks: !args.no_request,
        jobs: args.jobs,
        points: points(kernel)?,
        longest: LONGEST,
        limit_ms: LIMIT_MS,
        check_restores: args.check_restores,
        trial,
    })
}

/// The first injection that a path can begin with.
fn request(trial: &TrialPlan) -> Option<u32> {
    (0_u32..)
        .zip(&trial.injections)
        .find(|(_, injection)| {
            let in_kernel = |at: &ArrivalPlan| matches!(at.place, Place::Kernel { .. });
            matches!(injection.action, ActionPlan::Nmi)
                && matches!(&injection.trigger, TriggerPlan::Arrival(at) if in_kernel(at))
        })
        .map(|(index, _)| index)
}

fn points(args: &SweepArgs, symbols: &dyn KernelSymbols) -> Result<Points, CommandError> {
    if !args.points.is_empty() {
        return Ok(Points::These(args.points.clone()));
    }
    let mut ranges = Vec::new();
    for name in &args.functions {
        ranges.extend(code_of(name, symbols)?);
    }
    Ok(Points::In {
        functions: (!args.functions.is_empty()).then_some(ranges),
        once: args.once,
    })
}

/// Where the functions of this name lie.
pub(super) fn code_of(
    name: &str,
    symbols: &dyn KernelSymbols,
) -> Result<Vec<Range<u64>>, CommandError> {
    let size = symbols.size(name).unwrap_or(0);
    let starts = symbols.addresses(name);
    if starts.is_empty() {
        let near = near(name, symbols);
        return Err(CommandError::Usage(format!(
            "the kernel has no function `{name}`{near}"
        )));
    }
    let code = |start: u64| start..start.saturating_add(size);
    Ok(starts.into_iter().map(code).collect())
}

/// A sweep that is under way.
struct Run<'a> {
    analysis: &'a Analysis,
    kernel: &'a dyn TestKernel,
    spinner: &'a Spinner,
    budget: Option<Duration>,
    begin: Instant,
    verdicts: Option<Verdicts<'a>>,
    effort: Option<Effort>,
    failed: Option<String>,
    /// The budget is used up.
    stopped: bool,
    /// Whether failures are shown with the events around them.
    shows: bool,
}

impl Run<'_> {
    /// Takes a message; whether more is wanted.
    fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Path { common, path } => {
                self.verdicts = Some(Verdicts::new(
                    self.analysis.invariants,
                    self.analysis.findings.as_ref(),
                    self.kernel.symbols(),
                    *common,
                    path,
                ));
                self.begin = Instant::now();
            }
            Message::Trial(trial) => {
                if let Some(verdicts) = &mut self.verdicts
                    && let Some(result) = verdicts.judge(&trial)
                    && self.shows
                {
                    let names = Names {
                        kernel: self.kernel.symbols(),
                        user: &verdicts.common().user_symbols,
                    };
                    let text = failure::block(&result, names);
                    // Standard output that is gone ends the command at its summary.
                    let _ = self.spinner.suspend(|| print(&text));
                }
                self.tell();
                self.stopped = self
                    .budget
                    .is_some_and(|budget| self.begin.elapsed() > budget);
            }
            Message::Missed { point } => {
                if let Some(verdicts) = &mut self.verdicts {
                    verdicts.missed.push(point);
                }
            }
            Message::Again { point, end } => {
                if let Some(verdicts) = &mut self.verdicts {
                    verdicts.again(point, end);
                }
            }
            Message::Done(effort) => self.effort = Some(effort),
            Message::Failed { reason } => self.failed = Some(reason),
        }
        !self.stopped
    }

    /// Every now and then.
    fn tell(&self) {
        let Some(verdicts) = &self.verdicts else {
            return;
        };
        let tried = verdicts.tried.len();
        if tried.is_multiple_of(50) {
            let rate = tried as f64 / self.begin.elapsed().as_secs_f64().max(0.001);
            let left = verdicts.path().len().saturating_sub(tried) as f64 / rate.max(0.001);
            self.spinner.step(&format!(
                "{tried} of {} points, {} failures, {rate:.0} a second, {left:.0} s left",
                verdicts.path().len(),
                verdicts.failures.len(),
            ));
        }
    }

    fn report(&self, host: &str) -> Result<u8, CommandError> {
        let Some(verdicts) = &self.verdicts else {
            let reason = self.failed.clone();
            let reason = reason.unwrap_or_else(|| "no path".to_owned());
            return Err(LabError::Unavailable(reason).into());
        };
        let names = Names {
            kernel: self.kernel.symbols(),
            user: &verdicts.common().user_symbols,
        };
        let summary = Summary {
            verdicts,
            effort: self.effort.as_ref(),
            elapsed: self.begin.elapsed(),
            cut: self.stopped,
        };
        print(&text::report(&summary, names))?;
        print(&format!("on {}, KVM host {host}\n", self.kernel.release()))?;
        if let Some(reason) = &self.failed {
            return Err(LabError::Unavailable(format!("the sweep broke off: {reason}")).into());
        }
        let unknown = verdicts.failures.keys().any(|symptom| !symptom.is_known());
        let untested = verdicts.tried.is_empty()
            || !verdicts.missed.is_empty()
            || !verdicts.unsteady.is_empty();
        Ok(match (unknown, untested) {
            (true, _) => 1,
            (false, true) => EXIT_UNTESTED,
            (false, false) => 0,
        })
    }
}
