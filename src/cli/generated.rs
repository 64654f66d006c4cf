//! `unwindlab mutants --generate`.

use std::time::{Duration, Instant};

use unwindlab_engine::text::printable;
use unwindlab_guest_kernel::build::generate::{Generated, GeneratedMutant, ObjectCode};

use super::error::{CommandError, class_code};
use super::mutants::MutantsArgs;
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use crate::campaign::generated::{self, GeneratedEvent, GeneratedRequest};
use crate::campaign::run::jobs_of_this_machine;
use crate::report::html;
use crate::report::mutation::{MutationRecord, MutationScore, SourceFile};
use crate::report::output_file::OutputFile;

/// Seconds for the tests of one mutant, where nothing else is said.
const BUDGET: u64 = 120;

/// Generates mutants, tests them, and prints the mutation score; the exit code.
///
/// # Errors
/// [`CommandError`] where nothing could be told.
pub(super) fn generated(
    args: &MutantsArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let start = Instant::now();
    let request = request(args)?;
    if args.list {
        return list(&request, context, spinner);
    }
    let file = args.html.as_deref().map(OutputFile::create).transpose()?;
    let results = generated::mutants(&request, context, &mut |event| match event {
        GeneratedEvent::Generated(all) => spinner.print(&format!("{}\n", counts(all))),
        GeneratedEvent::Result(MutationRecord::Mutant(row)) => {
            spinner.print(&format!("{}\n", row.line()))
        }
        GeneratedEvent::Result(MutationRecord::Control(control)) => {
            spinner.print(&format!("{}\n", control.line()))
        }
    })?;
    let score = MutationScore::from(results.records);
    spinner.clear();
    spinner.print(&format!(
        "\n{}\n{}\n{}\non {} in {:.0} s\n",
        score.survivors(),
        score.tables(),
        score.summary(),
        printable(&results.release),
        start.elapsed().as_secs_f64()
    ))?;
    if let Some(file) = file {
        let sources = results.generated.sources.into_iter();
        let sources: Vec<SourceFile> = sources
            .map(|(file, text)| SourceFile { file, text })
            .collect();
        file.finish(html::mutation::html(&score, &sources, start.elapsed())?)?;
    }
    Ok(class_code(score.class()))
}

fn request(args: &MutantsArgs) -> Result<GeneratedRequest, CommandError> {
    let patterns = args.only.iter().map(|text| {
        glob::Pattern::new(text).map_err(|error| {
            CommandError::Usage(format!("--only {text:?} is no pattern of names: {error}"))
        })
    });
    Ok(GeneratedRequest {
        only: patterns.collect::<Result<_, _>>()?,
        scenarios: args.scenarios.clone(),
        budget: Duration::from_secs(args.budget.unwrap_or(BUDGET)),
        base: args.build.choice(),
        kvm_host: args.kvm_host,
        jobs: args.jobs.map_or_else(jobs_of_this_machine, usize::from),
        learn: args.learn.clone(),
        part: args.part(),
    })
}

/// Prints the mutants and what the compiler makes of them.
fn list(
    request: &GeneratedRequest,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let generated = generated::generate(request, context)?;
    spinner.clear();
    for mutant in &generated.mutants {
        spinner
            .print(&listed(mutant))
            .map_err(CampaignError::from)?;
    }
    spinner
        .print(&format!("{}\n", counts(&generated)))
        .map_err(CampaignError::from)?;
    Ok(0)
}

/// A mutant: its name, what the compiler makes of it, and its lines.
fn listed(mutant: &GeneratedMutant) -> String {
    let object = match &mutant.object {
        ObjectCode::None => "does not compile".to_owned(),
        ObjectCode::Same => "the same objects as without it".to_owned(),
        ObjectCode::Twin(twin) => format!("the same objects as {twin}"),
        ObjectCode::New => "objects of its own".to_owned(),
    };
    let mut text = format!("{} in {}: {object}\n", mutant.name, mutant.function);
    let body = mutant
        .diff
        .lines()
        .skip_while(|line| !line.starts_with("@@"));
    for line in body.filter(|line| line.starts_with(['-', '+'])) {
        text += &format!("  {}\n", printable(line));
    }
    text
}

fn counts(generated: &Generated) -> String {
    let count = |test: fn(&ObjectCode) -> bool| {
        let mutants = generated.mutants.iter();
        mutants.filter(|it| test(&it.object)).count()
    };
    format!(
        "{} generated: {} with objects of their own, {} twins of these, {} with the same objects as without them, {} do not compile",
        generated.mutants.len(),
        count(|it| *it == ObjectCode::New),
        count(|it| matches!(it, ObjectCode::Twin(_))),
        count(|it| *it == ObjectCode::Same),
        count(|it| *it == ObjectCode::None),
    )
}
