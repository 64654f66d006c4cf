//! `unwindlab setups`.

use super::args::KernelOptions;
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::setups::{self, SetupsEvent, SetupsRequest};
use crate::host::choice::KvmHost;
use crate::report::failure;
use crate::report::names::Names;
use crate::report::output_file::OutputFile;
use crate::report::setups::{line, record, report};
use crate::setup::Strength;
use clap::Args;
use std::path::PathBuf;

/// `unwindlab setups`.
#[derive(Debug, Args)]
pub struct SetupsArgs {
    /// Seed of the set-ups and their order.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Try only the set-up of this number, and show what came of it; repeatable.
    #[arg(long = "setup", value_name = "N")]
    pub setups: Vec<usize>,
    /// Cover every triple of levels instead of every pair: some ten times as many set-ups.
    #[arg(long)]
    pub all: bool,
    /// Show every event of a set-up (with --setup).
    #[arg(long, requires = "setups")]
    pub trace: bool,
    /// Write what came of each set-up as JSON Lines.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub json: Option<PathBuf>,
    /// The kernel under test.
    #[command(flatten)]
    pub kernel: KernelOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
}

/// Tries set-ups and reports; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn setups(
    args: &SetupsArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let json = args.json.as_deref().map(OutputFile::create).transpose()?;
    let request = SetupsRequest {
        seed: args.seed,
        strength: match args.all {
            true => Strength::Triples,
            false => Strength::Pairs,
        },
        only: args.setups.clone(),
        kernel: args.kernel.choice(),
        kvm_host: args.kvm_host,
    };
    let detailed = !args.setups.is_empty();
    let tested = setups::run(&request, context, &mut |event| match event {
        SetupsEvent::Started(_) => Ok(()),
        SetupsEvent::Tried {
            tried,
            result,
            kernel,
        } if detailed => {
            let mut text = line(tried);
            if let Some(trace) = &result.trace {
                let names = Names {
                    kernel: kernel.symbols(),
                    user: &trace.user_symbols,
                };
                text += &failure::block(result, names);
                if args.trace {
                    text += &failure::all_events(trace, names);
                }
            }
            spinner.print(&text)
        }
        SetupsEvent::Tried { .. } => Ok(()),
    })?;
    spinner.clear();
    spinner.print(&report(&tested.summary, &tested.setting, &command(args)))?;
    if let Some(file) = json {
        let records = tested.summary.tried.iter();
        let records: Result<String, _> = records
            .map(|tried| record(&tested.setting, tried))
            .collect();
        file.finish(&records?)?;
    }
    Ok(class_code(tested.summary.class()))
}

/// The command that has the same numbers.
fn command(args: &SetupsArgs) -> String {
    let all = if args.all { " --all" } else { "" };
    let mut text = format!("unwindlab setups --seed {}{all}", args.seed);
    // The numbers depend on what the kernel has.
    let kernel = args.kernel.choice();
    let tree = kernel.tree.map(|path| path.display().to_string());
    for (option, value) in [
        ("kernel", kernel.kernel),
        ("tree", tree),
        ("rev", kernel.rev),
        ("source", kernel.source),
    ] {
        text.extend(value.map(|value| format!(" --{option} {value}")));
    }
    text.extend(kernel.patch.iter().map(|it| format!(" --patch {it}")));
    text.extend(kernel.config.iter().map(|it| format!(" --config {it}")));
    text
}
