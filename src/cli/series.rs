//! `unwindlab series`.

use std::time::Instant;

use super::args::SeriesArgs;
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::series::{self, Change, PatchReport, SeriesRequest};
use crate::host::provider::{ProviderError, ProviderFailure};
use crate::judge::outcome::OutcomeClass;
use crate::judge::{Outcome, ScenarioResult};
use unwindlab_engine::text::printable;

/// Builds and judges each state of the series; the exit code: 1 where a patch does not build or
/// breaks what passed before it.
///
/// # Errors
/// [`CommandError`] where there is no series, or no base.
pub fn series(
    args: &SeriesArgs,
    context: Context<'_>,
    spinner: &Spinner,
) -> Result<u8, CommandError> {
    let start = Instant::now();
    let request = SeriesRequest {
        series: args.series.clone(),
        scenarios: args.scenarios.clone(),
        base: args.base.clone(),
        build: args.build.choice(),
        kvm_host: args.kvm_host,
    };
    let summary = series::series(&request, context, &mut |report| {
        spinner.print(&text(report))
    })?;
    spinner.clear();
    spinner.print(&format!(
        "{} built, {} do not build, {} break what passed before, {} not tested in {:.0} s\n",
        summary.built,
        summary.unbuilt,
        summary.broken,
        summary.untested,
        start.elapsed().as_secs_f64()
    ))?;
    Ok(class_code(summary.class()))
}

/// The lines of one patch.
fn text(report: &PatchReport) -> String {
    let (number, title) = (report.number, printable(&report.title));
    let results = match &report.results {
        Ok(results) => results,
        Err(error) => {
            let word = match error.kind() {
                ProviderFailure::Unbuildable => "does not build",
                ProviderFailure::Usage | ProviderFailure::Unavailable => "not tested",
            };
            return format!("{number:>3}  {word:<14}  {title}\n{}\n", indented(error));
        }
    };
    let count = |wanted: &dyn Fn(Outcome) -> bool| {
        let outcomes = results.iter().map(|(result, _)| result.outcome);
        outcomes.filter(|it| wanted(*it)).count()
    };
    let with = |wanted| {
        let with = results.iter().filter(move |(_, change)| *change == wanted);
        with.map(|(result, _)| result)
    };
    let word = if with(Change::Broken).next().is_some() {
        "breaks"
    } else if with(Change::Unclear).next().is_some() {
        "unclear"
    } else {
        "ok"
    };
    let mut text = format!(
        "{number:>3}  {word:<14}  {title}: {} pass, {} fail, {} skip\n",
        count(&|it| it.class() == OutcomeClass::Good),
        count(&|it| it.class() == OutcomeClass::Bad),
        count(&|it| it == Outcome::Skip),
    );
    for result in with(Change::Broken).chain(with(Change::Unclear)) {
        text.push_str(&format!("       {}\n", line(result)));
    }
    text
}

fn line(result: &ScenarioResult) -> String {
    let fallen = result.fallen().join(" ");
    if fallen.is_empty() {
        return printable(&result.brief());
    }
    let reason = result.reasons.first().map_or("", String::as_str);
    format!(
        "{}: {} ({fallen}) {}",
        result.name,
        result.outcome.name(),
        printable(reason)
    )
}

fn indented(error: &ProviderError) -> String {
    let text = error.to_string();
    let lines: Vec<String> = text.lines().map(|line| format!("       {line}")).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::testing::unbuildable;

    fn report(results: Result<Vec<(ScenarioResult, Change)>, ProviderError>) -> PatchReport {
        PatchReport {
            number: 1,
            title: "one".to_owned(),
            results,
        }
    }

    #[test]
    fn a_patch_that_breaks_something_says_what() {
        let result = |name, outcome| ScenarioResult::not_run(name, outcome, "why".to_owned());
        let text = text(&report(Ok(vec![
            (result("a", Outcome::Fail), Change::Broken),
            (result("b", Outcome::Pass), Change::NoWorse),
        ])));
        assert!(
            text.starts_with("  1  breaks          one: 1 pass, 1 fail, 0 skip\n"),
            "{text}"
        );
        assert!(text.contains("a: fail why"), "{text}");
    }

    #[test]
    fn a_patch_that_does_not_build_says_why() {
        let text = text(&report(Err(unbuildable().into())));
        let begins = "  1  does not build  one\n       x.patch does not apply to ";
        assert!(text.starts_with(begins), "{text}");
    }
}
