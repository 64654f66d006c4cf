//! What trials show in each of which a tracer sits at another place of a path.

mod place;
mod record;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::sweep::SweepSymptom;
use super::{Outcome, ScenarioResult};
use unwindlab_oracle::trace::{Event, EventKind, Trace};
use unwindlab_scenario::KernelSymbols;

pub use place::{Company, Place, Seat, places};
pub use record::PlaceRecord;

/// The name, in its trial, of the event that sits at the place.
pub const ASKER: &str = "asker";

/// What came of a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// A tracer asked there, and nothing is violated.
    Passed,
    /// A tracer asked there, and what is violated is a finding.
    Known,
    /// A tracer asked there, and something else is violated, or the guest died.
    Failed,
    /// The tracer was there and took samples, but the kernel took none of its requests.
    Declined,
    /// The workload did not come there with the tracer.
    NotReached,
    /// The kernel does not let a tracer sit there: its error.
    Refused(String),
    /// The trial says nothing: why.
    Untested(String),
}

/// A place, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PlaceVerdict {
    /// The place.
    pub place: Place,
    /// What came of it.
    pub fate: Fate,
    /// Requests of the tracer at the place, by the outermost function of the kernel's chain: how
    /// the task had entered the kernel.
    pub entered_by: BTreeMap<String, u64>,
}

/// One distinct failure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlaceFailure {
    /// The places that show it, in order.
    pub places: Vec<String>,
    /// What the first of them violated, in lines.
    pub messages: Vec<String>,
}

/// All places so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestVerdicts {
    /// The places, in the order of the path.
    pub places: Vec<PlaceVerdict>,
    /// The distinct failures.
    pub failures: BTreeMap<SweepSymptom, PlaceFailure>,
    /// At how many places each invariant was exercised.
    pub exercised: BTreeMap<String, u32>,
}

impl RequestVerdicts {
    /// Takes the trial of a place; whether it is the first that fails in its way.
    pub fn take(
        &mut self,
        place: Place,
        result: &ScenarioResult,
        symbols: &dyn KernelSymbols,
    ) -> bool {
        self.add(PlaceRecord::of(place, result, symbols))
    }

    /// Takes the record of a place; whether it is the first that fails in its way.
    pub fn add(&mut self, record: PlaceRecord) -> bool {
        let symptom = record.symptom();
        for invariant in record.exercised {
            let places = self.exercised.entry(invariant).or_default();
            *places = places.saturating_add(1);
        }
        let mut is_first = false;
        if let Some(symptom) = symptom {
            let failure = self.failures.entry(symptom).or_default();
            is_first = failure.places.is_empty();
            if is_first {
                failure.messages = record.messages;
            }
            failure.places.push(record.verdict.place.to_string());
        }
        self.places.push(record.verdict);
        is_first
    }

    /// How many places had this fate.
    #[must_use]
    pub fn count(&self, is: impl Fn(&Fate) -> bool) -> usize {
        self.places.iter().filter(|it| is(&it.fate)).count()
    }
}

/// What the trial's invariants and its end say, as of a sweep's trial.
fn symptom(result: &ScenarioResult) -> SweepSymptom {
    let died = result.outcome.is_death().then(|| result.outcome.name());
    // What is cut short may look like a violation.
    let fell = result.violations.iter().filter(|_| died.is_none());
    let fell = fell.map(|it| (it.violation.invariant.clone(), it.finding.clone()));
    SweepSymptom {
        died,
        fell: fell.collect(),
    }
}

/// Violations, one of each invariant; otherwise the reasons.
fn messages(result: &ScenarioResult) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let first = result.violations.iter();
    let first = first.filter(|it| seen.insert(&it.violation.invariant));
    let lines: Vec<String> = first.map(|it| it.violation.line()).collect();
    match (result.outcome, lines.is_empty()) {
        (Outcome::Fail | Outcome::ExpectedFailure, false) => lines,
        _ => result.reasons.clone(),
    }
}

fn fate(result: &ScenarioResult, asked: Option<&Asked>) -> Fate {
    let reason = || result.reasons.first().cloned().unwrap_or_default();
    let is_violated = !result.violations.is_empty();
    let reached = asked.map_or((0, 0), |it| (it.samples, it.requests()));
    match result.outcome {
        Outcome::Skip | Outcome::GuestSkip => Fate::Refused(reason()),
        // An event that cannot be opened is the agent's failure.
        Outcome::BootError if reason().contains(&format!("`{ASKER}`")) => Fate::Refused(reason()),
        Outcome::Hang | Outcome::GuestPanic | Outcome::GuestMisbehaved | Outcome::Flaky => {
            Fate::Failed
        }
        Outcome::BootError | Outcome::Timeout | Outcome::InfraError => Fate::Untested(reason()),
        Outcome::Fail if is_violated => Fate::Failed,
        Outcome::ExpectedFailure => Fate::Known,
        Outcome::Pass | Outcome::Fail if reached.0 == 0 => Fate::NotReached,
        Outcome::Pass | Outcome::Fail if reached.1 == 0 => Fate::Declined,
        Outcome::Fail => Fate::Untested(reason()),
        Outcome::Pass => Fate::Passed,
    }
}

/// What the tracer at the place got of the workload's tasks.
#[derive(Debug, Default)]
struct Asked {
    samples: u64,
    entered_by: BTreeMap<String, u64>,
}

impl Asked {
    fn of(trace: &Trace, symbols: &dyn KernelSymbols) -> Self {
        let mut asked = Self::default();
        let mut pids: BTreeSet<u32> = trace.threads.iter().map(|thread| thread.pid).collect();
        for event in &trace.events {
            match &event.kind {
                EventKind::Fork { pid, ppid, .. } if pids.contains(ppid) => {
                    pids.insert(*pid);
                }
                EventKind::Sample(sample) if is_askers(trace, event) => {
                    if !event.pid.is_some_and(|pid| pids.contains(&pid)) {
                        continue;
                    }
                    asked.samples += 1;
                    if sample.cookie().is_some() {
                        let outermost = sample.kernel_chain().last();
                        let entry = outermost.and_then(|at| symbols.resolve(*at));
                        let entry = entry.map_or_else(|| "?".to_owned(), |(name, _)| name);
                        *asked.entered_by.entry(entry).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        asked
    }

    fn requests(&self) -> u64 {
        self.entered_by.values().sum()
    }
}

/// Whether the event at the place wrote a record.
fn is_askers(trace: &Trace, event: &Event) -> bool {
    let of = event.event.and_then(|event| trace.session.get(event));
    let specs = trace.tracing.as_ref().map(|it| it.events.as_slice());
    let spec = of.and_then(|of| specs?.get(of.spec as usize));
    spec.is_some_and(|spec| spec.name == ASKER)
}

#[cfg(test)]
mod tests;
