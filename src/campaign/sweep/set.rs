//! The sweeps that cover the ways into the kernel and out of it, for those who do not know which
//! scenario opens which window.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{PathRequest, PointChoice, SweepEvent, SweepOptions, SweepRequest, SweptPath, sweep};
use crate::campaign::Context;
use crate::campaign::error::{CampaignError, SweepRequestError, SweepTextError};
use crate::campaign::kernel::KernelChoice;
use crate::campaign::mutants::parse_sweep;
use crate::host::choice::KvmHost;
use crate::host::provider::TestKernel;
use crate::judge::outcome::OutcomeClass;
use crate::judge::sweep::SweepSymptom;
use unwindlab_scenario::{ResolveError, resolve};

/// The set, a line for each sweep: what is swept, a colon, the sweep.
const SET: &str = include_str!("../../../scenarios/sweeps.txt");
/// The word for each instruction only the first time that it is executed.
const STATIC: &str = "--static";
/// The word for other vCPUs that run on the way to a point.
const FREE: &str = "--free";

/// A sweep of the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetSweep {
    /// The way into the kernel and out of it.
    pub kind: String,
    /// The sweep, as after `unwindlab sweep`.
    pub text: String,
    path: PathRequest,
    once: bool,
    free: bool,
}

/// Which kernel the set is tried on, and how.
#[derive(Debug, Clone)]
pub struct SetRequest {
    /// The kernel under test.
    pub kernel: KernelChoice,
    /// Where KVM comes from.
    pub kvm_host: KvmHost,
    /// Machines that work side by side.
    pub jobs: u32,
    /// The time for the trials of all sweeps, if it is limited.
    pub budget: Option<Duration>,
    /// Each instruction of each path only the first time that it is executed.
    pub once: bool,
    /// Also the boundaries for which the next one stands.
    pub each: bool,
    /// Whether returns to user mode are noted; `None`: as each scenario says.
    pub witness: Option<bool>,
}

/// What came of a sweep of the set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetResult {
    /// Boundaries of its path that were to be tried.
    pub chosen: usize,
    /// Points that were tried.
    pub tried: usize,
    /// The time for them.
    pub elapsed: Duration,
    /// What it says of the kernel; `None` if the kernel lacks what the scenario needs.
    pub class: Option<OutcomeClass>,
    /// Why points were not tried, if some were not.
    pub why_not: Option<String>,
    /// What listed findings say of it, and at how many points that was.
    pub findings: Vec<(SweepSymptom, usize)>,
}

impl SetResult {
    /// What it is called: a pass is one in which nothing fell, not even what is known.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        match self.class {
            Some(OutcomeClass::Good) if self.findings.is_empty() => "pass",
            Some(OutcomeClass::Good) => "expected-failure",
            Some(OutcomeClass::Bad) => "fail",
            Some(OutcomeClass::Untested) => "untested",
            None => "skip",
        }
    }
}

/// What happens while the set is tried.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
#[derive(Clone, Copy)]
pub enum SetEvent<'a> {
    /// The trials of a sweep are made.
    Swept(&'a SweptPath<'a>),
    /// A sweep is over.
    Row(&'a SetSweep, &'a SetResult),
}

/// The sweeps of the set, in their order.
///
/// # Errors
/// [`SweepTextError`].
pub fn sweeps() -> Result<Vec<SetSweep>, SweepTextError> {
    let lines = SET.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(": "))
        .map(|(kind, text)| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let is_option = |word: &&str| [STATIC, FREE].contains(word);
            let others: Vec<&str> = words.iter().copied().filter(|it| !is_option(it)).collect();
            Ok(SetSweep {
                kind: kind.to_owned(),
                text: text.to_owned(),
                path: parse_sweep(&others.join(" "))?,
                once: words.contains(&STATIC),
                free: words.contains(&FREE),
            })
        })
        .collect()
}

impl SetSweep {
    /// The sweep of a kernel.
    pub(in crate::campaign) fn request(
        &self,
        of: &SetRequest,
        budget: Option<Duration>,
    ) -> SweepRequest {
        SweepRequest {
            kernel: of.kernel.clone(),
            kvm_host: of.kvm_host,
            points: PointChoice::In {
                functions: Vec::new(),
                once: self.once || of.once,
                each: of.each,
            },
            options: SweepOptions {
                jobs: of.jobs,
                budget,
                others_run: self.free,
                witness: of.witness,
                ..SweepOptions::default()
            },
            ..SweepRequest::of(self.path.clone())
        }
    }

    /// What results call it.
    pub(in crate::campaign) fn name(&self) -> String {
        format!("sweep {}", self.text)
    }

