//! The `unwindlab` command: what the user typed becomes a typed plan, once; errors are one line
//! and an exit code of docs/outcomes.md.

pub mod analysis;
pub mod args;
mod bench;
mod bisect;
pub mod error;
pub mod kernel;
mod manual;
mod mutants;
mod output;
pub mod progress;
mod replay;
pub mod run;
mod series;
mod session;
mod suite;
mod sweep;
mod tally;
mod variants;

use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::analysis::Analysis;
use self::args::{Cli, Command, KernelCommand};
use self::error::CommandError;
use self::output::print;
use self::progress::Spinner;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::Lab;
use crate::interrupt::Interrupt;
use crate::scenario::{Library, schema};

/// Overrides `-v` where it is set; targets and levels as tracing-subscriber's `Targets` has them
/// (`unwindlab=debug`).
const LOG_VARIABLE: &str = "UNWINDLAB_LOG";

/// Parses the command line and does what it says.
#[must_use]
pub fn main(lab: &dyn Lab) -> ExitCode {
    let cli = Cli::parse();
    init_log(cli.verbose);
    let done = start(cli.command, lab);
    let code = done.unwrap_or_else(|error| {
        error::show(&error);
        error.exit_code()
    });
    ExitCode::from(code)
}

fn start(command: Command, lab: &dyn Lab) -> Result<u8, CommandError> {
    let analysis = Analysis::embedded()?;
    let interrupt = Interrupt::from_signals()?;
    dispatch(command, lab, &analysis, &interrupt).map_err(|error| {
        // Whatever failed after Ctrl-C, failed for that: children get it too.
        if interrupt.is_set() {
            CommandError::Interrupted
        } else {
            error
        }
    })
}

fn dispatch(
    command: Command,
    lab: &dyn Lab,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    match command {
        Command::Run(args) => return run::run(args, lab, analysis, interrupt),
        Command::Mutants(args) => return mutants::mutants(&args, lab, analysis, interrupt),
        Command::Variants(args) => return variants::variants(&args, lab, analysis, interrupt),
        Command::Series(args) => return series::series(&args, lab, analysis, interrupt),
        Command::Replay(args) => return replay::replay(&args, lab, analysis, interrupt),
        Command::Sweep(args) => return sweep::sweep(&args, lab, analysis, interrupt),
        Command::Bench(args) => return bench::bench(&args, lab, analysis, interrupt),
        Command::Bisect(args) => return bisect::bisect(&args, lab, analysis, interrupt),
        Command::Kernel(KernelCommand::Fetch(args)) => {
            let request = KernelRequest::Ready(args.kernel);
            get(&request, lab, interrupt)?;
        }
        Command::Kernel(KernelCommand::Build(options)) => {
            let request = KernelRequest::Build(kernel::build_spec(&options)?);
            get(&request, lab, interrupt)?;
        }
        Command::Kernel(KernelCommand::Path(args)) => {
            print(&format!("{}\n", lab.path(&args.kernel)?.display()))?;
        }
        Command::Kernel(KernelCommand::List) => {
            for line in lab.list()? {
                print(&format!("{line}\n"))?;
            }
        }
        Command::List => list(analysis)?,
        Command::Schema => print(&schema::schema()?)?,
        Command::Doctor => print(&lab.doctor()?)?,
        Command::Man(args) => manual::man(&args)?,
        Command::Completions(args) => manual::completions(&args)?,
    }
    Ok(0)
}

/// Gets a kernel into the cache and says where it is.
fn get(request: &KernelRequest, lab: &dyn Lab, interrupt: &Interrupt) -> Result<(), CommandError> {
    let kernel = lab.fetch(request, &Spinner::new(), interrupt)?;
    let (release, path) = (kernel.release(), kernel.path().display());
    Ok(print(&format!("{release}  {path}\n"))?)
}

fn list(analysis: &Analysis) -> Result<(), CommandError> {
    let library = Library::open(&[], &analysis.invariant_ids())?;
    let names = library.scenarios.iter().map(|it| it.scenario.name.len());
    let width = names.max().unwrap_or(0);
    for loaded in &library.scenarios {
        let scenario = &loaded.scenario;
        print(&format!(
            "{:<width$}  {}\n",
            scenario.name.as_str(),
            scenario.description.trim()
        ))?;
    }
    Ok(())
}

fn init_log(verbose: u8) {
    let default = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let asked = std::env::var(LOG_VARIABLE).ok();
    let filter: Targets = asked
        .and_then(|filter| filter.parse().ok())
        .unwrap_or_else(|| Targets::new().with_default(default));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false);
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .init();
}

#[cfg(test)]
mod tests;
