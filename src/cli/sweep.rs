//! `unwindlab sweep`.

use crate::host::choice::KvmHost;
use clap::Args;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::args::{Detail, KernelOptions, WitnessOptions};
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::sweep::{
    self, PairChoice, PathOrigin, PathPlace, PathRequest, PointChoice, PointNumber, SetEvent,
    SetRequest, SetResult, SetSweep, SweepEvent, SweepOptions, SweepRequest, SweptFailure,
    SweptPath,
};
use crate::judge::sweep::SweepSymptom;
use crate::report::html::sweep::{SweepHeading, SweepReport};
use crate::report::names::Names;
use crate::report::output_file::OutputFile;
use crate::report::sweep::{report, what};
use crate::report::{failure, instructions};
use unwindlab_engine::plan::Shard;
use unwindlab_engine::text::printable;

/// `unwindlab sweep`.
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// The scenario: a file, or a name from the library. The path begins at the scenario's first
    /// NMI at an instruction, which is the request, or its first interrupt in user mode. Without
    /// one, a set of sweeps is tried that covers the ways into the kernel and out of it.
    #[arg(value_name = "SCENARIO", required_if_eq("requests", "true"))]
    pub scenario: Option<PathBuf>,
    /// The kernel under test.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Begin at the same instruction, but without a request: sweep a kernel entry in which nothing
    /// has requested a stack yet.
    #[arg(long, requires = "scenario", help_heading = "Path")]
    pub no_request: bool,
    /// Begin the path elsewhere, without a request: after a kernel instruction (`symbol+offset` or
    /// `file:line`), or at the last user instruction before an iteration of the workload enters the
    /// kernel (`user`; `user:N` for its N-th entry). `handler`: at the request, at the first
    /// instruction of its NMI's handler.
    #[arg(
        long,
        value_name = "PLACE",
        requires = "scenario",
        help_heading = "Path"
    )]
    pub from: Option<PathPlace>,
    /// Instead of NMIs, try who asks: one trial for each function (its entry, and its return) and
    /// each tracepoint that the workload passes, in which a tracer sits there and requests a stack
    /// each time. Each alone, and beside the scenario's own events and clients.
    #[arg(
        long,
        conflicts_with_all = [
            "no_request", "from", "pairs", "points", "check_restores", "html", "witness",
            "no_witness"
        ],
        help_heading = "Points"
    )]
    pub requests: bool,
    /// With --requests, sweep the path behind each function's entry with NMIs, after a request
    /// there. The time of --budget is shared among the functions.
    #[arg(
        long,
        requires = "requests",
        conflicts_with_all = ["resume", "shard"],
        required_if_eq_all = [("requests", "true"), ("once", "true")],
        help_heading = "Points"
    )]
    pub nmi: bool,
    /// Inject two NMIs in each trial: the second at every instruction that follows the first. First
    /// NMIs that leave the machine in the same state are tried once for all.
    #[arg(long, requires = "scenario", help_heading = "Points")]
    pub pairs: bool,
    /// Try every instruction, also before one that reads and writes registers only: an NMI there does
    /// what one behind it does. With --pairs, every pair, even where two first NMIs leave the machine
    /// in the same state.
    #[arg(long, help_heading = "Points")]
    pub all: bool,
    /// Try each instruction only the first time that the path executes it.
    #[arg(long = "static", help_heading = "Points")]
    pub once: bool,
    /// Whether returns to user mode are noted.
    #[command(flatten)]
    pub witness: WitnessOptions,
    /// With several vCPUs, let the others run on the way to a point, where they stand still without
    /// this.
    #[arg(
        long,
        requires = "scenario",
        conflicts_with_all = ["requests", "resume", "witness"],
        help_heading = "Points"
    )]
    pub free: bool,
    /// Inject only in this kernel function (with --pairs, both NMIs); with --requests, ask only there
    /// or at this tracepoint; repeatable.
    #[arg(
        long = "function",
        value_name = "NAME",
        requires = "scenario",
        help_heading = "Points"
    )]
    pub functions: Vec<String>,
    /// Try only point N of the path and show the events around a failure; repeatable. With --pairs,
    /// N is the first NMI's point, and N:M one pair.
    #[arg(
        long = "point",
        value_name = "N[:M]",
        requires = "scenario",
        conflicts_with = "functions",
        help_heading = "Points"
    )]
    pub points: Vec<PointNumber>,
    /// What else to show of a failure at a --point.
    #[command(flatten)]
    pub detail: Detail,
    /// Stop after this many seconds of trials. Points that are left count as not tested.
    #[arg(long, value_name = "SECONDS", help_heading = None)]
    pub budget: Option<u64>,
    /// Record progress in this file. If it exists, continue the sweep that it records.
    #[arg(
        long,
        value_name = "FILE",
        requires = "scenario",
        help_heading = "Results"
    )]
    pub resume: Option<PathBuf>,
    /// Try only part I of N parts of the points (of pairs: of the first NMIs; with --requests: of the places). All N parts, on any machines, try what
    /// the sweep tries without this; `unwindlab merge` makes one report of their --resume files.
    #[arg(
        long,
        value_name = "I/N",
        requires = "resume",
        conflicts_with = "points",
        help_heading = "Points"
    )]
    pub shard: Option<Shard>,
    /// Number of machines to run in parallel.
    #[arg(
        long,
        value_name = "N",
        help_heading = None,
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=8)
    )]
    pub jobs: u32,
    /// Compare the whole machine with its checkpoint after every restore. Slow.
    #[arg(long, help_heading = None)]
    pub check_restores: bool,
    /// Write a report for a browser, one HTML file: a heat map over the path and its instructions, and
    /// over the source of a kernel with debug information (`--config dwarf`).
    #[arg(
        long,
        value_name = "FILE",
        requires = "scenario",
        help_heading = "Results"
    )]
    pub html: Option<PathBuf>,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
}

