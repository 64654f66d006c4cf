//! `unwindlab run`.

use clap::Args;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use unwindlab_engine::plan::{Shard, Token};

use super::accept::Accepting;
use super::args::{KernelOptions, WitnessOptions};
use super::error::{CommandError, show};
use super::outputs::{Outputs, Wanted};
use super::progress::Spinner;
use super::values;
use crate::campaign::Context;
use crate::campaign::part::PartRequest;
use crate::campaign::run::{self, FailedFast, RunEvent, RunRequest, RunSummary, TrialOptions};
use crate::host::choice::KvmHost;
use crate::host::provider::TestKernel;
use crate::judge::ScenarioResult;
use crate::judge::flaky::{FlakyIs, exit_code_of};
use crate::judge::outcome::{EXIT_INTERRUPTED, EXIT_UNTESTED, OutcomeClass};
use crate::report::artifacts::Artifacts;
use crate::report::github::Commands;
use crate::report::kcidb::Submission;
use crate::report::names::Names;
use crate::report::tap::{self, Format};
use crate::report::{failure, known, table};
use unwindlab_scenario::Loaded;

/// `unwindlab run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Scenario files, folders of scenario files, or names from the library, also with `*`, `?` and
    /// `[..]`. A name that ./scenarios has not is one of the built-in library [default: everything in ./scenarios,
    /// or else in the built-in library].
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// The kernel under test.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
    /// Count time in executed instructions, so that the same seed always gives the same trace,
    /// timestamps included. Needs an emulated KVM host, and is slower.
    #[arg(long, help_heading = "Trials")]
    pub deterministic: bool,
    /// Seed that selects the interleaving.
    #[arg(
        long,
        value_name = "N",
        requires = "deterministic",
        help_heading = "Trials",
        default_value_t = 0
    )]
    pub seed: u64,
    /// Run only scenarios whose name contains TEXT; repeatable.
    #[arg(long, value_name = "TEXT", help_heading = None)]
    pub filter: Vec<String>,
    /// Run each scenario N times from one boot and report the first trial that does not pass.
    /// Overrides the number of trials of a scenario with `explore`.
    #[arg(
        long,
        value_name = "N",
        help_heading = "Trials",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub trials: Option<u32>,
    /// Repeat one trial of a scenario with `explore`; its report shows the token.
    #[arg(
        long,
        value_name = "SEED:TRIAL",
        conflicts_with = "trials",
        help_heading = "Trials"
    )]
    pub token: Option<Token>,
    /// Whether returns to user mode are noted.
    #[command(flatten)]
    pub witness: WitnessOptions,
    /// Run a scenario that does not pass up to N times more. One that passes then is `flaky`.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=100),
        conflicts_with_all = ["deterministic", "token"],
        help_heading = "Failures"
    )]
    pub retries: u32,
    /// How many scenarios are run at a time, each on a KVM host of its own. Without it, as many as the machine has CPUs
    /// and memory for.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u8).range(1..=16),
        help_heading = "Trials"
    )]
    pub jobs: Option<u8>,
    /// What a flaky scenario counts as for the exit code.
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "WHAT",
        help_heading = "Failures"
    )]
    pub flaky_is: FlakyIs,
    /// End the run with the first scenario that fails.
    #[arg(long, help_heading = "Failures")]
    pub fail_fast: bool,
    /// Multiply the time limits of boots and scenarios, for a slow machine: 1 to 100.
    #[arg(
        long,
        value_name = "FACTOR",
        value_parser = values::factor,
        help_heading = "Failures"
    )]
    pub timeout_factor: Option<f64>,
    /// How results are printed: as text, or for a test harness.
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        help_heading = "Results"
    )]
    pub format: Format,
    /// Write the results as JSON Lines, with the complete traces; with --shard without them, and what stands in the file is not run again.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub json: Option<PathBuf>,
    /// Run only part I of N parts of the scenarios, and of the trials of those that have several. All N parts, on any machines, make
    /// the trials that the run without this makes; `unwindlab merge` makes one report of their --json files.
    #[arg(
        long,
        value_name = "I/N",
        requires = "json",
        conflicts_with_all = ["token", "fail_fast", "format", "junit", "html", "kcidb"],
        help_heading = "Trials"
    )]
    pub shard: Option<Shard>,
    /// Write the results as JUnit XML.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub junit: Option<PathBuf>,
    /// Write a report for a browser: one HTML file that needs no other and no network.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub html: Option<PathBuf>,
    /// Write the results as KCIDB's JSON, schema 5.3, to be submitted to a database of kernel tests.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub kcidb: Option<PathBuf>,
    /// The name of the CI system in KCIDB's JSON.
    #[arg(
        long,
        value_name = "NAME",
        requires = "kcidb",
        default_value = "unwindlab",
        help_heading = "Results"
    )]
    pub kcidb_origin: String,
    /// The ID of the build in KCIDB that was tested, ORIGIN:NAME [default: the file has a build of its own].
    #[arg(long, value_name = "ID", requires = "kcidb", help_heading = "Results")]
    pub kcidb_build: Option<String>,
    /// Keep the logs of every guest in this folder [default: keep the logs of guests that did not
    /// pass in ./unwindlab-out].
    #[arg(long, value_name = "FOLDER", help_heading = "Results")]
    pub artifacts: Option<PathBuf>,
    /// Write what each trial recorded as a perf.data into this folder, for perf script and perf report.
    #[arg(long, value_name = "FOLDER", help_heading = "Results")]
    pub perf_data: Option<PathBuf>,
    /// Write each trial as Chrome's trace events into this folder, for chrome://tracing and the Perfetto UI.
    #[arg(long, value_name = "FOLDER", help_heading = "Results")]
    pub trace_json: Option<PathBuf>,
    /// Do not compare traces with the snapshots.
    #[arg(long, help_heading = "Results")]
    pub no_snapshots: bool,
    /// Compare no trace with a snapshot, but write the snapshot of each scenario that passes, to where it is looked for.
    #[arg(
        long,
        conflicts_with_all = ["no_snapshots", "shard", "token"],
        help_heading = "Results"
    )]
    pub accept_snapshots: bool,
}

