//! Finding the commit that broke a scenario.
//!
//! - [`mod@search`]: halves the suspects and leaves out commits that cannot be tested
//! - [`symptom`]: what is searched for, because a kernel may be wrong in other ways too
//! - [`confidence`]: how often a commit must pass to be reported good
//! - [`log`]: what is known already, so that an interrupted search can continue

pub mod confidence;
pub mod log;
pub mod search;
pub mod symptom;

use std::io;
use std::path::{Path, PathBuf};

use unwindlab_guest_kernel::build::history::{Commit, History};
use unwindlab_guest_kernel::{BuildSpec, Source};

use self::confidence::{failure_rate, mistake, runs_needed};
use self::log::{Ends, Log, Search, Tested};
use self::search::{CommitVerdict, FirstBad, search};
use self::symptom::{BisectSymptom, SymptomCheck};
use super::Context;
use super::context::repository;
use super::error::{BisectError, CampaignError};
use super::kernel::KernelChoice;
use super::suite::Suite;
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::host::provider::{ProviderError, ProviderFailure};
use crate::judge::ScenarioResult;

/// How often the runs of a commit are tried while the harness fails, before the commit is left out.
const REPEATS: u32 = 3;

/// Which commit to search for.
#[derive(Debug, Clone)]
pub struct BisectRequest {
    /// The scenario that distinguishes good from bad: a file, or a name from the library.
    pub scenario: PathBuf,
    /// The git repository.
    pub tree: PathBuf,
    /// A revision that is good.
    pub good: String,
    /// A revision that is bad.
    pub bad: String,
    /// The invariant whose violation is searched for; without it, the most frequent symptom of the
    /// bad revision.
    pub invariant: Option<String>,
    /// The number of runs of the bad revision, from which its failure rate is estimated.
    pub runs: u32,
    /// Minimum probability that a commit reported good is good.
    pub confidence: f64,
    /// The log; by default a file in the current folder, named after the two revisions.
    pub log: Option<PathBuf>,
    /// Patches for every commit, as a [`KernelChoice`] names them.
    pub patch: Vec<String>,
    /// Configuration fragments for every commit, as a [`KernelChoice`] names them.
    pub config: Vec<String>,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
}

/// What happens during a search.
#[derive(Debug, Clone, Copy)]
pub enum BisectEvent<'a> {
    /// The bad revision was run, now or earlier: the symptom is known.
    Searching {
        /// The bad commit.
        bad: &'a Commit,
        /// What its runs showed.
        ends: &'a Ends,
        /// How often a commit must pass to be reported good.
        needed: u32,
        /// The probability that a bad commit passes this often.
        mistake: f64,
    },
    /// A commit was tested, now or earlier.
    Tested {
        /// The commit.
        commit: &'a Commit,
        /// What is known of it.
        tested: &'a Tested,
    },
}

/// What came of a search.
#[derive(Debug, Clone)]
pub struct BisectSummary {
    /// The first bad commit, or those that it is one of.
    pub first_bad: FirstBad<Commit>,
    /// The log.
    pub log: PathBuf,
}

