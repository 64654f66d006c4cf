//! Deliberately broken kernels, and which scenario catches each.

mod part;
mod sweep_text;
mod swept;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use unwindlab_guest_kernel::BuildSpec;
use unwindlab_guest_kernel::build::header::{self, Mutant};

use self::part::MutantsPart;
pub(in crate::campaign) use self::part::RowRecord;
pub(in crate::campaign) use self::sweep_text::parse as parse_sweep;
pub(in crate::campaign) use self::swept::unknown_symptoms;
use super::Context;
use super::error::{CampaignError, MutantsError};
use super::kernel::KernelChoice;
use super::part::PartRequest;
use super::suite::{KernelJob, KernelResults, Suite, choose};
use crate::host::choice::KvmHost;
use crate::host::kernel_request::KernelRequest;
use crate::judge::{Outcome, ScenarioResult};
use crate::report::matrix::{Cell, Fate, Matrix, MutantRow};
use unwindlab_scenario::Loaded;
use unwindlab_scenario::library::LibraryError;

/// The row of the kernel without a mutant.
const CONTROL: &str = "(no mutant)";

/// Which mutants to test, and how.
#[derive(Debug, Clone, Default)]
pub struct MutantsRequest {
    /// Only mutants of these names; all where there are none.
    pub only: Vec<String>,
    /// The scenarios or sweeps that test them.
    pub test: MutantTest,
    /// The kernel that the mutants are made of.
    pub base: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
    /// The part that is made and its file, if there is one.
    pub part: Option<PartRequest>,
}

/// Which scenarios or sweeps test the mutants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum MutantTest {
    /// The scenarios that each mutant names; the whole library where it names none.
    #[default]
    OwnScenarios,
    /// These scenarios, or the whole library where there are none, on every mutant.
    Scenarios(Vec<PathBuf>),
    /// The sweep that each mutant names, where it does.
    Sweep,
}

/// Builds and tests mutants; `tell` gets each row as soon as it is known.
///
/// # Errors
/// [`CampaignError`].
pub fn mutants(
    request: &MutantsRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(&MutantRow) -> io::Result<()>,
) -> Result<Matrix, CampaignError> {
    let mutants = chosen(&request.only, &request.base)?;
    if request.test == MutantTest::Sweep {
        return swept::mutants(request, &mutants, context, tell);
    }
    let base = request.base.build_spec()?;
    let suite = Suite {
        library: library(&request.test, &mutants, context)?,
        kvm_host: request.kvm_host,
        context,
    };
    let names: Vec<String> = suite
        .library
        .iter()
        .map(|loaded| String::clone(&loaded.scenario.name))
        .collect();
    let jobs = jobs(&base, &mutants, &names, &request.test)?;
    let all: Vec<&Mutant> = mutants.iter().collect();
    let mut part = MutantsPart::open(request, &all, (&names, &suite.library), context)?;
    let of_jobs = [None].into_iter().chain(mutants.iter().map(Some));
    let left = jobs.into_iter().zip(of_jobs);
    let (jobs, of_jobs): (Vec<KernelJob>, Vec<Option<&Mutant>>) =
        left.filter(|(_, mutant)| part.is_left(*mutant)).unzip();
    suite.run_each(&jobs, |at, results| {
        let row = row(of_jobs.get(at).copied().flatten(), results);
        tell(&row)?;
        part.take(row)
    })?;
    let mut matrix = Matrix::new(names);
    matrix.rows = part.rows();
    Ok(matrix)
}

