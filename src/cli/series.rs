//! `unwindlab series`: every patch of a series, built and judged in order.

use std::collections::BTreeMap;
use std::time::Instant;

use unwindlab_guest_kernel::build::history::History;
use unwindlab_guest_kernel::{BuildSpec, Source};

use super::analysis::Analysis;
use super::args::SeriesArgs;
use super::error::CommandError;
use super::kernel;
use super::output::print;
use super::progress::Spinner;
use super::suite::{Job, Judged, Suite};
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{Provider, ProviderError};
use crate::interrupt::Interrupt;
use crate::judge::outcome::{EXIT_UNTESTED, OutcomeClass};
use crate::judge::{Outcome, ScenarioResult};
use crate::scenario::Library;
use crate::text::printable;

/// One step of a series: the state after a patch.
struct Step {
    /// `base`, or the patch.
    title: String,
    request: KernelRequest,
}

/// Builds and judges each state of the series; the exit code: 1 where a patch does not build or
/// breaks what passed before it.
///
/// # Errors
/// [`CommandError`] where there is no series, or no base.
pub fn series(
    args: &SeriesArgs,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    let start = Instant::now();
    let steps = steps(args, provider)?;
    let spinner = Spinner::new();
    let suite = Suite {
        library: Library::open(&args.scenarios, &analysis.invariant_ids())?.scenarios,
        kvm_host: args.kvm_host,
        provider,
        analysis,
        spinner: &spinner,
        interrupt,
    };
    let jobs: Vec<Job> = steps
        .iter()
        .map(|step| Job {
            request: step.request.clone(),
            only: None,
        })
        .collect();
    let mut progress = Progress::default();
    suite.run_each(&jobs, |at, judged| {
        let title = steps.get(at).map_or("", |step| &step.title);
        let lines = progress.take(at, title, judged);
        Ok(spinner.suspend(|| print(&lines))?)
    })?;
    spinner.clear();
    print(&format!(
        "{} in {:.0} s\n",
        progress.summary(),
        start.elapsed().as_secs_f64()
    ))?;
    Ok(progress.exit_code())
}

/// The base and each patch on it.
fn steps(args: &SeriesArgs, provider: &dyn Provider) -> Result<Vec<Step>, CommandError> {
    let mut options = args.build.clone();
    let range = args.series.to_string_lossy().into_owned();
    let is_range = range.contains("..") && !args.series.exists();
    if let Some(base) = &args.base {
        if options.tree.is_none() {
            return Err(CommandError::Usage(
                "--base is a revision of a repository: name it with --tree".to_owned(),
            ));
        }
        options.rev = Some(base.clone());
    }
    let spec = kernel::build_spec(&options)?;
    if !is_range {
        return Ok(on_base(&spec, provider.series(&args.series)?));
    }
    let Some(tree) = options.tree.clone() else {
        return Err(CommandError::Usage(format!(
            "{range} is a range of a repository: name it with --tree"
        )));
    };
    let history = History::open(&tree).map_err(ProviderError::from)?;
    let commits = history.range(&range).map_err(ProviderError::from)?;
    let Some(first) = commits.first() else {
        return Err(CommandError::Usage(format!("{range} has no commits")));
    };
    let base = args
        .base
        .clone()
        .unwrap_or_else(|| format!("{}^", first.id));
    let at = |title: String, revision: String| Step {
        title,
        request: KernelRequest::Build(BuildSpec {
            source: Source::Revision {
                tree: tree.clone(),
                revision,
            },
            ..spec.clone()
        }),
    };
    let mut steps = vec![at("base".to_owned(), base)];
    steps.extend(commits.into_iter().map(|commit| {
        let title = format!("{} {}", commit.short(), commit.subject);
        at(title, commit.id)
    }));
    Ok(steps)
}

fn on_base(
    spec: &BuildSpec,
    patches: Vec<unwindlab_guest_kernel::build::patch::Patch>,
) -> Vec<Step> {
    let mut spec = spec.clone();
    let mut steps = vec![Step {
        title: "base".to_owned(),
        request: KernelRequest::Build(spec.clone()),
    }];
    for patch in patches {
        let title = patch.name.clone();
        spec.patches.push(patch);
        steps.push(Step {
            title,
            request: KernelRequest::Build(spec.clone()),
        });
    }
    steps
}