/// Finds the first bad commit.
///
/// # Errors
/// [`CampaignError`], also where the two ends are not what they are called.
pub fn bisect(
    request: &BisectRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(BisectEvent<'_>) -> io::Result<()>,
) -> Result<BisectSummary, CampaignError> {
    let library = context.open(std::slice::from_ref(&request.scenario))?;
    let [loaded] = library.as_slice() else {
        return Err(BisectError::NotOneScenario.into());
    };
    let scenario = String::clone(&loaded.scenario.name);
    check_invariant(request, context)?;
    let history = repository(&request.tree)?;
    let commit = |revision: &str| history.commit(revision).map_err(ProviderError::from);
    let (good, bad) = (commit(&request.good)?, commit(&request.bad)?);
    let build = KernelChoice {
        tree: Some(request.tree.clone()),
        patch: request.patch.clone(),
        config: request.config.clone(),
        ..KernelChoice::default()
    };
    let spec = build.build_spec()?;
    // Before the log: one of a search that cannot be is of no use.
    check_ends(request, &history, &good, &bad)?;
    let (from, to) = (good.short(), bad.short());
    let default_log = || format!("unwindlab-bisect-{from}-{to}-{scenario}.jsonl").into();
    let path = request.log.clone().unwrap_or_else(default_log);
    let log = Log::open(
        &path,
        &Search {
            good: good.id.clone(),
            bad: bad.id.clone(),
            scenario: scenario.clone(),
            build: at_revision(&spec, &request.tree, "").to_string(),
            confidence: request.confidence,
            invariant: request.invariant.clone(),
        },
    )?;
    let mut bisection = Bisection {
        request,
        suite: Suite {
            library,
            kvm_host: request.kvm_host,
            context,
        },
        history: &history,
        spec,
        scenario,
        log,
        tell,
    };
    let found = bisection.run(&good, &bad)?;
    Ok(BisectSummary {
        first_bad: found.try_map(|id| commit(&id))?,
        log: path,
    })
}

/// An invariant that there is not would be missed after the bad revision is built and run.
fn check_invariant(request: &BisectRequest, context: Context<'_>) -> Result<(), BisectError> {
    let known = context.analysis.invariant_ids();
    match &request.invariant {
        Some(id) if !known.contains(&id.as_str()) => Err(BisectError::NoInvariant {
            id: id.clone(),
            known: known.join(", "),
        }),
        _ => Ok(()),
    }
}

/// There must be a commit between the two revisions.
fn check_ends(
    request: &BisectRequest,
    history: &History,
    good: &Commit,
    bad: &Commit,
) -> Result<(), CampaignError> {
    let names = || (request.good.clone(), request.bad.clone());
    if good.id == bad.id {
        let (good, bad) = names();
        return Err(BisectError::SameCommit { good, bad }.into());
    }
    let between = history.suspects(&bad.id, std::slice::from_ref(&good.id));
    if between.map_err(ProviderError::from)?.is_empty() {
        let (good, bad) = names();
        return Err(BisectError::NothingBetween { good, bad }.into());
    }
    Ok(())
}

/// A search under way.
struct Bisection<'a> {
    request: &'a BisectRequest,
    suite: Suite<'a>,
    history: &'a History,
    /// Patches and configuration for every commit.
    spec: BuildSpec,
    scenario: String,
    log: Log,
    tell: &'a mut dyn FnMut(BisectEvent<'_>) -> io::Result<()>,
}

fn at_revision(spec: &BuildSpec, tree: &Path, revision: &str) -> BuildSpec {
    BuildSpec {
        source: Source::Revision {
            tree: tree.to_owned(),
            revision: revision.to_owned(),
        },
        ..spec.clone()
    }
}

