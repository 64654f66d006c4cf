//! The report of a run: every outcome, and what shows each failure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use super::code::{Code, Hits, around, hits};
use super::page::page;
use super::records::Record;
use super::sweep::about;
use super::timeline::Timeline;
use crate::judge::Counts;
use crate::judge::outcome::OutcomeClass;
use crate::judge::result::{JudgedViolation, ScenarioResult};
use crate::judge::snapshot::SnapshotComparison;
use crate::report::chains::side_by_side;
use crate::report::json::Setting;
use crate::report::names::Names;
use crate::report::table;
use unwindlab_engine::text::printable;
use unwindlab_oracle::invariant::{Check, Evidence, INVARIANTS};
use unwindlab_oracle::trace::Trace;

/// Violations of one scenario that are shown; of those of one invariant at one place, the first.
const MAX_VIOLATIONS: usize = 8;
/// Reasons and lines of a comparison that are shown.
const MAX_LINES: usize = 200;

/// A run, as it is shown.
#[derive(Debug, Clone, Default)]
pub struct RunReport {
    results: Vec<Shown>,
}

#[derive(Serialize)]
struct Page<'a> {
    setting: &'a Setting,
    seconds: f64,
    summary: String,
    results: &'a [Shown],
    /// What each invariant says.
    invariants: BTreeMap<&'static str, &'static str>,
    /// The heading of each finding that a violation matches.
    findings: BTreeMap<&'a str, String>,
}

/// One scenario.
#[derive(Debug, Clone, Serialize)]
struct Shown {
    name: String,
    outcome: &'static str,
    class: &'static str,
    seconds: f64,
    counts: [u64; 5],
    trials: Option<u32>,
    /// Those that hold, each with the number of things that show it.
    held: Vec<(String, usize)>,
    /// Invariants that were not exercised.
    open: usize,
    reasons: Vec<String>,
    violations: Vec<Violation>,
    /// Violations that are not shown, by invariant.
    more: BTreeMap<String, usize>,
    /// The end of a trial that died without a violation.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<Timeline>,
    /// How the trace differs from its snapshot.
    difference: Vec<String>,
    files: Vec<(String, String)>,
}

/// One violation.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Violation {
    invariant: String,
    message: String,
    finding: Option<String>,
    /// The instruction that the NMI interrupted.
    place: Option<String>,
    code: Option<Code>,
    timeline: Timeline,
    /// The stacks of its records beside each other, where they differ.
    #[serde(skip_serializing_if = "String::is_empty")]
    stacks: String,
}

impl RunReport {
    /// Takes a result; nothing of its trace is kept but what is shown.
    pub fn add(&mut self, result: &ScenarioResult, names: Names<'_>) {
        self.results.push(shown(result, names));
    }

    /// The file.
    ///
    /// # Errors
    /// [`serde_json::Error`] if a value cannot be serialized, which no type here causes.
    pub fn html(
        &self,
        setting: &Setting,
        results: &[ScenarioResult],
        elapsed: Duration,
    ) -> Result<String, serde_json::Error> {
        let violations = self.results.iter().flat_map(|it| &it.violations);
        let findings = { violations }.filter_map(|it| it.finding.as_deref());
        let data = Page {
            setting,
            seconds: elapsed.as_secs_f64(),
            summary: table::summary(results, elapsed),
            results: &self.results,
            invariants: INVARIANTS.iter().map(|it| (it.id, it.title)).collect(),
            findings: findings.map(|id| (id, about(id))).collect(),
        };
        let title = format!("unwindlab run on {}", setting.kernel_release);
        let scripts = [
            include_str!("assets/timeline.js"),
            include_str!("assets/code.js"),
            include_str!("assets/violation.js"),
            include_str!("assets/run.js"),
        ];
        page(&title, &scripts, &data)
    }
}