    /// The name of its scenario.
    pub(in crate::campaign) fn scenario(&self) -> Cow<'_, str> {
        self.path.scenario.to_string_lossy()
    }

    /// What the kernel lacks of what the sweep's scenario needs.
    pub(in crate::campaign) fn lacks(
        &self,
        kernel: &dyn TestKernel,
        context: Context<'_>,
    ) -> Result<Option<String>, CampaignError> {
        let scenarios = context.open(&[PathBuf::from(&self.path.scenario)])?;
        Ok(scenarios.iter().find_map(|loaded| {
            let (symbols, hash) = (kernel.symbols(), kernel.hash());
            match resolve(&loaded.file, &loaded.scenario, symbols, hash) {
                Err(ResolveError::Unsupported(lack)) => Some(lack.to_string()),
                _ => None,
            }
        }))
    }
}

/// Tries all sweeps of the set, one after the other; what they say of the kernel together. Each gets
/// an equal part of the time that is left.
///
/// # Errors
/// [`CampaignError`] where the kernel cannot be had, or an event could not be told. A sweep that
/// breaks off is a row.
pub fn sweep_set(
    request: &SetRequest,
    context: Context<'_>,
    tell: &mut dyn FnMut(SetEvent<'_>) -> io::Result<()>,
) -> Result<OutcomeClass, CampaignError> {
    let sweeps = sweeps().map_err(SweepRequestError::from)?;
    let mut all = OutcomeClass::Good;
    let mut left = request.budget;
    for (at, one) in sweeps.iter().enumerate() {
        let to_come = u32::try_from(sweeps.len() - at).unwrap_or(u32::MAX);
        let share = left.map(|left| left / to_come);
        let begin = Instant::now();
        let result = swept(one, request, share, context, tell)?;
        left = left.map(|left| left.saturating_sub(result.elapsed.min(begin.elapsed())));
        all = match (all, result.class) {
            (OutcomeClass::Bad, _) | (_, Some(OutcomeClass::Bad)) => OutcomeClass::Bad,
            (OutcomeClass::Untested, _) | (_, Some(OutcomeClass::Untested)) => {
                OutcomeClass::Untested
            }
            _ => OutcomeClass::Good,
        };
        tell(SetEvent::Row(one, &result))?;
        context.check_interrupt()?;
    }
    Ok(all)
}

/// Tries one sweep.
fn swept(
    one: &SetSweep,
    request: &SetRequest,
    budget: Option<Duration>,
    context: Context<'_>,
    tell: &mut dyn FnMut(SetEvent<'_>) -> io::Result<()>,
) -> Result<SetResult, CampaignError> {
    let kernel = context.fetch(&request.kernel.request()?)?;
    if let Some(lack) = one.lacks(kernel.as_ref(), context)? {
        return Ok(SetResult {
            why_not: Some(lack),
            ..SetResult::default()
        });
    }
    let mut result = SetResult::default();
    let mut cut = None;
    let mut sweep_request = one.request(request, budget);
    sweep_request.options.keeps_replays = true;
    let mut known = true;
    let summary = sweep(&sweep_request, context, &mut |event| {
        let SweepEvent::Ended(swept) = event else {
            return Ok(());
        };
        result.chosen = swept.summary.chosen;
        result.tried = swept.summary.verdicts.tried.len();
        result.elapsed = swept.summary.elapsed;
        cut = swept.summary.cut;
        let failures = &swept.summary.verdicts.failures;
        known = failures.keys().all(SweepSymptom::is_known);
        let findings = failures.iter().filter(|(symptom, _)| symptom.is_known());
        let points = findings.map(|(symptom, it)| (symptom.clone(), it.points.len()));
        result.findings = points.collect();
        tell(SetEvent::Swept(swept))
    });
    match summary {
        Ok(summary) => {
            result.class = Some(summary.class());
            result.why_not = match (cut, summary.incomplete) {
                (Some(_), _) => Some("budget used up".to_owned()),
                (None, true) => Some("points were not met again, or not steady".to_owned()),
                (None, false) => None,
            };
        }
        // The sweeps after one that breaks off are tried all the same. What it found counts.
        Err(error) => {
            result.class = Some(match known {
                true => OutcomeClass::Untested,
                false => OutcomeClass::Bad,
            });
            result.why_not = Some(error.to_string());
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use unwindlab_guest_kernel::build::header;

    use super::*;

    #[test]
    fn every_sweep_of_the_set_is_one() {
        let sweeps = sweeps().unwrap();
        assert!(sweeps.len() > 25);
        for one in sweeps {
            let file = format!("{}.yaml", one.path.scenario.display());
            let is_in = |folder: &&str| Path::new(folder).join(&file).exists();
            let found = ["scenarios", "scenarios/long"].iter().any(is_in);
            assert!(found, "{}: {file}", one.kind);
        }
    }

    #[test]
    fn every_sweep_that_a_mutant_names_is_in_the_set() {
        let set: Vec<PathRequest> = sweeps().unwrap().into_iter().map(|it| it.path).collect();
        for mutant in header::mutants().unwrap() {
            let Some(text) = mutant.sweep else { continue };
            let path = parse_sweep(&text).unwrap();
            assert!(set.contains(&path), "{}: {text}", mutant.name);
        }
    }
}