impl Bisection<'_> {
    fn run(&mut self, good: &Commit, bad: &Commit) -> Result<FirstBad<String>, CampaignError> {
        let history = self.history;
        let suspects = |bad: &str, good: &[String]| -> Result<Vec<String>, CampaignError> {
            Ok(history.suspects(bad, good).map_err(ProviderError::from)?)
        };
        let ends = match self.log.ends.clone() {
            Some(ends) => ends,
            None => self.test_bad_end(bad)?,
        };
        let rate = failure_rate(ends.failed, ends.runs);
        let needed = runs_needed(rate, self.request.confidence);
        (self.tell)(BisectEvent::Searching {
            bad,
            ends: &ends,
            needed,
            mistake: mistake(rate, needed),
        })?;
        if self.test(&ends, needed, good)? != CommitVerdict::Good {
            return Err(BisectError::NotGood {
                good: self.request.good.clone(),
                why: self.why(&good.id),
            }
            .into());
        }
        search(&good.id, &bad.id, suspects, |id| {
            let commit = history.commit(id).map_err(ProviderError::from)?;
            self.test(&ends, needed, &commit)
        })
    }

    fn why(&self, commit: &str) -> String {
        match self.log.known(commit).map(|tested| &tested.verdict) {
            Some(CommitVerdict::Skip(reason)) => reason.clone(),
            _ => "it fails too".to_owned(),
        }
    }

    /// Runs the bad commit to find the symptom and its frequency.
    fn test_bad_end(&mut self, bad: &Commit) -> Result<Ends, CampaignError> {
        let runs = self.request.runs;
        let results = self.results(bad, runs)?;
        let mut others = symptom::of(&results);
        let wanted = match &self.request.invariant {
            None => (!others.is_empty()).then_some(0),
            Some(id) => others
                .iter()
                .position(|it| *it == BisectSymptom::Invariant(id.clone())),
        };
        let Some(wanted) = wanted else {
            let reason = results.iter().find_map(|result| result.reasons.first());
            return Err(BisectError::NothingToFind {
                commit: bad.short().to_owned(),
                what: match &self.request.invariant {
                    None => "fail".to_owned(),
                    Some(id) => format!("violate {id}"),
                },
                runs,
                scenario: self.scenario.clone(),
                reason: reason.map(|it| format!(" ({it})")).unwrap_or_default(),
            }
            .into());
        };
        let symptom = others.remove(wanted);
        let count = |wanted: fn(&SymptomCheck) -> bool| {
            let shown = results.iter().map(|result| symptom.check(result));
            u32::try_from(shown.filter(wanted).count()).unwrap_or(u32::MAX)
        };
        let ends = Ends {
            failed: count(|shown| *shown == SymptomCheck::Shown),
            runs: count(|shown| matches!(shown, SymptomCheck::Shown | SymptomCheck::NotShown)),
            symptom,
            others,
        };
        self.log.set_ends(ends.clone())?;
        Ok(ends)
    }

    /// What is known of a commit, from the log or by running it.
    fn test(
        &mut self,
        ends: &Ends,
        needed: u32,
        commit: &Commit,
    ) -> Result<CommitVerdict, CampaignError> {
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
        (self.tell)(BisectEvent::Tested {
            commit,
            tested: &tested,
        })?;
        Ok(tested.verdict)
    }

    fn judge(
        &self,
        ends: &Ends,
        needed: u32,
        commit: &Commit,
    ) -> Result<(CommitVerdict, u32), CampaignError> {
        let mut passes = 0;
        let mut runs = 0;
        let mut last = String::new();
        for _ in 0..REPEATS {
            let results = match self.results(commit, needed - passes) {
                Ok(results) => results,
                Err(CampaignError::Provider(error))
                    if error.kind() == ProviderFailure::Unbuildable =>
                {
                    return Ok((CommitVerdict::Skip(error.to_string()), 0));
                }
                Err(error) => return Err(error),
            };
            for result in &results {
                runs += 1;
                match ends.symptom.check(result) {
                    SymptomCheck::Shown => return Ok((CommitVerdict::Bad, runs)),
                    SymptomCheck::NotShown => passes += 1,
                    SymptomCheck::Untestable(reason) => {
                        return Ok((CommitVerdict::Skip(reason), runs));
                    }
                    SymptomCheck::HarnessFailed(reason) => last = reason,
                }
            }
            if passes >= needed {
                return Ok((CommitVerdict::Good, runs));
            }
        }
        Ok((CommitVerdict::Skip(last), runs))
    }

    /// Builds a commit and runs the scenario on it this many times.
    fn results(&self, commit: &Commit, times: u32) -> Result<Vec<ScenarioResult>, CampaignError> {
        let context = self.suite.context;
        let what = format!("{} {}", commit.short(), commit.subject);
        context.progress.step(&what);
        let spec = at_revision(&self.spec, &self.request.tree, &commit.id);
        let kernel = context.fetch(&KernelRequest::Build(spec))?;
        self.suite.run_times(kernel.as_ref(), times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::testing::{FakeProvider, folder};

    fn request(folder: &Path, good: &str, bad: &str) -> BisectRequest {
        BisectRequest {
            scenario: folder.join("a.yaml"),
            tree: folder.to_owned(),
            good: good.to_owned(),
            bad: bad.to_owned(),
            invariant: None,
            runs: 1,
            confidence: 0.9,
            log: Some(folder.join("log")),
            patch: Vec::new(),
            config: Vec::new(),
            kvm_host: KvmHost::Auto,
        }
    }

    /// What is said of a request that is refused before there is a log.
    fn refused(request: &BisectRequest) -> String {
        let provider = FakeProvider::new([]);
        let error = bisect(request, provider.context(), &mut |_| Ok(())).unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert!(!request.log.as_ref().unwrap().exists(), "{error}");
        error.to_string()
    }

    #[test]
    fn an_invariant_that_there_is_not_is_refused_first() {
        let folder = folder();
        let request = BisectRequest {
            invariant: Some("Z9".to_owned()),
            ..request(folder.path(), "a", "b")
        };
        assert_eq!(refused(&request), "no invariant \"Z9\"; there are: H1");
    }

    #[test]
    fn revisions_with_nothing_between_them_leave_no_log() {
        let folder = folder();
        let git = |words: &[&str]| {
            let mut git = std::process::Command::new("git");
            git.current_dir(folder.path()).args(words);
            for who in ["AUTHOR", "COMMITTER"] {
                git.env(format!("GIT_{who}_NAME"), "a");
                git.env(format!("GIT_{who}_EMAIL"), "a@b");
            }
            assert!(git.status().unwrap().success());
        };
        git(&["init", "--quiet"]);
        for text in ["one", "two"] {
            git(&["commit", "--quiet", "--allow-empty", "-m", text]);
        }
        let of = |good, bad| refused(&request(folder.path(), good, bad));
        assert_eq!(
            of("HEAD", "HEAD~0"),
            "HEAD and HEAD~0 are the same commit: nothing to search for"
        );
        assert_eq!(
            of("HEAD", "HEAD~1"),
            "HEAD~1 has no commit that HEAD lacks: they may be the wrong way round"
        );
    }
}