fn shown(result: &ScenarioResult, names: Names<'_>) -> Shown {
    let Counts {
        samples,
        deferred,
        late,
        lost,
        injections,
        ..
    } = result.counts;
    let held = result.checks.iter().filter_map(|it| match it.check {
        Check::Holds { evidence, .. } => Some((it.invariant.clone(), evidence)),
        _ => None,
    });
    let not_exercised = |check: &Check| matches!(check, Check::NotExercised { .. });
    let open = result.checks.iter().filter(|it| not_exercised(&it.check));
    let (violations, more, last) = match &result.trace {
        Some(trace) => failures(result, trace, names),
        None => Default::default(),
    };
    let told: BTreeSet<String> = { result.violations.iter() }
        .map(|it| it.violation.line())
        .collect();
    let reasons = result.reasons.iter().filter(|it| !told.contains(*it));
    let difference = match &result.snapshot {
        Some(SnapshotComparison::Different { diff, .. }) => diff.as_str(),
        _ => "",
    };
    let files = result.artifacts.iter().map(|it| {
        let path = it.path.display().to_string();
        (printable(&it.kind), printable(&path))
    });
    Shown {
        name: printable(&result.name),
        outcome: result.outcome.name(),
        class: class(result.class()),
        seconds: result.duration.as_secs_f64(),
        counts: [samples, deferred, late, lost, injections],
        trials: result.trials.map(|trials| trials.made),
        held: held.collect(),
        open: open.count(),
        reasons: reasons.take(MAX_LINES).map(|it| printable(it)).collect(),
        violations,
        more,
        last,
        difference: { difference.lines() }
            .take(MAX_LINES)
            .map(printable)
            .collect(),
        files: files.collect(),
    }
}

/// The word for a class in the file.
pub(super) const fn class(class: OutcomeClass) -> &'static str {
    match class {
        OutcomeClass::Good => "good",
        OutcomeClass::Bad => "bad",
        OutcomeClass::Untested => "untested",
    }
}

/// What the violations of a trial show.
pub(super) fn violations(result: &ScenarioResult, names: Names<'_>) -> Vec<Violation> {
    let trace = result.trace.as_ref();
    trace.map_or_else(Vec::new, |trace| failures(result, trace, names).0)
}

type Failures = (Vec<Violation>, BTreeMap<String, usize>, Option<Timeline>);

fn failures(result: &ScenarioResult, trace: &Trace, names: Names<'_>) -> Failures {
    if result.violations.is_empty() {
        let last = result.outcome.is_death();
        let last = last.then(|| {
            let all = Record::all(trace, true, true);
            Timeline::of(&all, |_| false, "", &|_| None, names)
        });
        return (Vec::new(), BTreeMap::new(), last);
    }
    let evidence = Evidence::new(trace);
    let interrupted = |record: &Record<'_>| match record {
        Record::Perf(event) => evidence.interrupted(event),
        Record::Log(event) => event.interrupted(),
    };
    let hits = hits(trace, |at| evidence.interrupted(trace.events.get(at)?));
    let (mut shown, mut more) = (Vec::new(), BTreeMap::new());
    let mut seen = BTreeSet::new();
    // What no finding explains comes first.
    let mut ordered: Vec<&JudgedViolation> = result.violations.iter().collect();
    ordered.sort_by_key(|it| it.finding.is_some());
    for judged in ordered {
        let JudgedViolation { violation, finding } = judged;
        let kind = (&violation.invariant, finding, violation.instruction);
        if shown.len() < MAX_VIOLATIONS && seen.insert(kind) {
            shown.push(one(judged, trace, &interrupted, &hits, names));
        } else {
            *more.entry(violation.invariant.clone()).or_default() += 1;
        }
    }
    (shown, more, None)
}

fn one(
    judged: &JudgedViolation,
    trace: &Trace,
    interrupted: &dyn Fn(&Record<'_>) -> Option<u64>,
    hits: &Hits,
    names: Names<'_>,
) -> Violation {
    let JudgedViolation { violation, finding } = judged;
    let records = Record::all(
        trace,
        !violation.events.is_empty(),
        !violation.log.is_empty(),
    );
    let events: BTreeSet<usize> = violation.events.iter().copied().collect();
    let slots: BTreeSet<u64> = violation.log.iter().copied().collect();
    let is_bad = |record: &Record<'_>| match record {
        Record::Perf(event) => events.contains(&event.index),
        Record::Log(event) => slots.contains(&event.slot),
    };
    Violation {
        invariant: violation.invariant.clone(),
        message: printable(&violation.message),
        finding: finding.clone(),
        place: violation.instruction.map(|address| names.name(address)),
        code: { violation.instruction }.and_then(|address| around(address, hits, names)),
        stacks: side_by_side(&violation.events, trace, names),
        timeline: Timeline::of(&records, is_bad, &violation.message, interrupted, names),
    }
}
