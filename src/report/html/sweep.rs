//! The report of a sweep: a heat map over the path, its instructions and the source, and the first trial of each
//! distinct failure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::code::line;
use super::page::page;
use super::run::{Violation, violations};
use super::source::{SourceFile, files};
use crate::judge::ScenarioResult;
use crate::judge::sweep::{Failure, SweepSymptom, Verdicts};
use crate::report::explain::explain;
use crate::report::instructions::{LONGEST, instruction};
use crate::report::names::Names;
use crate::report::sweep::{Cut, Summary, what};
use unwindlab_engine::plan::sweep::{Point, Step};
use unwindlab_engine::text::printable;
use unwindlab_oracle::invariant::INVARIANTS;

/// Distinct instructions that are shown with their text and line; of those further on the path, the places are.
const MAX_TEXTS: usize = 20_000;
/// Distinct failures that are shown, and messages of each.
const MAX_FAILURES: usize = 40;
const MAX_MESSAGES: usize = 24;

/// What a sweep's report needs besides its summary.
#[derive(Debug, Clone, Default)]
pub struct SweepReport {
    /// The first trial of each distinct failure, by its point.
    first: BTreeMap<String, Vec<Violation>>,
}

/// What was swept.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SweepHeading {
    /// The scenario's name.
    pub scenario: String,
    /// The kernel as the user named it.
    pub kernel_spec: String,
    /// `uname -r` of the kernel.
    pub kernel_release: String,
    /// The KVM host.
    pub kvm_host: String,
}

#[derive(Serialize)]
struct Page<'a> {
    setting: &'a SweepHeading,
    seconds: f64,
    /// Points that were tried, of those that were to be, and that passed.
    tried: usize,
    chosen: usize,
    passed: u32,
    pairs: bool,
    cut: Option<&'static str>,
    path: Path,
    /// Trials of each boundary, as runs: how many trials, how many boundaries.
    trials: Vec<(u32, u32)>,
    /// Boundaries that were not tried and for which the next one stands.
    alike: BTreeSet<u32>,
    failures: Vec<Shown<'a>>,
    /// Numbers of boundaries that were to be tried and were not, or whose trials do not agree or are not decided.
    missed: Vec<u32>,
    unsteady: Vec<u32>,
    files: Vec<SourceFile>,
    invariants: BTreeMap<&'static str, &'static str>,
    findings: BTreeMap<&'a str, String>,
}

/// The boundaries, each as an index of an instruction.
#[derive(Serialize, Default)]
struct Path {
    steps: Vec<u32>,
    functions: Vec<String>,
    /// Index of the function (none for what has no name), offset or address, text, and line of the source.
    instructions: Vec<(Option<u32>, String, String, Option<String>)>,
}

#[derive(Serialize)]
struct Shown<'a> {
    what: String,
    known: bool,
    died: bool,
    messages: Vec<String>,
    points: usize,
    /// Numbers of boundaries, each with the trials that failed there.
    at: BTreeMap<u32, u32>,
    /// Point and violations of the first trial that showed it.
    first: Option<(&'a str, &'a [Violation])>,
}

impl SweepReport {
    /// Takes the first trial of a distinct failure.
    pub fn first(&mut self, point: Point, result: &ScenarioResult, names: Names<'_>) {
        if self.first.len() < MAX_FAILURES {
            self.first
                .insert(point.to_string(), violations(result, names));
        }
    }

    /// The file.
    ///
    /// # Errors
    /// [`serde_json::Error`] if a value cannot be serialized, which no type here causes.
    pub fn html(
        &self,
        heading: &SweepHeading,
        summary: &Summary<'_>,
        names: Names<'_>,
    ) -> Result<String, serde_json::Error> {
        let verdicts = summary.verdicts;
        let failures = verdicts.failures.iter().take(MAX_FAILURES);
        let numbers =
            |points: &mut dyn Iterator<Item = &Point>| points.map(|it| it.number).collect();
        let undecided = verdicts.unjudged.iter().map(|(point, _)| point);
        let unsteady = verdicts.unsteady.iter().map(|it| &it.point);
        let data = Page {
            setting: heading,
            seconds: summary.elapsed.as_secs_f64(),
            tried: verdicts.tried.len(),
            chosen: summary.chosen,
            passed: verdicts.passed,
            pairs: verdicts.pairs.is_some(),
            cut: summary.cut.map(|cut| match cut {
                Cut::Budget => "the budget was used up",
                Cut::Interrupt => "it was interrupted",
                Cut::Failure => "it broke off",
            }),
            path: Path::of(verdicts.path(), names),
            trials: runs(verdicts.path().len(), &verdicts.tried),
            alike: &verdicts.covered() - &verdicts.numbers(),
            failures: failures
                .map(|(symptom, it)| self.shown(symptom, it))
                .collect(),
            missed: numbers(&mut verdicts.missed.iter()),
            unsteady: numbers(&mut unsteady.chain(undecided)),
            files: files(verdicts, &failing(verdicts), names.kernel.lines()),
            invariants: INVARIANTS.iter().map(|it| (it.id, it.title)).collect(),
            findings: findings(verdicts),
        };
        let title = format!(
            "sweep of {} on {}",
            heading.scenario, heading.kernel_release
        );
        let scripts = [
            include_str!("assets/timeline.js"),
            include_str!("assets/code.js"),
            include_str!("assets/violation.js"),
            include_str!("assets/rows.js"),
            include_str!("assets/strip.js"),
            include_str!("assets/sweep.js"),
        ];
        page(&title, &scripts, &data)
    }