/// The library, and those long scenarios that a mutant names.
fn library(
    test: &MutantTest,
    mutants: &[Mutant],
    context: Context<'_>,
) -> Result<Vec<Loaded>, CampaignError> {
    if let MutantTest::Scenarios(named) = test {
        return context.open(named);
    }
    let mut scenarios = context.open(&[])?;
    let known = |name: &String| scenarios.iter().any(|it| *it.scenario.name == *name);
    let named = mutants.iter().flat_map(|mutant| &mutant.scenarios);
    let long: BTreeSet<PathBuf> = named
        .filter(|name| !known(name))
        .map(PathBuf::from)
        .collect();
    for name in long {
        match context.open(&[name]) {
            Ok(found) => scenarios.extend(found),
            // `jobs` says so with the mutant's name.
            Err(CampaignError::Library(LibraryError::NotFound { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(scenarios)
}

/// The mutants that are asked for; all that change what `base` consists of where none is.
fn chosen(only: &[String], base: &KernelChoice) -> Result<Vec<Mutant>, CampaignError> {
    let mut all = header::mutants()?;
    if only.is_empty() {
        all.retain(|mutant| changes(mutant, base));
    }
    let mut all = choose(all, |mutant| &mutant.name, only, "mutant")?;
    let lacking = all.iter().find_map(|mutant| {
        let of = mutant.of.iter().find(|it| !has(base, it))?;
        Some((mutant.name.clone(), of.clone()))
    });
    if let Some((mutant, of)) = lacking {
        return Err(MutantsError::Without { mutant, of }.into());
    }
    // A header is compiled into most of the kernel: those that change one are built in a row.
    all.sort_by_key(|mutant| {
        let text = String::from_utf8_lossy(&mutant.patch.content).into_owned();
        let in_header = text
            .lines()
            .any(|line| line.starts_with("+++ b/") && line.ends_with(".h"));
        (in_header, mutant.name.clone())
    });
    Ok(all)
}

/// Whether a mutant is one of this kernel: of a proposal and fixes that it has, or of the kernel itself if it
/// has no proposal.
fn changes(mutant: &Mutant, base: &KernelChoice) -> bool {
    match mutant.of.is_empty() {
        false => mutant.of.iter().all(|of| has(base, of)),
        true => !base.patch.iter().any(|it| it.starts_with("proposal:")),
    }
}

/// Whether a kernel has this proposal or fix.
fn has(base: &KernelChoice, patch: &str) -> bool {
    let is_it =
        |given: &String| given == patch || (given == "fix:all" && patch.starts_with("fix:"));
    base.patch.iter().any(is_it)
}

/// The kernel without a mutant, then each mutant, each with its scenarios.
fn jobs(
    base: &BuildSpec,
    mutants: &[Mutant],
    names: &[String],
    test: &MutantTest,
) -> Result<Vec<KernelJob>, MutantsError> {
    let everything = matches!(test, MutantTest::Scenarios(_));
    let mut jobs = vec![KernelJob {
        request: KernelRequest::Build(base.clone()),
        only: None,
    }];
    for mutant in mutants {
        if let Some(unknown) = mutant.scenarios.iter().find(|it| !names.contains(it))
            && !everything
        {
            return Err(MutantsError::NoScenario {
                patch: mutant.patch.name.clone(),
                scenario: unknown.clone(),
            });
        }
        let mut spec = base.clone();
        spec.patches.push(mutant.patch.clone());
        jobs.push(KernelJob {
            request: KernelRequest::Build(spec),
            only: (!everything && !mutant.scenarios.is_empty()).then(|| mutant.scenarios.clone()),
        });
    }
    let all_name_theirs = mutants.iter().all(|it| !it.scenarios.is_empty());
    if !everything
        && all_name_theirs
        && let Some(control) = jobs.first_mut()
    {
        // The scenarios that some mutant is to be killed by must pass without one.
        let mut used: Vec<String> = mutants
            .iter()
            .flat_map(|mutant| mutant.scenarios.iter().cloned())
            .collect();
        used.sort();
        used.dedup();
        control.only = Some(used);
    }
    Ok(jobs)
}

fn row(mutant: Option<&Mutant>, results: KernelResults) -> MutantRow {
    let name = mutant.map_or(CONTROL, |mutant| &mutant.name).to_owned();
    let falls = mutant
        .map(|mutant| mutant.falls.clone())
        .unwrap_or_default();
    let results = match results {
        Ok(results) => results,
        Err(error) => {
            return MutantRow {
                name,
                falls,
                cells: Vec::new(),
                fate: Fate::Untested(error.to_string()),
            };
        }
    };
    let cells: Vec<(String, Cell)> = results
        .iter()
        .map(|result| (result.name.clone(), cell(result)))
        .collect();
    let fate = match mutant {
        Some(mutant) => fate(&mutant.falls, &results),
        None => control(&results),
    };
    MutantRow {
        name,
        falls,
        cells,
        fate,
    }
}

fn cell(result: &ScenarioResult) -> Cell {
    let fallen = result.fallen();
    if !result.is_tested() {
        Cell::Untested(result.outcome)
    } else if fallen.is_empty() {
        match result.outcome {
            Outcome::Pass | Outcome::ExpectedFailure => Cell::Pass,
            // It is not right, but no invariant says why: that is no kill by one.
            other => Cell::Unexplained(other),
        }
    } else {
        Cell::Fell(fallen.into_iter().map(str::to_owned).collect())
    }
}

/// The fate of a mutant on which these invariants fell; nothing if none did.
fn caught(falls: &[String], fallen: &BTreeSet<String>) -> Option<Fate> {
    if fallen.iter().any(|it| falls.contains(it)) {
        return Some(Fate::Killed);
    }
    let others: Vec<String> = fallen.iter().cloned().collect();
    (!others.is_empty()).then_some(Fate::Misjudged(others))
}

fn fate(falls: &[String], results: &[ScenarioResult]) -> Fate {
    let fallen = results.iter().flat_map(|result| result.fallen());
    if let Some(fate) = caught(falls, &fallen.map(str::to_owned).collect()) {
        return fate;
    }
    let untested = results.iter().find(|result| !result.is_tested());
    match untested {
        Some(result) => Fate::Untested(result.brief()),
        None => not_caught(results.iter().flat_map(ScenarioResult::findings)),
    }
}

/// The fate of a mutant on which nothing fell but what matches these findings.
fn not_caught<'a>(findings: impl Iterator<Item = &'a str>) -> Fate {
    let findings: BTreeSet<String> = findings.map(str::to_owned).collect();
    match findings.is_empty() {
        true => Fate::Survived,
        false => Fate::Excused(findings.into_iter().collect()),
    }
}

/// The fate of the kernel without a mutant: it must pass whatever kills a mutant.
fn control(results: &[ScenarioResult]) -> Fate {
    let good = |result: &&ScenarioResult| {
        matches!(
            result.outcome,
            Outcome::Pass | Outcome::ExpectedFailure | Outcome::Skip
        )
    };
    match results.iter().find(|result| !good(result)) {
        None => Fate::Clean,
        Some(result) if result.is_tested() => Fate::Unclean(result.brief()),
        Some(result) => Fate::Untested(result.brief()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::judge::result::JudgedViolation;
    use unwindlab_oracle::invariant::{INVARIANTS, Violation};

    fn violated(invariant: &str, finding: Option<&str>) -> ScenarioResult {
        let outcome = match finding {
            Some(_) => Outcome::ExpectedFailure,
            None => Outcome::Fail,
        };
        let mut result = ScenarioResult::not_run("a", outcome, String::new());
        result.violations.push(JudgedViolation {
            violation: Violation {
                invariant: invariant.to_owned(),
                message: String::new(),
                events: Vec::new(),
                log: Vec::new(),
                instruction: None,
                receiver: None,
            },
            finding: finding.map(str::to_owned),
        });
        result
    }

    /// A name that is none, such as two without a comma, would never fall.
    #[test]
    fn every_mutant_names_invariants_and_scenarios_that_there_are() {
        let invariants = INVARIANTS.iter().map(|it| it.id).collect::<BTreeSet<_>>();
        for mutant in unwindlab_guest_kernel::build::header::mutants().unwrap() {
            assert!(!mutant.falls.is_empty(), "{}", mutant.name);
            for id in &mutant.falls {
                assert!(invariants.contains(id.as_str()), "{}: {id}", mutant.name);
            }
            for name in &mutant.scenarios {
                let is_in = |folder: &str| Path::new(&format!("{folder}/{name}.yaml")).exists();
                let exists = is_in("scenarios") || is_in("scenarios/long");
                assert!(exists, "{}: {name}", mutant.name);
            }
        }
    }

    #[test]
    fn mutants_of_a_proposal_are_tested_on_it() {
        let of = |base: &KernelChoice| {
            let names = chosen(&[], base).unwrap().into_iter();
            names.flat_map(|mutant| mutant.of).collect::<BTreeSet<_>>()
        };
        let proposal = "proposal:sframe".to_owned();
        let base = KernelChoice {
            patch: vec![proposal.clone()],
            ..KernelChoice::default()
        };
        assert_eq!(of(&KernelChoice::default()), BTreeSet::new());
        assert_eq!(of(&base), [proposal].into());
        let with = |fixes: &[&str]| KernelChoice {
            patch: { ["proposal:tracefs-stack"].iter() }
                .chain(fixes)
                .map(|it| (*it).to_owned())
                .collect(),
            ..KernelChoice::default()
        };
        let fix = "fix:F002".to_owned();
        assert!(!of(&with(&[])).contains(&fix));
        assert!(of(&with(&["fix:F002"])).contains(&fix));
        assert!(of(&with(&["fix:all"])).contains(&fix));
        let only = [chosen(&[], &base).unwrap().remove(0).name];
        assert!(chosen(&only, &base).is_ok());
        let error = chosen(&only, &KernelChoice::default()).unwrap_err();
        let told = "give `--patch proposal:sframe`";
        assert!(error.to_string().contains(told), "{error}");
    }

    #[test]
    fn what_matches_a_finding_kills_no_mutant() {
        let falls = ["M1".to_owned()];
        let excused = violated("M1", Some("F001"));
        let of_f001 = Fate::Excused(vec!["F001".to_owned()]);
        assert_eq!(fate(&falls, std::slice::from_ref(&excused)), of_f001);
        assert_eq!(fate(&falls, &[excused, violated("M1", None)]), Fate::Killed);
        let passed = ScenarioResult::not_run("a", Outcome::Pass, String::new());
        assert_eq!(fate(&falls, &[passed]), Fate::Survived);
    }
}
