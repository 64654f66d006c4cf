//! `unwindlab mutants`.

use crate::host::choice::KvmHost;
use clap::Args;
use std::path::PathBuf;
use std::time::Instant;

use super::args::BuildOptions;
use super::error::{CommandError, class_code};
use super::generated;
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::mutants::{self, MutantTest, MutantsRequest};
use crate::campaign::part::PartRequest;
use crate::report::html;
use crate::report::output_file::OutputFile;
use unwindlab_engine::plan::Shard;

/// `unwindlab mutants`.
#[derive(Debug, Args)]
pub struct MutantsArgs {
    /// Run these scenarios on every mutant, instead of those that the mutant's patch names.
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// Build only this mutant; repeatable. With --generate a pattern of names: `deferred.c:*`.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Generate all first-order mutants of the deferred unwinder and of what serves it, and say how many are killed.
    #[arg(long, conflicts_with_all = ["all", "sweep"])]
    pub generate: bool,
    /// Show the generated mutants and what the compiler makes of them, and test none.
    #[arg(long, requires = "generate", conflicts_with_all = ["scenarios", "json", "html", "budget", "jobs", "learn"])]
    pub list: bool,
    /// Seconds for the tests of one generated mutant, scenarios, then sweeps, then set-ups of perf; 120 if nothing else is said; with 0 all scenarios and nothing else.
    #[arg(long, value_name = "SECONDS", requires = "generate")]
    pub budget: Option<u64>,
    /// Test so many generated mutants at a time, each on a KVM host of its own; as many as this machine has CPUs and free memory for, 4 at most, if nothing else is said.
    #[arg(long, value_name = "N", requires = "generate", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub jobs: Option<u8>,
    /// Learn from the --json file of an earlier run: what killed a generated mutant then is tried first.
    #[arg(long, value_name = "FILE", requires = "generate")]
    pub learn: Vec<PathBuf>,
    /// Run the whole library on every mutant.
    #[arg(long)]
    pub all: bool,
    /// Sweep the mutants that a single NMI can expose, instead of running the scenarios written
    /// for them.
    #[arg(long, conflicts_with_all = ["scenarios", "all"])]
    pub sweep: bool,
    /// The kernel that the mutants are patches to.
    #[command(flatten)]
    pub build: BuildOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
    /// Write each row as JSON Lines as soon as it is there. A mutant that stands in the file is not tested again.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub json: Option<PathBuf>,
    /// Test only part I of N parts of the mutants; the kernel without a mutant is in one of them. `unwindlab merge` makes one
    /// report of the --json files of all parts.
    #[arg(long, value_name = "I/N", requires = "json", conflicts_with = "html")]
    pub shard: Option<Shard>,
    /// Write a report for a browser, one HTML file: the kill matrix, by scenario and by invariant.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub html: Option<PathBuf>,
}

impl MutantsArgs {
    /// The part that is made and its file, if there is one.
    pub(super) fn part(&self) -> Option<PartRequest> {
        Some(PartRequest {
            shard: self.shard.unwrap_or(Shard { number: 1, of: 1 }),
            file: self.json.clone()?,
        })
    }
}

/// Builds and tests the mutants, and prints the kill matrix; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub fn mutants(
    args: &MutantsArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    if args.generate {
        return generated::generated(args, context, spinner);
    }
    let start = Instant::now();
    let file = args.html.as_deref().map(OutputFile::create).transpose()?;
    let test = if args.sweep {
        MutantTest::Sweep
    } else if args.all || !args.scenarios.is_empty() {
        MutantTest::Scenarios(args.scenarios.clone())
    } else {
        MutantTest::OwnScenarios
    };
    let request = MutantsRequest {
        only: args.only.clone(),
        test,
        base: args.build.choice(),
        kvm_host: args.kvm_host,
        part: args.part(),
    };
    let matrix = mutants::mutants(&request, context, &mut |row| {
        spinner.print(&format!("{}\n", row.line()))
    })?;
    spinner.clear();
    spinner.print(&format!(
        "\n{}\n{} in {:.0} s\n",
        matrix.table(),
        matrix.summary(),
        start.elapsed().as_secs_f64()
    ))?;
    if let Some(file) = file {
        file.finish(html::matrix::html(&matrix, start.elapsed())?)?;
    }
    Ok(class_code(matrix.class()))
}
