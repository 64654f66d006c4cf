//! The `unwindlab` command: what the user typed becomes a typed plan, once; errors are one line
//! and an exit code of docs/outcomes.md.

pub mod analysis;
pub mod args;
pub mod error;
pub mod lab;
mod output;
pub mod progress;
pub mod run;
mod session;

use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

use self::analysis::Analysis;
use self::args::{Cli, Command, KernelCommand};
use self::error::CommandError;
use self::lab::Lab;
use self::output::print;
use self::progress::Spinner;
use crate::runner::Interrupt;
use crate::scenario::{Library, schema};

/// Overrides `-v` where it is set; a filter as tracing-subscriber has it
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
        Command::Kernel(KernelCommand::Fetch(args)) => {
            let kernel = lab.fetch(&args.kernel, &Spinner::new(), interrupt)?;
            print(&format!(
                "{}  {}\n",
                kernel.release(),
                kernel.path().display()
            ))?;
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
    }
    Ok(0)
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
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
}

#[cfg(test)]
mod tests;
