//! `unwindlab run`.

use std::io;
use std::path::PathBuf;

use super::args::RunArgs;
use super::error::{CommandError, show};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::run::{self, RunEvent, RunRequest, RunSummary, TrialOptions};
use crate::host::choice::KvmHost;
use crate::host::provider::TestKernel;
use crate::judge::outcome::{EXIT_INTERRUPTED, EXIT_UNTESTED, OutcomeClass};
use crate::judge::{Outcome, ScenarioResult, exit_code};
use crate::report::artifacts::{Artifacts, OutputFile};
use crate::report::names::Names;
use crate::report::{failure, json, junit, known, table};

/// Runs scenarios and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing was run.
pub fn run(args: RunArgs, context: Context<'_>, spinner: &Spinner) -> Result<u8, CommandError> {
    let request = request(&args)?;
    let outputs = Outputs::open(args.json, args.junit)?;
    let mut printer = RunPrinter::new(spinner, false);
    let summary = run::run(&request, context, &mut |event| printer.take(event))?;
    let unwritten = outputs.write(&summary);
    for error in &unwritten {
        show(error);
    }
    for error in &summary.unkept {
        show(error);
    }
    let all_kept = unwritten.is_empty() && summary.unkept.is_empty();
    let outcomes = summary.results.iter().map(|result| result.outcome);
    Ok(match exit_code(outcomes) {
        _ if context.interrupt.is_set() => EXIT_INTERRUPTED,
        0 if !all_kept => EXIT_UNTESTED,
        code => code,
    })
}

fn request(args: &RunArgs) -> Result<RunRequest, CommandError> {
    if args.deterministic && args.kvm_host == KvmHost::Native {
        return Err(CommandError::Usage(
            "--deterministic needs the emulated KVM host: a native one has its own time".to_owned(),
        ));
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
            compare_snapshots: !args.no_snapshots,
            witness: args.witness.choice(),
        },
        artifacts: Some(Artifacts::open(args.artifacts.as_deref())?),
    })
}

/// Prints a run while it happens.
pub(super) struct RunPrinter<'a> {
    spinner: &'a Spinner,
    /// Whether every event of a failing trial is printed.
    all_events: bool,
    /// Of the longest name.
    width: usize,
}

impl<'a> RunPrinter<'a> {
    pub(super) fn new(spinner: &'a Spinner, all_events: bool) -> Self {
        Self {
            spinner,
            all_events,
            width: 0,
        }
    }

    pub(super) fn take(&mut self, event: RunEvent<'_>) -> io::Result<()> {
        match event {
            RunEvent::Started { scenarios } => {
                let widths = scenarios.iter().map(|it| it.scenario.name.len());
                self.width = widths.max().unwrap_or(0);
                Ok(())
            }
            RunEvent::Finished { result, kernel } => self.spinner.print(&self.text(result, kernel)),
            RunEvent::Ended(summary) => {
                self.spinner.clear();
                self.spinner.print(&format!(
                    "{} on {}, KVM host {}\n",
                    table::summary(&summary.results, summary.elapsed),
                    summary.setting.kernel_release,
                    summary.setting.kvm_host
                ))
            }
        }
    }

    fn text(&self, result: &ScenarioResult, kernel: &dyn TestKernel) -> String {
        let mut text = table::row(result, self.width);
        text.push('\n');
        text.push_str(&known::line(result));
        if let Some(hash) = &result.trace_sha256 {
            text.push_str(&format!("  trace sha256 {hash}\n"));
        }
        if result.outcome.class() != OutcomeClass::Good && result.outcome != Outcome::Skip {
            let symbols = result.trace.as_ref().map(|trace| &trace.user_symbols);
            let names = Names {
                kernel: kernel.symbols(),
                user: symbols.map(Vec::as_slice).unwrap_or_default(),
            };
            text.push_str(&failure::block(result, names));
            if let (true, Some(trace)) = (self.all_events, &result.trace) {
                text.push_str(&failure::all_events(trace, names));
            }
        }
        text
    }
}

/// The result files that the user wants, known to be writable.
#[derive(Debug)]
struct Outputs {
    json: Option<OutputFile>,
    junit: Option<OutputFile>,
}

impl Outputs {
    fn open(json: Option<PathBuf>, junit: Option<PathBuf>) -> Result<Self, CommandError> {
        let open = |path: Option<PathBuf>| path.map(|path| OutputFile::create(&path)).transpose();
        Ok(Self {
            json: open(json)?,
            junit: open(junit)?,
        })
    }

    /// Writes them; why some could not be written.
    fn write(self, summary: &RunSummary) -> Vec<CommandError> {
        let RunSummary {
            results, setting, ..
        } = summary;
        let json = self.json.map(|file| -> Result<(), CommandError> {
            let lines: Result<String, _> =
                results.iter().map(|it| json::line(setting, it)).collect();
            Ok(file.finish(&lines?)?)
        });
        let junit = self.junit.map(|file| -> Result<(), CommandError> {
            Ok(file.finish(&junit::xml(setting, results, summary.elapsed)?)?)
        });
        let written = [json, junit].into_iter().flatten();
        written.filter_map(Result::err).collect()
    }
}