/// Runs scenarios and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing was run.
pub fn run(args: RunArgs, context: Context<'_>, spinner: &Spinner) -> Result<u8, CommandError> {
    let request = request(&args)?;
    let submission = Submission::new(args.kcidb_origin, args.kcidb_build);
    let mut outputs = Outputs::open(Wanted {
        // The run itself writes the file of a part.
        json: args.json.filter(|_| request.part.is_none()),
        junit: args.junit,
        html: args.html,
        kcidb: args.kcidb,
        submission: submission.map_err(|error| CommandError::Usage(error.to_string()))?,
        flaky_is: args.flaky_is,
    })?;
    let mut printer = RunPrinter::new(spinner, args.format, args.flaky_is, false);
    let mut accepting = args.accept_snapshots.then(Accepting::default);
    let summary = run::run(&request, context, &mut |event| {
        outputs.take(event);
        printer.take(event)?;
        let accepted = accepting.as_mut().and_then(|it| it.take(event));
        accepted.map_or(Ok(()), |line| printer.remark(&line))
    })?;
    let mut unwritten = outputs.write(&summary);
    let unaccepted = accepting.map(|it| it.unwritten).unwrap_or_default();
    unwritten.extend(unaccepted.into_iter().map(CommandError::from));
    for error in &unwritten {
        show(error);
    }
    for error in &summary.unkept {
        show(error);
    }
    let all_kept = unwritten.is_empty() && summary.unkept.is_empty();
    Ok(match exit_code_of(&summary.results, args.flaky_is) {
        _ if context.interrupt.is_set() => EXIT_INTERRUPTED,
        0 if !all_kept => EXIT_UNTESTED,
        code => code,
    })
}

fn request(args: &RunArgs) -> Result<RunRequest, CommandError> {
    let without = match args.kvm_host {
        _ if !args.deterministic => None,
        KvmHost::Auto | KvmHost::Emulated => None,
        KvmHost::Native => Some("a native one has its own time"),
        KvmHost::EmulatedIntel => Some("the one with an Intel CPU has no such mode yet"),
    };
    if let Some(why) = without {
        let needs = format!("--deterministic needs the emulated KVM host: {why}");
        return Err(CommandError::Usage(needs));
    }
    Ok(RunRequest {
        scenarios: args.scenarios.clone(),
        filter: args.filter.clone(),
        kernel: args.kernel.choice(),
        trials: TrialOptions {
            kvm_host: args.kvm_host,
            seed: args.deterministic.then_some(args.seed),
            trials: args.trials,
            token: args.token,
            compare_snapshots: !args.no_snapshots && !args.accept_snapshots,
            witness: args.witness.choice(),
            retries: args.retries,
            flaky_is: args.flaky_is,
            fail_fast: args.fail_fast,
            jobs: match (args.jobs, args.deterministic) {
                (Some(jobs), _) => jobs.into(),
                (None, true) => 1,
                (None, false) => run::jobs_of_this_machine(),
            },
            timeout_factor: args.timeout_factor,
        },
        artifacts: Some(Artifacts::open(args.artifacts.as_deref())?),
        perf_data: args.perf_data.clone(),
        trace_json: args.trace_json.clone(),
        part: { args.shard.zip(args.json.clone()) }
            .map(|(shard, file)| PartRequest { shard, file }),
    })
}

