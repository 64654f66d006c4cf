//! `unwindlab bisect`: which commit broke a scenario.

use std::path::PathBuf;
use std::time::Instant;

use unwindlab_guest_kernel::build::history::{Commit, History};
use unwindlab_guest_kernel::{BuildError, BuildSpec, Source};

use super::analysis::Analysis;
use super::args::BisectArgs;
use super::error::CommandError;
use super::kernel;
use super::output::print;
use super::progress::Spinner;
use super::suite::Suite;
use crate::bisect::confidence::{failure_rate, mistake, runs_needed};
use crate::bisect::log::{Ends, Log, Search, Tested};
use crate::bisect::symptom::{self, Shown, Symptom};
use crate::bisect::{Found, Verdict, search};
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{Provider, ProviderError};
use crate::interrupt::Interrupt;
use crate::judge::ScenarioResult;
use crate::judge::outcome::EXIT_UNTESTED;
use crate::plan::Progress as _;
use crate::scenario::Library;

/// How often a run that the harness failed is repeated before the commit is left out.
const REPEATS: u32 = 3;

/// Searches and reports; the exit code: 0 where the first bad commit was found.
///
/// # Errors
/// [`CommandError`], also where the two ends are not what they are called.
pub fn bisect(
    args: &BisectArgs,
    provider: &dyn Provider,
    analysis: &Analysis,
    interrupt: &Interrupt,
) -> Result<u8, CommandError> {
    let start = Instant::now();
    let spinner = Spinner::new();
    let library = Library::open(
        std::slice::from_ref(&args.scenario),
        &analysis.invariant_ids(),
    )?;
    let [loaded] = library.scenarios.as_slice() else {
        return Err(CommandError::Usage(
            "bisect needs one scenario, by its file or name".to_owned(),
        ));
    };
    let scenario = String::clone(&loaded.scenario.name);
    let history = History::open(&args.tree).map_err(ProviderError::from)?;
    let commit = |revision: &str| history.commit(revision).map_err(ProviderError::from);
    let (good, bad) = (commit(&args.good)?, commit(&args.bad)?);
    let spec = kernel::build_spec(&args.build_options())?;
    let log_path = args.log.clone().unwrap_or_else(|| {
        let name = format!(
            "unwindlab-bisect-{}-{}-{scenario}.jsonl",
            good.short(),
            bad.short()
        );
        PathBuf::from(name)
    });
    let log = Log::open(
        &log_path,
        &Search {
            good: good.id.clone(),
            bad: bad.id.clone(),
            scenario: scenario.clone(),
            build: with_source(&spec, "").to_string(),
            confidence: args.confidence,
            invariant: args.invariant.clone(),
        },
    )?;
    let mut bisection = Bisection {
        suite: Suite {
            library: library.scenarios,
            kvm_host: args.kvm_host,
            provider,
            analysis,
            spinner: &spinner,
            interrupt,
        },
        history,
        spec,
        scenario,
        log,
    };
    let found = bisection.run(args, &good, &bad)?;
    spinner.clear();
    let text = bisection.report(&found)?;
    print(&format!(
        "{text}\n{:.0} s; log: {}\n",
        start.elapsed().as_secs_f64(),
        log_path.display()
    ))?;
    Ok(match found {
        Found::First(_) => 0,
        Found::OneOf(_) => EXIT_UNTESTED,
    })
}

/// A search under way.
struct Bisection<'a> {
    suite: Suite<'a>,
    history: History,
    /// Patches and configuration for every commit.
    spec: BuildSpec,
    scenario: String,
    log: Log,
}

fn with_source(spec: &BuildSpec, revision: &str) -> BuildSpec {
    let tree = match &spec.source {
        Source::Tree(tree) | Source::Revision { tree, .. } => tree.clone(),
        Source::Debian(_) => PathBuf::new(),
    };
    BuildSpec {
        source: Source::Revision {
            tree,
            revision: revision.to_owned(),
        },
        ..spec.clone()
    }
}