impl SweepArgs {
    /// What is asked for and would have no effect.
    pub(super) fn no_effect(&self) -> Option<&'static str> {
        if self.points.is_empty() && (self.detail.trace || self.detail.instructions.is_some()) {
            return Some(
                "--trace and --instructions have no effect without --point: they show the trials that it names",
            );
        }
        match self.all && !self.pairs {
            true if !self.points.is_empty() => {
                Some("--all has no effect beside --point: each point that is named is tried")
            }
            true if self.requests && !self.nmi => {
                Some("--all has no effect with --requests, unless with --nmi: every place is tried")
            }
            _ => None,
        }
    }
}

/// Sweeps and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn sweep(
    args: &SweepArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    if let Some(message) = args.no_effect() {
        return Err(CommandError::Usage(message.to_owned()));
    }
    if args.requests {
        return super::requests::places(args, context, spinner);
    }
    let Some(scenario) = &args.scenario else {
        return set(args, context, spinner);
    };
    let file = args.html.as_deref().map(OutputFile::create).transpose()?;
    let mut shown = SweepReport::default();
    let mut page = None;
    let summary = sweep::sweep(
        &request(args, scenario),
        context,
        &mut |event| match event {
            SweepEvent::Failed(failure) => spinner.print(&failure_text(&failure, args.detail)),
            SweepEvent::New(failed) => {
                if file.is_some() {
                    let names = Names::of(failed.kernel.symbols(), failed.result.trace.as_ref());
                    shown.first(failed.point, failed.result, names);
                }
                Ok(())
            }
            SweepEvent::Ended(swept) => {
                page = file.is_some().then(|| html(&shown, swept));
                spinner.clear();
                spinner.print(&text(swept))
            }
            SweepEvent::Replay(path) => spinner.print(&format!("replay: {}\n", path.display())),
        },
    )?;
    if let (Some(file), Some(page)) = (file, page) {
        file.finish(page?)?;
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
        each: args.all,
        witness: args.witness.choice(),
    };
    let (mut tried, mut elapsed) = (0, Duration::ZERO);
    let mut verdicts = BTreeMap::<&str, u32>::new();
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
            *verdicts.entry(result.verdict()).or_default() += 1;
            spinner.clear();
            spinner.print(&row(one, result))
        }
    });
    if !verdicts.is_empty() {
        let verdicts = verdicts
            .iter()
            .map(|(verdict, count)| format!("{count} {verdict}"));
        spinner.print(&format!(
            "{}; {tried} points tried in {:.0} s\n",
            verdicts.collect::<Vec<_>>().join(", "),
            elapsed.as_secs_f64()
        ))?;
    }
    Ok(class_code(class?))
}

/// One line of the set: verdict, what and how, points, trials a second; then what findings say, and why points were not
/// tried.
fn row(one: &SetSweep, result: &SetResult) -> String {
    let rate = result.tried as f64 / result.elapsed.as_secs_f64().max(0.001);
    let mut row = format!(
        "{:<16}  {:<45} {:>6} of {:>6} points  {rate:>4.0} a second  sweep {}\n",
        result.verdict(),
        one.kind,
        result.tried,
        result.chosen,
        one.text,
    );
    for (symptom, points) in &result.findings {
        let _ = writeln!(row, "  {} at {points} of the points", what(symptom));
    }
    if let Some(why) = &result.why_not {
        let _ = writeln!(row, "  {}", printable(why));
    }
    row
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
            each: args.all,
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
            shard: args.shard,
            others_run: args.free,
            witness: args.witness.choice(),
            check_restores: args.check_restores,
            // A single point is there to be looked at.
            choice: None,
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

/// Names for the addresses of a path.
fn names<'a>(swept: &'a SweptPath<'_>) -> Names<'a> {
    Names {
        kernel: swept.kernel.symbols(),
        user: &swept.summary.verdicts.common().user_symbols,
    }
}

/// The report for a browser.
fn html(shown: &SweepReport, swept: &SweptPath<'_>) -> Result<String, serde_json::Error> {
    let heading = SweepHeading {
        scenario: printable(swept.scenario),
        kernel_spec: printable(&swept.kernel_spec),
        kernel_release: printable(swept.kernel.release()),
        kvm_host: printable(&swept.kvm_host),
    };
    shown.html(&heading, &swept.summary, names(swept))
}

fn text(swept: &SweptPath<'_>) -> String {
    format!(
        "{}on {}, KVM host {}\n",
        report(&swept.summary, names(swept)),
        swept.kernel.release(),
        swept.kvm_host
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::outcome::OutcomeClass;

    #[test]
    fn a_row_with_findings_is_no_pass() {
        let one = &sweep::sweeps().unwrap()[0];
        let clean = SetResult {
            chosen: 1752,
            tried: 1752,
            elapsed: Duration::from_secs(4),
            class: Some(OutcomeClass::Good),
            ..SetResult::default()
        };
        assert!(row(one, &clean).starts_with("pass  "));
        let symptom = SweepSymptom {
            died: None,
            fell: [("C4".to_owned(), Some("F001".to_owned()))].into(),
        };
        let met = SetResult {
            findings: vec![(symptom, 2)],
            ..clean
        };
        let expected = "expected-failure  system call, a request made                     1752 of   1752 points   438 a second  sweep nmi-in-syscall\n  \
            C4 (F001) at 2 of the points\n";
        assert_eq!(row(one, &met), expected);
    }
}
