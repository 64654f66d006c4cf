//! Trials of a sweep to verdicts, and verdicts to distinct failures.

use std::collections::{BTreeMap, BTreeSet};

use super::kept::{Kept, KeptFailure};
use crate::judge::result::JudgedViolation;
use crate::judge::{MatchFinding, Outcome, ScenarioResult};
use crate::plan::sweep::{Boundary, Point, Step, SweptTrial, boundaries};
use crate::scenario::KernelSymbols;
use unwindlab_oracle::invariant::{Check, Evidence, Invariant, Violation};
use unwindlab_oracle::trace::recording::{Recording, TrialEnd};
use unwindlab_oracle::trace::{LabLog, Trace};

/// What a trial showed: how it ended if it did not complete, and the invariants that fell, each with
/// the finding it is, if it is one. Two trials that show the same are one failure.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symptom {
    /// `guest-panic` or `hang`; nothing where the trial came to its end.
    pub died: Option<&'static str>,
    /// Invariants, and findings.
    pub fell: BTreeSet<(String, Option<String>)>,
}

impl Symptom {
    /// Whether everything is a finding.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.died.is_none() && self.fell.iter().all(|(_, finding)| finding.is_some())
    }
}

/// How many pairs a sweep has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pairs {
    /// Boundaries for the first NMI.
    pub firsts: u32,
    /// Those behind which every boundary is tried.
    pub stand_for_all: u32,
    /// About how many trials that makes.
    pub trials: u64,
    /// How many pairs those that were tried stand for.
    pub stood_for: u64,
}

/// Last lines of the console of a guest that died which are kept.
const CONSOLE_LINES: usize = 60;

/// One distinct failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The points that show it.
    pub points: BTreeSet<Point>,
    /// Of the first of them: how it ended, or what fell.
    pub messages: Vec<String>,
}

/// All verdicts of a sweep so far.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
pub struct Verdicts<'a> {
    invariants: &'a [Invariant],
    findings: &'a dyn MatchFinding,
    symbols: &'a dyn KernelSymbols,
    common: Recording,
    path: Vec<Step>,
    /// The lab client's log up to where the path begins, and how many of its slots are finished.
    log: Option<(LabLog, u64)>,
    /// Points that were tried.
    pub tried: BTreeSet<Point>,
    /// How many of them before this boot.
    pub before: usize,
    /// Of a sweep of pairs: how many there are.
    pub pairs: Option<Pairs>,
    /// Points that were not met again.
    pub missed: Vec<Point>,
    /// Points of trials that hung or panicked and were made once more, and what was seen.
    pub unsteady: Vec<(Point, TrialEnd)>,
    /// Points of trials that the KVM host failed in and that were made once more, and what it did.
    pub failed: Vec<(Point, String)>,
    /// Points with nothing wrong.
    pub passed: u32,
    /// What went wrong.
    pub failures: BTreeMap<Symptom, Failure>,
    /// Invariants that were exercised, and on how many points.
    pub exercised: BTreeMap<&'static str, u32>,
}

impl<'a> Verdicts<'a> {
    /// Of a sweep whose path is known.
    #[must_use]
    pub fn new(
        invariants: &'a [Invariant],
        findings: &'a dyn MatchFinding,
        symbols: &'a dyn KernelSymbols,
        mut common: Recording,
        path: Vec<Step>,
    ) -> Self {
        Self {
            invariants,
            findings,
            symbols,
            log: common.lab.take().map(|log| {
                let finished = log.finished();
                (log, finished)
            }),
            common,
            path,
            tried: BTreeSet::new(),
            before: 0,
            pairs: None,
            missed: Vec::new(),
            unsteady: Vec::new(),
            failed: Vec::new(),
            passed: 0,
            failures: BTreeMap::new(),
            exercised: BTreeMap::new(),
        }
    }

    /// What all trials have in common.
    #[must_use]
    pub fn common(&self) -> &Recording {
        &self.common
    }

    /// Every boundary of the path.
    #[must_use]
    pub fn path(&self) -> &[Step] {
        &self.path
    }

    /// Boundaries of the path at which an NMI was tried.
    #[must_use]
    pub fn numbers(&self) -> BTreeSet<u32> {
        self.tried.iter().map(|point| point.number).collect()
    }

    /// Takes up what an earlier sweep found; its points get their numbers in this path. Those that it does not
    /// come by keep theirs.
    pub fn resume(&mut self, kept: Kept) {
        let numbers: BTreeMap<Boundary, u32> =
            boundaries(&self.path).into_iter().zip(0..).collect();
        let renumbered = |point: Point| Point {
            number: numbers.get(&point.at).copied().unwrap_or(point.number),
            ..point
        };
        self.before = kept.tried.len();
        self.tried = kept.tried.into_iter().map(renumbered).collect();
        self.passed = kept.passed;
        for failure in kept.failures {
            let died = failure.died.as_deref().map(|died| match died {
                GUEST_PANIC => GUEST_PANIC,
                _ => Outcome::Hang.name(),
            });
            let fell = failure.fell;
            let points = failure.points.into_iter().map(renumbered).collect();
            let messages = failure.messages;
            self.failures
                .insert(Symptom { died, fell }, Failure { points, messages });
        }
        for invariant in self.invariants {
            if let Some(&points) = kept.exercised.get(invariant.id) {
                self.exercised.insert(invariant.id, points);
            }
        }
    }