impl Bisection<'_> {
    fn run(
        &mut self,
        args: &BisectArgs,
        good: &Commit,
        bad: &Commit,
    ) -> Result<Found, CommandError> {
        let nothing = CommandError::Usage(format!(
            "{} has no commit that {} has not: they may be the wrong way round",
            args.bad, args.good
        ));
        if self
            .suspects(&bad.id, std::slice::from_ref(&good.id))?
            .is_empty()
        {
            return Err(nothing);
        }
        let ends = match self.log.ends.clone() {
            Some(ends) => ends,
            None => self.test_bad_end(bad, args)?,
        };
        let rate = failure_rate(ends.failed, ends.runs);
        let needed = runs_needed(rate, args.confidence);
        let times = if needed == 1 { "once" } else { "times" };
        let others: Vec<String> = ends.others.iter().map(ToString::to_string).collect();
        let also = if others.is_empty() {
            String::new()
        } else {
            format!(" (also seen: {})", others.join(", "))
        };
        self.say(&format!(
            "searching for: {}, seen in {} of {} runs of {}{also}\n\
             a commit is good when it passes {needed} {times}: that a bad one is taken for good has \
             a chance of at most {:.2} %",
            ends.symptom,
            ends.failed,
            ends.runs,
            bad.short(),
            100.0 * mistake(rate, needed)
        ))?;
        if self.test(&ends, needed, good)? != Verdict::Good {
            return Err(CommandError::Usage(format!(
                "{} is not good, or cannot be tested: {}",
                args.good,
                self.why(&good.id)
            )));
        }
        let history = self.history.clone();
        search(
            &good.id,
            &bad.id,
            |bad, good| Ok(history.suspects(bad, good).map_err(ProviderError::from)?),
            |id| {
                let commit = history.commit(id).map_err(ProviderError::from)?;
                self.test(&ends, needed, &commit)
            },
        )
    }

    fn suspects(&self, bad: &str, good: &[String]) -> Result<Vec<String>, CommandError> {
        Ok(self
            .history
            .suspects(bad, good)
            .map_err(ProviderError::from)?)
    }

    fn why(&self, commit: &str) -> String {
        match self.log.known(commit).map(|tested| &tested.verdict) {
            Some(Verdict::Skip(reason)) => reason.clone(),
            _ => "it fails too".to_owned(),
        }
    }

    /// Runs the bad commit: what is searched for, and how often it shows.
    fn test_bad_end(&mut self, bad: &Commit, args: &BisectArgs) -> Result<Ends, CommandError> {
        let runs = args.runs;
        let results = self.results(bad, runs)?;
        let mut others = symptom::of(&results);
        let wanted = match &args.invariant {
            None => (!others.is_empty()).then_some(0),
            Some(id) => others
                .iter()
                .position(|it| *it == Symptom::Invariant(id.clone())),
        };
        let Some(wanted) = wanted else {
            let reason = results.iter().find_map(|result| result.reasons.first());
            return Err(CommandError::Usage(format!(
                "{} does not {} in {runs} runs of {}: nothing to search for{}",
                bad.short(),
                match &args.invariant {
                    None => "fail".to_owned(),
                    Some(id) => format!("violate {id}"),
                },
                self.scenario,
                reason.map(|it| format!(" ({it})")).unwrap_or_default()
            )));
        };
        let symptom = others.remove(wanted);
        let count = |wanted: fn(&Shown) -> bool| {
            let shown = results.iter().map(|result| symptom.shown(result));
            u32::try_from(shown.filter(wanted).count()).unwrap_or(u32::MAX)
        };
        let ends = Ends {
            failed: count(|shown| *shown == Shown::Yes),
            runs: count(|shown| matches!(shown, Shown::Yes | Shown::No)),
            symptom,
            others,
        };
        self.log.set_ends(ends.clone())?;
        Ok(ends)
    }

    /// What is known of a commit, from the log or by running it.
    fn test(&mut self, ends: &Ends, needed: u32, commit: &Commit) -> Result<Verdict, CommandError> {
        let tested = match self.log.known(&commit.id) {
            Some(tested) => tested.clone(),
            None => {
                let (verdict, runs) = self.judge(ends, needed, commit)?;
                let tested = Tested {
                    commit: commit.id.clone(),
                    subject: commit.subject.clone(),
                    runs,
                    verdict,
                };
                self.log.add(tested.clone())?;
                tested
            }
        };
        let (word, reason) = match &tested.verdict {
            Verdict::Good => ("good", String::new()),
            Verdict::Bad => ("bad ", String::new()),
            Verdict::Skip(reason) => {
                let line = reason.lines().next().unwrap_or_default();
                ("skip", format!("  ({line})"))
            }
        };
        self.say(&format!(
            "{word}  {}  {}  {} runs{reason}",
            commit.short(),
            commit.subject,
            tested.runs
        ))?;
        Ok(tested.verdict)
    }

    fn judge(
        &self,
        ends: &Ends,
        needed: u32,
        commit: &Commit,
    ) -> Result<(Verdict, u32), CommandError> {
        let mut passes = 0;
        let mut runs = 0;
        let mut last = String::new();
        for _ in 0..REPEATS {
            let results = match self.results(commit, needed - passes) {
                Ok(results) => results,
                Err(CommandError::Provider(ProviderError::Unbuildable(reason))) => {
                    return Ok((Verdict::Skip(reason), 0));
                }
                Err(error) => return Err(error),
            };
            for result in &results {
                runs += 1;
                match ends.symptom.shown(result) {
                    Shown::Yes => return Ok((Verdict::Bad, runs)),
                    Shown::No => passes += 1,
                    Shown::Untestable(reason) => return Ok((Verdict::Skip(reason), runs)),
                    Shown::Again(reason) => last = reason,
                }
            }
            if passes >= needed {
                return Ok((Verdict::Good, runs));
            }
        }
        Ok((Verdict::Skip(last), runs))
    }

    /// Builds a commit and runs the scenario on it so many times.
    fn results(&self, commit: &Commit, times: u32) -> Result<Vec<ScenarioResult>, CommandError> {
        self.suite
            .spinner
            .step(&format!("{} {}", commit.short(), commit.subject));
        let request = KernelRequest::Build(with_source(&self.spec, &commit.id));
        let (provider, interrupt) = (self.suite.provider, self.suite.interrupt);
        let kernel = provider.fetch(&request, self.suite.spinner, interrupt)?;
        self.suite.run_times(kernel.as_ref(), times)
    }

    fn say(&self, text: &str) -> Result<(), CommandError> {
        let text = format!("{text}\n");
        Ok(self.suite.spinner.suspend(|| print(&text))?)
    }

    fn report(&self, found: &Found) -> Result<String, CommandError> {
        let line = |id: &str| -> Result<String, BuildError> {
            let commit = self.history.commit(id)?;
            Ok(format!("{}  {}", commit.id, commit.subject))
        };
        let text = match found {
            Found::First(id) => line(id).map(|line| format!("first bad commit: {line}")),
            Found::OneOf(ids) => {
                let lines: Result<Vec<String>, _> = ids.iter().map(|id| line(id)).collect();
                lines.map(|lines| {
                    format!(
                        "the first bad commit is one of these, the others cannot be tested:\n  {}",
                        lines.join("\n  ")
                    )
                })
            }
        };
        Ok(text.map_err(ProviderError::from)?)
    }
}
