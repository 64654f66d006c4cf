//! `unwindlab series`.

use crate::host::choice::KvmHost;
use clap::Args;
use std::path::PathBuf;
use std::time::Instant;

use super::args::BuildOptions;
use super::error::{CommandError, class_code};
use super::progress::Spinner;
use crate::campaign::Context;
use crate::campaign::series::{
    self, Change, PatchReport, PlaceReport, PlaceState, SeriesEvent, SeriesRequest,
};
use crate::host::provider::{ProviderError, ProviderFailure};
use crate::judge::outcome::OutcomeClass;
use crate::judge::{Outcome, ScenarioResult};
use unwindlab_engine::text::printable;
use unwindlab_guest_kernel::build::application::Application;
use unwindlab_guest_kernel::build::series::Series;

/// `unwindlab series`.
#[derive(Debug, Args)]
pub struct SeriesArgs {
    /// An mbox, a folder of mails or patches (ordered by a file `series` in it, the numbers in the
    /// subjects, or else by name), a range A..B of the repository in --tree, or `debian`: the patches
    /// of Debian's own kernel, to the upstream release under it.
    #[arg(value_name = "SERIES")]
    pub series: PathBuf,
    /// Scenarios to run [default: those of ./scenarios, or else of the built-in library].
    #[arg(value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// Apply the series to this revision of the repository in --tree.
    #[arg(long, value_name = "REV", conflicts_with = "rev")]
    pub base: Option<String>,
    /// Go on behind a patch that does not apply or is missing, without it.
    #[arg(long)]
    pub skip_conflicts: bool,
    /// Only say which patches apply: build nothing.
    #[arg(long, conflicts_with = "scenarios")]
    pub apply_only: bool,
    /// Build and test only what follows a patch that changes a file whose path begins with PATH, such
    /// as `kernel/`; repeatable.
    #[arg(long, value_name = "PATH")]
    pub touching: Vec<String>,
    /// The kernel that the series is applied to.
    #[command(flatten)]
    pub build: BuildOptions,
    /// Where to get KVM from.
    #[arg(long, value_enum, default_value_t, value_name = "HOST", help_heading = None)]
    pub kvm_host: KvmHost,
}

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
        skip_conflicts: args.skip_conflicts,
        apply_only: args.apply_only,
        touching: args.touching.clone(),
    };
    let name = args.series.display().to_string();
    let mut placed = 0;
    let summary = series::series(&request, context, &mut |event| {
        spinner.print(&match event {
            SeriesEvent::Read(series) => read(&name, series),
            SeriesEvent::Place(report) => {
                placed += 1;
                place(report)
            }
            SeriesEvent::Kernel(report) => text(report),
        })
    })?;
    spinner.clear();
    if placed > 0 {
        spinner.print(&format!(
            "{} apply, {} conflict, {} missing, {} not tried\n",
            summary.applied, summary.conflicts, summary.missing, summary.not_tried
        ))?;
    }
    if !args.apply_only {
        spinner.print(&format!(
            "{} built, {} do not build, {} break what passed before, {} not tested in {:.0} s\n",
            summary.built,
            summary.unbuilt,
            summary.broken,
            summary.untested,
            start.elapsed().as_secs_f64()
        ))?;
    }
    Ok(class_code(summary.class()))
}

/// What a series is, and what is left out.
fn read(name: &str, series: &Series) -> String {
    let version = series.version.map(|it| format!(" v{it},"));
    let left = &series.left_out;
    let counts = [
        (left.covers, "cover letters"),
        (left.replies, "replies"),
        (left.superseded, "superseded patches"),
        (left.without_diff, "others without a diff"),
    ];
    let left_out: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let mut text = format!(
        "{}:{} {}; left out: {}\n",
        printable(name),
        version.unwrap_or_default(),
        match series.places.len() {
            1 => "1 patch".to_owned(),
            patches => format!("{patches} patches"),
        },
        match left_out.is_empty() {
            true => "nothing".to_owned(),
            false => left_out.join(", "),
        }
    );
    for subject in &left.replies_with_diff {
        text.push_str(&format!(
            "     a reply has a diff of its own: {}\n",
            printable(subject)
        ));
    }
    text
}

/// The lines of a place.
fn place(report: &PlaceReport) -> String {
    let (word, detail) = match &report.state {
        PlaceState::Missing => ("missing", "no mail has this number".to_owned()),
        PlaceState::NotTried(gap) => (
            "not tried",
            format!("{gap} is not in the tree; --skip-conflicts goes on without it"),
        ),
        PlaceState::Tried(attempt) => match &attempt.application {
            Application::Exactly => ("applies", String::new()),
            Application::WithOffset(lines) => {
                ("applies", format!("with an offset of up to {lines} lines"))
            }
            Application::WithFuzz(files) => (
                "applies",
                format!(
                    "with fuzz (less context) in {}: look at it",
                    files.join(", ")
                ),
            ),
            Application::IsIn => ("is in", "the tree has this change already".to_owned()),
            Application::Conflicts(places) => ("conflicts", format!("in {}", places.join(", "))),
        },
    };
    let mut text = format!(
        "{:>3}  {word:<14}  {}",
        report.number,
        printable(&report.title)
    );
    if report.trailers > 0 {
        text.push_str(&format!(" (+{} trailers in replies)", report.trailers));
    }
    text = text.trim_end().to_owned();
    if !detail.is_empty() {
        text.push_str(&format!("\n       {}", printable(&detail)));
    }
    text + "\n"
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
    use unwindlab_guest_kernel::build::series::SeriesPlace;

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
    fn a_series_is_of_patches() {
        let with = |places| Series {
            places,
            ..Series::default()
        };
        assert_eq!(
            read("x.patch", &with(Vec::new())),
            "x.patch: 0 patches; left out: nothing\n"
        );
        let one = vec![SeriesPlace::Missing(1)];
        assert_eq!(
            read("x.patch", &with(one)),
            "x.patch: 1 patch; left out: nothing\n"
        );
    }

    #[test]
    fn a_patch_that_does_not_build_says_why() {
        let text = text(&report(Err(unbuildable().into())));
        let begins = "  1  does not build  one\n       x.patch does not apply to ";
        assert!(text.starts_with(begins), "{text}");
    }
}