    /// All of that, for a later sweep.
    #[must_use]
    pub fn keep(&self, of: super::kept::Of) -> Kept {
        let failure = |(symptom, failure): (&Symptom, &Failure)| KeptFailure {
            died: symptom.died.map(str::to_owned),
            fell: symptom.fell.clone(),
            points: failure.points.clone(),
            messages: failure.messages.clone(),
        };
        let exercised = self.exercised.iter();
        Kept {
            version: super::kept::VERSION,
            of,
            tried: self.tried.clone(),
            passed: self.passed,
            failures: self.failures.iter().map(failure).collect(),
            exercised: exercised
                .map(|(id, points)| ((*id).to_owned(), *points))
                .collect(),
        }
    }

    /// Takes the end of a trial that is made once more.
    pub fn again(&mut self, point: Point, end: TrialEnd) {
        match end {
            TrialEnd::Infra { reason } => self.failed.push((point, reason)),
            other => self.unsteady.push((point, other)),
        }
    }

    /// Judges a trial; the whole of it, if anything is wrong.
    pub fn judge(&mut self, trial: SweptTrial) -> Option<ScenarioResult> {
        // As of a trial that was run alone.
        self.common.ring_bytes = trial.rings;
        self.common.injections = trial.injections;
        self.common.kernel_log = trial.kernel_log;
        self.common.console = trial.console;
        self.common.end = trial.end;
        self.common.lab = match (&self.log, trial.lab) {
            (Some((earlier, first)), Some(later)) => Some(LabLog::join(earlier, *first, later)),
            _ => None,
        };
        let trace = Trace::decode(&self.common);
        let mut symptom = Symptom {
            died: died(&self.common.end),
            fell: BTreeSet::new(),
        };
        let mut messages = Vec::new();
        let mut violations = Vec::new();
        if let Some(died) = symptom.died {
            messages.push(match &self.common.end {
                TrialEnd::Panic { line } => format!("{died}: {line}"),
                _ => died.to_owned(),
            });
            let lines: Vec<&str> = self.common.console.lines().collect();
            let last = lines.iter().rev().take(CONSOLE_LINES).rev();
            messages.extend(last.map(|line| (*line).to_owned()));
        }
        let evidence = Evidence::new(&trace);
        for invariant in self.invariants {
            match invariant.check(&evidence) {
                Check::Violated(list) => {
                    for violation in list {
                        violations.extend(self.note(violation, &evidence, &mut symptom));
                    }
                }
                Check::Holds { .. } => {
                    *self.exercised.entry(invariant.id).or_default() += 1;
                }
                Check::NotExercised { .. } => {}
            }
        }
        self.tried.insert(trial.point);
        if symptom.died.is_none() && symptom.fell.is_empty() {
            self.passed += 1;
            return None;
        }
        let told = violations
            .iter()
            .map(|it: &JudgedViolation| it.violation.line());
        let all: Vec<String> = messages.iter().cloned().chain(told).collect();
        let failure = self.failures.entry(symptom.clone()).or_insert(Failure {
            points: BTreeSet::new(),
            messages: Vec::new(),
        });
        if failure
            .points
            .first()
            .is_none_or(|first| trial.point < *first)
        {
            failure.messages.clone_from(&all);
        }
        failure.points.insert(trial.point);
        let name = format!("point {}", trial.point);
        let mut result = ScenarioResult::not_run(&name, outcome(&symptom), String::new());
        result.reasons = all;
        result.violations = violations;
        result.trace = Some(trace);
        Some(result)
    }

    /// With the finding it is, if it is one. A trial that was cut short lacks what would have come:
    /// that is no violation.
    fn note(
        &self,
        violation: Violation,
        evidence: &Evidence<'_>,
        symptom: &mut Symptom,
    ) -> Option<JudgedViolation> {
        if symptom.died.is_some() {
            return None;
        }
        let finding = self.findings.matching(&violation, evidence, self.symbols);
        let fell = (violation.invariant.clone(), finding.clone());
        symptom.fell.insert(fell);
        Some(JudgedViolation { violation, finding })
    }
}

fn outcome(symptom: &Symptom) -> Outcome {
    match symptom.died {
        Some(GUEST_PANIC) => Outcome::GuestPanic,
        Some(_) => Outcome::Hang,
        None if symptom.is_known() => Outcome::ExpectedFailure,
        None => Outcome::Fail,
    }
}

const GUEST_PANIC: &str = Outcome::GuestPanic.name();

/// What became of a guest that did not come to the trial's end.
fn died(end: &TrialEnd) -> Option<&'static str> {
    match end {
        TrialEnd::Completed => None,
        TrialEnd::Panic { .. } => Some(GUEST_PANIC),
        _ => Some(Outcome::Hang.name()),
    }
}
