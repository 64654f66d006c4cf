//! The `unwindlab` command: arguments become the typed request of a campaign, once, and its events
//! become text. An error is one line and an exit code of docs/outcomes.md.

mod accept;
mod args;
mod authoring;
mod bench;
mod bisect;
mod cache;
mod check;
mod costs;
mod doctor;
mod error;
mod generated;
mod kernel;
mod manual;
mod merge;
mod mutants;
mod output;
mod outputs;
mod progress;
mod replay;
mod report;
mod requests;
mod run;
mod series;
mod setups;
mod soak;
mod sweep;
mod values;
mod variants;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::args::{CacheCommand, Cli, Command, KernelCommand, ListArgs, SchemaOf};
use self::error::CommandError;
use self::output::print;
use self::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::analysis::Analysis;
use crate::campaign::error::CampaignError;
use crate::campaign::findings;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::Provider;
use crate::report::json;
use unwindlab_engine::interrupt::Interrupt;
use unwindlab_guest_kernel::confine;
use unwindlab_scenario::{Library, schema};

/// Overrides `-v` where it is set; targets and levels as tracing-subscriber's `Targets` has them
/// (`unwindlab=debug`).
const LOG_VARIABLE: &str = "UNWINDLAB_LOG";

/// Parses the command line and does what it says.
#[must_use]
pub fn main(provider: &dyn Provider) -> ExitCode {
    let cli = Cli::parse();
    init_log(cli.verbose);
    confine::choose(cli.policy());
    let done = start(cli.command, provider, cli.fresh);
    let code = done.unwrap_or_else(|error| {
        error::show(&error);
        error.exit_code()
    });
    ExitCode::from(code)
}

/// How long judging a trial goes on behind Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(500);

fn start(command: Command, provider: &dyn Provider, fresh: bool) -> Result<u8, CommandError> {
    let analysis = Analysis::embedded()?;
    let interrupt = Interrupt::from_signals()?;
    // What was found so far is written; what comes is broken off.
    interrupt.watch(PATIENCE, || {
        let error = CampaignError::Interrupted.into();
        error::show(&error);
        std::process::exit(CommandError::exit_code(&error).into());
    })?;
    let spinner = Spinner::new();
    let context = Context {
        provider,
        analysis: &analysis,
        progress: &spinner,
        interrupt: &interrupt,
        fresh,
    };
    dispatch(command, context, &spinner).map_err(|error| {
        // Whatever failed after Ctrl-C, failed for that: children get it too.
        match interrupt.is_set() {
            true => CampaignError::Interrupted.into(),
            false => error,
        }
    })
}

fn dispatch(command: Command, context: Context<'_>, spinner: &Spinner) -> Result<u8, CommandError> {
    match command {
        Command::Run(args) => return run::run(args, context, spinner),
        Command::Check(args) => return check::check(&args, context, spinner),
        Command::Soak(args) => return soak::soak(&args, context, spinner),
        Command::Mutants(args) => return mutants::mutants(&args, context, spinner),
        Command::Variants(args) => return variants::variants(&args, context, spinner),
        Command::Series(args) => return series::series(&args, context, spinner),
        Command::Replay(args) => return replay::replay(&args, context, spinner),
        Command::Sweep(args) => return sweep::sweep(&args, context, spinner),
        Command::Merge(args) => return merge::merge(&args, context, spinner),
        Command::Costs(args) => return costs::costs(&args, context, spinner),
        Command::Setups(args) => return setups::setups(&args, context, spinner),
        Command::Bench(args) => return bench::bench(&args, context, spinner),
        Command::Bisect(args) => return bisect::bisect(&args, context, spinner),
        Command::Doctor(args) => return doctor::doctor(&args, context, spinner),
        Command::Cache(CacheCommand::Verify) => return cache::verify(context, spinner),
        Command::Cache(CacheCommand::List) => cache::list(context, spinner)?,
        Command::Cache(CacheCommand::Prune(args)) => cache::prune(args, context, spinner)?,
        Command::Kernel(command) => kernel(command, context, spinner)?,
        Command::Findings(args) => {
            for line in findings::findings(&args.kernel.choice(), context)? {
                spinner.print(&line)?;
            }
        }
        Command::Report(args) => report::report(&args, context, spinner)?,
        Command::List(args) => list(&args, context.analysis)?,
        Command::New(args) => authoring::new(&args, context.analysis)?,
        Command::Lint(args) => authoring::lint(&args, context.analysis)?,
        Command::Explain(args) => authoring::explain_name(&args)?,
        Command::Schema(args) => print(&match args.of {
            SchemaOf::Scenario => schema::schema()?,
            SchemaOf::Result => json::schema()?,
        })?,
        Command::Man(args) => manual::man(&args)?,
        Command::Completions(args) => manual::completions(&args)?,
    }
    Ok(0)
}

fn kernel(
    command: KernelCommand,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<(), CommandError> {
    match command {
        KernelCommand::Fetch(args) => get(&KernelRequest::Ready(args.kernel), context, spinner)?,
        KernelCommand::Build(options) => {
            let spec = options.choice().build_spec().map_err(CampaignError::from)?;
            get(&KernelRequest::Build(spec), context, spinner)?;
        }
        KernelCommand::Path(args) => {
            print(&format!(
                "{}\n",
                context.provider.path(&args.kernel)?.display()
            ))?;
        }
        KernelCommand::List => {
            for line in context.provider.list()? {
                print(&format!("{line}\n"))?;
            }
        }
    }
    Ok(())
}

/// Gets a kernel into the cache and says where it is.
fn get(
    request: &KernelRequest,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<(), CommandError> {
    let kernel = context
        .provider
        .fetch(request, spinner, context.interrupt)?;
    let (release, path) = (kernel.release(), kernel.path().display());
    Ok(spinner.print(&format!("{release}  {path}\n"))?)
}

fn list(args: &ListArgs, analysis: &Analysis) -> Result<(), CommandError> {
    let library = Library::open(&args.scenarios, &analysis.invariant_ids())?;
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
    let usual = || Targets::new().with_default(default);
    let asked = std::env::var(LOG_VARIABLE).ok();
    let asked = asked.map(|it| it.parse::<Targets>());
    let (filter, wrong) = match asked {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (usual(), Some(error)),
        None => (usual(), None),
    };
    // https://no-color.org
    let styled = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(styled)
        .log_internal_errors(false)
        .with_target(false);
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .init();
    if let Some(error) = wrong {
        tracing::warn!("{LOG_VARIABLE} is left aside: {error}");
    }
}

#[cfg(test)]
mod tests;
