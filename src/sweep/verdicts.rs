//! Trials of a sweep to verdicts, and verdicts to distinct failures.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Step, SweptTrial};
use crate::invariant::{Check, Invariant, Violation};
use crate::report::result::JudgedViolation;
use crate::report::{MatchFinding, Outcome, ScenarioResult};
use crate::scenario::KernelSymbols;
use crate::trace::Trace;
use crate::trace::recording::{Recording, TrialEnd};

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

/// Last lines of the console of a guest that died which are kept.
const CONSOLE_LINES: usize = 60;

/// One distinct failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The points that show it, in order.
    pub points: Vec<u32>,
    /// Of the first of them: how it ended, or what fell.
    pub messages: Vec<String>,
}

/// All verdicts of a sweep so far.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
pub struct Verdicts<'a> {
    invariants: &'a [&'a dyn Invariant],
    findings: &'a dyn MatchFinding,
    symbols: &'a dyn KernelSymbols,
    common: Recording,
    path: Vec<Step>,
    /// Points that were tried.
    pub tried: BTreeSet<u32>,
    /// Points that were not met again.
    pub missed: Vec<u32>,
    /// Points of trials that hung or panicked and were made once more, and what was seen.
    pub unsteady: Vec<(u32, TrialEnd)>,
    /// Points of trials that the KVM host failed in and that were made once more, and what it did.
    pub failed: Vec<(u32, String)>,
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
        invariants: &'a [&'a dyn Invariant],
        findings: &'a dyn MatchFinding,
        symbols: &'a dyn KernelSymbols,
        common: Recording,
        path: Vec<Step>,
    ) -> Self {
        Self {
            invariants,
            findings,
            symbols,
            common,
            path,
            tried: BTreeSet::new(),
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

    /// Takes the end of a trial that is made once more.
    pub fn again(&mut self, point: u32, end: TrialEnd) {
        match end {
            TrialEnd::Infra { reason } => self.failed.push((point, reason)),
            other => self.unsteady.push((point, other)),
        }
    }

    /// Judges a trial; the whole of it, if anything is wrong.
    pub fn judge(&mut self, trial: &SweptTrial) -> Option<ScenarioResult> {
        // As of a trial that was run alone.
        self.common.ring_bytes.clone_from(&trial.rings);
        self.common.injections.clone_from(&trial.injections);
        self.common.console.clone_from(&trial.console);
        self.common.end.clone_from(&trial.end);
        let trace = Trace::decode(&self.common);
        let mut symptom = Symptom {
            died: died(&trial.end),
            fell: BTreeSet::new(),
        };
        let mut messages = Vec::new();
        let mut violations = Vec::new();
        if let Some(died) = symptom.died {
            messages.push(match &trial.end {
                TrialEnd::Panic { line } => format!("{died}: {line}"),
                _ => died.to_owned(),
            });
            let lines: Vec<&str> = trial.console.lines().collect();
            let last = lines.iter().rev().take(CONSOLE_LINES).rev();
            messages.extend(last.map(|line| (*line).to_owned()));
        }
        for invariant in self.invariants {
            match invariant.check(&trace) {
                Check::Violated(list) => {
                    for violation in list {
                        violations.extend(self.note(violation, &trace, &mut symptom));
                    }
                }
                Check::Holds { .. } => {
                    *self.exercised.entry(invariant.id()).or_default() += 1;
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
            points: Vec::new(),
            messages: Vec::new(),
        });
        if failure
            .points
            .first()
            .is_none_or(|first| trial.point < *first)
        {
            failure.messages.clone_from(&all);
        }
        failure.points.push(trial.point);
        failure.points.sort_unstable();
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
        trace: &Trace,
        symptom: &mut Symptom,
    ) -> Option<JudgedViolation> {
        if symptom.died.is_some() {
            return None;
        }
        let finding = self.findings.matching(&violation, trace, self.symbols);
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