/// Prints a run while it happens.
pub(super) struct RunPrinter<'a> {
    spinner: &'a Spinner,
    format: Format,
    flaky_is: FlakyIs,
    /// Commands of GitHub Actions.
    commands: Commands,
    /// Files of scenarios that the user named, by the scenario's name.
    files: BTreeMap<String, String>,
    /// Whether every event of a failing trial is printed.
    all_events: bool,
    /// Of the longest name.
    width: usize,
    /// How many results were printed.
    printed: usize,
}

impl<'a> RunPrinter<'a> {
    pub(super) fn new(
        spinner: &'a Spinner,
        format: Format,
        flaky_is: FlakyIs,
        all_events: bool,
    ) -> Self {
        Self {
            spinner,
            format,
            flaky_is,
            commands: Commands::new(),
            files: BTreeMap::new(),
            all_events,
            width: 0,
            printed: 0,
        }
    }

    pub(super) fn take(&mut self, event: RunEvent<'_>) -> io::Result<()> {
        match event {
            RunEvent::Started { scenarios } => {
                let widths = scenarios.iter().map(|it| it.scenario.name.len());
                self.width = widths.max().unwrap_or(0);
                self.files = files(scenarios);
                self.spinner.print(&match self.format {
                    Format::Text => return Ok(()),
                    Format::Github => self.commands.off(),
                    format => tap::header(format, scenarios.len()),
                })
            }
            // They may be very many.
            RunEvent::Finished {
                result,
                trial: Some(_),
                ..
            } if result.class() == OutcomeClass::Good => Ok(()),
            RunEvent::Finished { result, kernel, .. } => {
                self.printed += 1;
                let details = self.details(result, kernel);
                let row = || format!("{}\n{details}", table::row(result, self.width));
                let (flaky_is, number) = (self.flaky_is, self.printed);
                self.spinner.print(&match self.format {
                    Format::Text => row(),
                    Format::Github => {
                        let file = self.files.get(&result.name).map(String::as_str);
                        row() + &self.commands.annotation(result, file, flaky_is)
                    }
                    format => tap::result(format, number, result, flaky_is, &details),
                })
            }
            RunEvent::Ended(summary) => {
                self.spinner.clear();
                self.spinner.print(&self.end(summary))
            }
        }
    }

    /// Prints a line that is no result.
    fn remark(&self, line: &str) -> io::Result<()> {
        let comment = self.comment();
        self.spinner.print(&format!("{comment}{line}\n"))
    }

    /// What a line begins with that is no result.
    fn comment(&self) -> &'static str {
        if self.format.is_text() { "" } else { "# " }
    }

    /// The last lines.
    fn end(&self, summary: &RunSummary) -> String {
        let mut text = String::new();
        let comment = self.comment();
        if let Some(FailedFast { name, not_run }) = &summary.failed_fast {
            let reason = format!("--fail-fast: {name} failed, {not_run} scenarios were not run");
            text.push_str(&match self.format.is_text() {
                true => format!("{reason}\n"),
                false => tap::bail_out(self.format, &reason),
            });
        }
        if self.format.is_text() {
            text.push_str(&table::failures(&summary.results));
        }
        let last = match summary.empty_part {
            // No KVM host was started for it.
            Some(part) => format!("no scenario belongs to part {part}"),
            None => format!(
                "{} on {}, KVM host {}",
                table::summary(&summary.results, summary.elapsed),
                summary.setting.kernel_release,
                summary.setting.kvm_host
            ),
        };
        text.push_str(&format!("{comment}{last}\n"));
        if self.format == Format::Github {
            text.push_str(&self.commands.on());
        }
        text
    }

    fn details(&self, result: &ScenarioResult, kernel: &dyn TestKernel) -> String {
        let mut text = known::line(result);
        if let Some(hash) = &result.trace_sha256 {
            text.push_str(&format!("  trace sha256 {hash}\n"));
        }
        if result.went_wrong() {
            let names = Names::of(kernel.symbols(), result.trace.as_ref());
            text.push_str(&failure::block(result, names));
            if let (true, Some(trace)) = (self.all_events, &result.trace) {
                text.push_str(&failure::all_events(trace, names));
            }
        }
        text
    }
}

/// The files of scenarios that are files below the current folder.
fn files(scenarios: &[Loaded]) -> BTreeMap<String, String> {
    let are_files = scenarios.iter().filter(|it| {
        let file = Path::new(&it.file);
        file.is_relative() && file.is_file()
    });
    let named = are_files.map(|it| (it.scenario.name.to_string(), it.file.clone()));
    named.collect()
}