    fn shown(&self, symptom: &SweepSymptom, failure: &Failure) -> Shown<'_> {
        let points: BTreeSet<String> = failure.points.iter().map(ToString::to_string).collect();
        let first = self.first.iter().find(|(point, _)| points.contains(*point));
        let messages = failure.messages.iter().take(MAX_MESSAGES);
        Shown {
            what: what(symptom),
            known: symptom.is_known(),
            died: symptom.died.is_some(),
            messages: messages.map(|it| printable(it)).collect(),
            points: failure.points.len(),
            at: counts(&failure.points),
            first: first.map(|(point, shown)| (point.as_str(), shown.as_slice())),
        }
    }
}

/// How many of the points have their first NMI at each boundary.
fn counts(points: &BTreeSet<Point>) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for point in points {
        *counts.entry(point.number).or_default() += 1;
    }
    counts
}

/// Trials of each boundary of a path of this length, as runs.
fn runs(length: usize, tried: &BTreeSet<Point>) -> Vec<(u32, u32)> {
    let counts = counts(tried);
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (number, _) in (0_u32..).zip(0..length) {
        let trials = counts.get(&number).copied().unwrap_or(0);
        match runs.last_mut() {
            Some((last, times)) if *last == trials => *times += 1,
            _ => runs.push((trials, 1)),
        }
    }
    runs
}

/// Instructions at which an NMI made something fail that no finding explains, or a finding does.
fn failing(verdicts: &Verdicts<'_>) -> BTreeSet<u64> {
    let points = verdicts.failures.values().flat_map(|it| &it.points);
    points.map(|point| point.at.rip).collect()
}

/// The heading of each finding that a failure matches.
fn findings<'a>(verdicts: &'a Verdicts<'_>) -> BTreeMap<&'a str, String> {
    let fell = verdicts.failures.keys().flat_map(|it| &it.fell);
    let ids = fell.filter_map(|(_, finding)| finding.as_deref());
    ids.map(|id| (id, about(id))).collect()
}

/// What a finding is, in a line.
pub(super) fn about(finding: &str) -> String {
    let page = explain(finding).unwrap_or_default();
    let line = page.lines().next().unwrap_or_default();
    let about = line.split_once(": ").map_or(line, |(_, about)| about);
    about.to_owned()
}

impl Path {
    fn of(path: &[Step], names: Names<'_>) -> Self {
        let mut shown = Self::default();
        let addresses: BTreeSet<u64> = path.iter().map(|step| step.rip).collect();
        let mut functions: BTreeMap<String, u32> = BTreeMap::new();
        let mut indexes: BTreeMap<u64, u32> = BTreeMap::new();
        for (index, &address) in (0_u32..).zip(&addresses) {
            let name = names.name(address);
            let (function, place) = match name.rsplit_once('+') {
                Some((function, offset)) => {
                    let next = u32::try_from(functions.len()).unwrap_or(u32::MAX);
                    let index = *functions.entry(function.to_owned()).or_insert_with(|| {
                        shown.functions.push(function.to_owned());
                        next
                    });
                    (Some(index), format!("+{offset}"))
                }
                None => (None, name),
            };
            let is_told = shown.instructions.len() < MAX_TEXTS;
            let code = names.kernel.code(address, LONGEST).filter(|_| is_told);
            let text = code.map_or_else(String::new, |code| instruction(&code, address, names));
            let source = is_told.then(|| line(address, names)).flatten();
            shown.instructions.push((function, place, text, source));
            indexes.insert(address, index);
        }
        let index = |step: &Step| indexes.get(&step.rip).copied().unwrap_or(0);
        shown.steps = path.iter().map(index).collect();
        shown
    }
}