/// What is known after some steps.
#[derive(Debug, Default)]
struct Progress {
    /// The scenarios that have passed, and have not failed since.
    passing: BTreeMap<String, bool>,
    built: usize,
    broken: usize,
    unbuilt: usize,
    untested: usize,
}

impl Progress {
    /// Takes the next step; its lines.
    fn take(&mut self, at: usize, title: &str, judged: Judged) -> String {
        let title = printable(title);
        let results = match judged {
            Judged::Ran { results, .. } => results,
            Judged::NotBuilt(error @ ProviderError::Unbuildable(_)) => {
                self.unbuilt += 1;
                return format!("{at:>3}  does not build  {title}\n{}\n", indented(&error));
            }
            Judged::NotBuilt(error) => {
                self.untested += 1;
                return format!("{at:>3}  not tested      {title}\n{}\n", indented(&error));
            }
        };
        self.built += 1;
        let mut regressions = Vec::new();
        let mut unclear = Vec::new();
        for result in &results {
            let passed_before = self.passing.get(&result.name).copied();
            match result.outcome.class() {
                OutcomeClass::Good => {
                    self.passing.insert(result.name.clone(), true);
                }
                OutcomeClass::Bad => {
                    if passed_before == Some(true) {
                        regressions.push(line(result));
                    }
                    self.passing.insert(result.name.clone(), false);
                }
                // What passed and is not there any more is no less a loss.
                OutcomeClass::Untested if passed_before == Some(true) => unclear.push(line(result)),
                OutcomeClass::Untested => {}
            }
        }
        let count = |verdict| {
            let all = results.iter().map(|it| it.outcome.class());
            all.filter(|it| *it == verdict).count()
        };
        let skipped = results
            .iter()
            .filter(|it| it.outcome == Outcome::Skip)
            .count();
        let word = if !regressions.is_empty() {
            self.broken += 1;
            "breaks"
        } else if !unclear.is_empty() {
            self.untested += 1;
            "unclear"
        } else {
            "ok"
        };
        let mut text = format!(
            "{at:>3}  {word:<14}  {title}: {} pass, {} fail, {skipped} skip\n",
            count(OutcomeClass::Good),
            count(OutcomeClass::Bad)
        );
        for line in regressions.iter().chain(&unclear) {
            text.push_str(&format!("       {line}\n"));
        }
        text
    }

    fn summary(&self) -> String {
        format!(
            "{} built, {} do not build, {} break what passed before, {} not tested",
            self.built, self.unbuilt, self.broken, self.untested
        )
    }

    fn exit_code(&self) -> u8 {
        match (self.broken + self.unbuilt, self.untested) {
            (0, 0) => 0,
            (0, _) => EXIT_UNTESTED,
            _ => 1,
        }
    }
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

    fn ran(outcomes: &[(&str, Outcome)]) -> Judged {
        Judged::Ran {
            results: outcomes
                .iter()
                .map(|(name, outcome)| ScenarioResult::not_run(name, *outcome, "why".to_owned()))
                .collect(),
        }
    }

    #[test]
    fn a_patch_must_pass_what_passed_before() {
        let mut progress = Progress::default();
        progress.take(
            0,
            "base",
            ran(&[("a", Outcome::Pass), ("b", Outcome::Fail)]),
        );
        assert_eq!(progress.exit_code(), 0, "b never passed");
        let text = progress.take(1, "one", ran(&[("a", Outcome::Fail), ("b", Outcome::Pass)]));
        assert!(text.contains("breaks"), "{text}");
        assert!(text.contains("a: fail why"), "{text}");
        assert_eq!(progress.exit_code(), 1);
    }

    #[test]
    fn what_cannot_be_tested_any_more_is_no_pass() {
        let mut progress = Progress::default();
        progress.take(0, "base", ran(&[("a", Outcome::Pass)]));
        progress.take(1, "one", ran(&[("a", Outcome::BootError)]));
        assert_eq!(progress.exit_code(), EXIT_UNTESTED);
        let error = ProviderError::Unbuildable("x.c:1: error: y".to_owned());
        let text = progress.take(2, "two", Judged::NotBuilt(error));
        assert!(text.contains("x.c:1: error: y"), "{text}");
        assert_eq!(progress.exit_code(), 1);
    }
}
