//! What each trial of a sweep shows, and the distinct failures among all trials.

use std::collections::{BTreeMap, BTreeSet};

use super::known::entry_code;
use super::result::JudgedViolation;
use super::sweep_record::{
    RecordedFailure, RecordedPath, SweepChoice, SweepIdentity, SweepLeft, SweepRecord, VERSION,
};
use super::verdict::starved;
use super::{Judge, Outcome, ScenarioResult};
use serde::{Deserialize, Serialize};
use unwindlab_engine::plan::Shard;
use unwindlab_engine::plan::sweep::{Boundary, Point, Step, SweptTrial, boundaries};
use unwindlab_oracle::invariant::{Check, EntryCode, Evidence};
use unwindlab_oracle::trace::recording::{Recording, TrialEnd};
use unwindlab_oracle::trace::{LabLog, Trace};

/// What a trial showed: how it ended if it did not complete, and the violated invariants, each with
/// the finding that the violation matches, if any. Trials with the same symptom are one failure.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SweepSymptom {
    /// `guest-panic` or `hang`; none if the trial completed.
    pub died: Option<&'static str>,
    /// Violated invariants with their findings.
    pub fell: BTreeSet<(String, Option<String>)>,
}

impl SweepSymptom {
    /// Whether every violation is a finding.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.died.is_none() && self.fell.iter().all(|(_, finding)| finding.is_some())
    }
}

/// Numbers of a sweep of pairs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PairCounts {
    /// Boundaries for the first NMI.
    pub firsts: u32,
    /// Those of them behind which every boundary is tried.
    pub stand_for_all: u32,
    /// Trials of the others: a second NMI at the same boundary, and at the next.
    pub near: u64,
    /// How many of those that stand for others have a known path behind them.
    pub known: u32,
    /// Trials behind those.
    pub far: u64,
    /// How many pairs the tried ones represent.
    pub stood_for: u64,
}

impl PairCounts {
    /// Those of two parts together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            firsts: self.firsts.saturating_add(other.firsts),
            stand_for_all: self.stand_for_all.saturating_add(other.stand_for_all),
            near: self.near.saturating_add(other.near),
            known: self.known.saturating_add(other.known),
            far: self.far.saturating_add(other.far),
            stood_for: self.stood_for.saturating_add(other.stood_for),
        }
    }

    /// How many trials there are, where the paths that are not known yet have as many points as those that
    /// are. `None` while none is known: the first NMI changes the path, often to one that is many times
    /// as long.
    #[must_use]
    pub fn trials(&self) -> Option<u64> {
        let far = match self.stand_for_all {
            0 => Some(0),
            all => (self.far.saturating_mul(u64::from(all))).checked_div(u64::from(self.known)),
        };
        far.map(|far| far.saturating_add(self.near))
    }
}

/// How many of the last console lines of a guest that died are kept.
const CONSOLE_LINES: usize = 60;

/// One distinct failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The points that show it.
    pub points: BTreeSet<Point>,
    /// How the first of them ended, or what it violated, in lines.
    pub messages: Vec<String>,
}

/// A trial that hung or panicked and was made once more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Unsteady {
    /// Where its NMIs came.
    pub point: Point,
    /// How it ended.
    pub end: TrialEnd,
    /// What was written to the console.
    pub console: String,
}

/// What a record is of.
#[derive(Debug, Clone, Copy)]
pub struct RecordOf<'a> {
    /// The sweep.
    pub identity: &'a SweepIdentity,
    /// The part of it that this is, if it is one.
    pub shard: Option<Shard>,
    /// Which points all parts try.
    pub choice: &'a SweepChoice,
    /// `uname -r` of the kernel.
    pub release: &'a str,
    /// Whether all trials are over.
    pub ended: bool,
}

/// All trials of a sweep so far, judged.
#[expect(missing_debug_implementations, reason = "holds trait objects")]
pub struct Verdicts<'a> {
    judge: Judge<'a>,
    code: EntryCode<'a>,
    common: Recording,
    path: Vec<Step>,
    /// The lab client's log up to the start of the path, and how many of its slots are finished.
    log: Option<(LabLog, u64)>,
    /// Boundaries that are left out, because the next one stands for them.
    pub left_out: BTreeSet<u32>,
    /// Points that were tried.
    pub tried: BTreeSet<Point>,
    /// How many of them an earlier sweep tried.
    pub before: usize,
    /// Numbers of a sweep of pairs.
    pub pairs: Option<PairCounts>,
    /// Points to which the path did not come again.
    pub missed: Vec<Point>,
    /// Points whose trial was not judged to its end, and why.
    pub unjudged: Vec<(Point, String)>,
    /// Trials that hung or panicked and were made once more.
    pub unsteady: Vec<Unsteady>,
    /// Trials in which the KVM host failed and that were made once more: the point, and why.
    pub failed: Vec<(Point, String)>,
    /// Number of points that passed.
    pub passed: u32,
    /// The distinct failures.
    pub failures: BTreeMap<SweepSymptom, Failure>,
    /// On how many points each invariant was exercised.
    pub exercised: BTreeMap<&'static str, u32>,
}

impl<'a> Verdicts<'a> {
    /// Starts judging a sweep once its path is known.
    #[must_use]
    pub fn new(judge: Judge<'a>, mut common: Recording, path: Vec<Step>) -> Self {
        Self {
            judge,
            code: entry_code(judge.symbols),
            log: common.lab.take().map(|log| {
                let finished = log.finished();
                (log, finished)
            }),
            common,
            path,
            left_out: BTreeSet::new(),
            tried: BTreeSet::new(),
            before: 0,
            pairs: None,
            missed: Vec::new(),
            unjudged: Vec::new(),
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

    /// The same, and those for which one of them stands.
    #[must_use]
    pub fn covered(&self) -> BTreeSet<u32> {
        let mut covered = self.numbers();
        for number in self.left_out.iter().rev() {
            if covered.contains(&(number + 1)) {
                covered.insert(*number);
            }
        }
        covered
    }

    /// Adds what an earlier sweep found. Its points get their numbers in this path; points that are
    /// not on this path keep their old numbers.
    pub fn resume(&mut self, record: SweepRecord) {
        let numbers: BTreeMap<Boundary, u32> =
            boundaries(&self.path).into_iter().zip(0..).collect();
        let renumbered = |point: Point| Point {
            number: numbers.get(&point.at).copied().unwrap_or(point.number),
            ..point
        };
        self.before = record.tried.len();
        self.tried = record.tried.into_iter().map(renumbered).collect();
        self.passed = record.passed;
        for failure in record.failures {
            let died = failure.died.as_deref().map(|died| match died {
                GUEST_PANIC => GUEST_PANIC,
                MISBEHAVED => MISBEHAVED,
                _ => Outcome::Hang.name(),
            });
            let fell = failure.fell;
            let points = failure.points.into_iter().map(renumbered).collect();
            let messages = failure.messages;
            self.failures
                .insert(SweepSymptom { died, fell }, Failure { points, messages });
        }
        // A trial that was not steady stays so; the others are made now.
        self.unsteady = record.left.unsteady;
        for invariant in self.judge.invariants {
            if let Some(&points) = record.exercised.get(invariant.id) {
                self.exercised.insert(invariant.id, points);
            }
        }
    }

    /// All of this, for a later sweep, or to be merged with other parts.
    #[must_use]
    pub fn record(&self, of: RecordOf<'_>) -> SweepRecord {
        let failure = |(symptom, failure): (&SweepSymptom, &Failure)| RecordedFailure {
            died: symptom.died.map(str::to_owned),
            fell: symptom.fell.clone(),
            points: failure.points.clone(),
            messages: failure.messages.clone(),
        };
        let exercised = self.exercised.iter();
        SweepRecord {
            version: VERSION,
            identity: of.identity.clone(),
            tried: self.tried.clone(),
            passed: self.passed,
            failures: self.failures.iter().map(failure).collect(),
            exercised: exercised
                .map(|(id, points)| ((*id).to_owned(), *points))
                .collect(),
            shard: of.shard,
            path: self.recorded_path(of.choice, of.release),
            choice: of.choice.clone(),
            pairs: self.pairs,
            left: SweepLeft {
                ended: of.ended,
                missed: self.missed.clone(),
                unjudged: self.unjudged.clone(),
                unsteady: self.unsteady.clone(),
            },
        }
    }

    fn recorded_path(&self, choice: &SweepChoice, release: &str) -> RecordedPath {
        let boundaries = boundaries(&self.path);
        let chosen = choice.points.of(&self.path).into_iter();
        let failed = self.failures.values().flat_map(|it| &it.points);
        let failed = failed.flat_map(|it| [Some(it.at), it.then.map(|then| then.at)]);
        let unmade = self.missed.iter().map(|it| it.at);
        let unmade = unmade.chain(self.unsteady.iter().map(|it| it.point.at));
        let all = failed.flatten().chain(unmade).map(|it| it.rip);
        let all: BTreeSet<u64> = all.chain(self.path.iter().map(|it| it.rip)).collect();
        let named = |address: u64| {
            let (name, offset) = self.name(address)?;
            Some((address.checked_sub(offset)?, name))
        };
        RecordedPath {
            release: release.to_owned(),
            instructions: self.path.iter().map(|it| it.rip).collect(),
            left_out: self.left_out.clone(),
            chosen: chosen
                .filter_map(|it| boundaries.get(it as usize).copied())
                .collect(),
            names: all.into_iter().filter_map(named).collect(),
        }
    }

    /// The code that contains an address, and the offset in it.
    fn name(&self, address: u64) -> Option<(String, u64)> {
        let user = self.common.user_symbols.iter();
        let user = user.filter(|it| (it.start..it.end).contains(&address));
        // They overlap: the innermost starts last.
        let user = user.max_by_key(|it| it.start);
        let user = user.map(|it| (it.name.clone(), address - it.start));
        user.or_else(|| self.judge.symbols.resolve(address))
    }

    /// Whether a trial's messages of the kernel are read: its symbols tell where they are.
    #[must_use]
    pub fn reads_messages(&self) -> bool {
        self.judge.symbols.message_ring().is_some()
    }

    /// Notes how a trial ended that is made once more.
    pub fn retried(&mut self, point: Point, end: TrialEnd, console: String) {
        match end {
            TrialEnd::Infra { reason } | TrialEnd::Silent { line: reason } => {
                self.failed.push((point, reason));
            }
            end => self.unsteady.push(Unsteady {
                point,
                end,
                console,
            }),
        }
    }

    /// Judges a trial; returns the whole result if the trial did not pass. One that is not judged to its end
    /// does not count as tried, unless something was found.
    pub fn judge(&mut self, trial: SweptTrial) -> Option<ScenarioResult> {
        let point = trial.point;
        if let TrialEnd::Starved { places, percent } = &trial.end {
            let why = starved(places, *percent, self.judge.symbols);
            self.unjudged.push((point, why));
            return None;
        }
        let trace = self.trace(trial);
        let died = died(&self.common.end);
        let (mut violations, cut) = self.check_invariants(&trace);
        if died.is_some() {
            // What is missing from a trace that is cut short is no violation.
            violations.clear();
        }
        let mut symptom = SweepSymptom {
            died,
            fell: violations.iter().map(fallen).collect(),
        };
        let mut messages = died.map_or_else(Vec::new, |died| self.last_words(died));
        messages.extend(violations.iter().map(|it| it.violation.line()));
        for why in &trace.corrupt {
            symptom.fell.insert((CORRUPT.to_owned(), None));
            messages.push(format!("{CORRUPT}: {why}"));
        }
        let cut = cut.or_else(|| log_lost(&trace));
        let cut = cut.filter(|_| died.is_none() && symptom.is_known());
        if let Some(why) = cut {
            self.unjudged.push((point, why));
            return None;
        }
        self.tried.insert(point);
        if symptom.died.is_none() && symptom.fell.is_empty() {
            self.passed += 1;
            return None;
        }
        let name = format!("point {point}");
        let mut result = ScenarioResult::not_run(&name, outcome(&symptom), String::new());
        result.reasons.clone_from(&messages);
        result.violations = violations;
        result.trace = Some(trace);
        self.add_failure(symptom, point, messages);
        Some(result)
    }

    /// The trial's trace, as if it had been run alone.
    fn trace(&mut self, trial: SweptTrial) -> Trace {
        self.common.ring_bytes = trial.rings;
        self.common.witness = trial.witness;
        self.common.injections = trial.injections;
        self.common.kernel_log = trial.kernel_log;
        self.common.console = trial.console;
        self.common.end = trial.end;
        self.common.lab = match (&self.log, trial.lab) {
            (Some((earlier, first)), Some(later)) => Some(LabLog::join(earlier, *first, later)),
            _ => None,
        };
        if let (Some(log), Some(held)) = (&mut self.common.tracefs, trial.tracefs) {
            log.held = held;
        }
        Trace::decode(&self.common)
    }

    /// Checks all invariants: what is violated, and why not all were checked.
    fn check_invariants(&mut self, trace: &Trace) -> (Vec<JudgedViolation>, Option<String>) {
        let symbols = self.judge.symbols;
        let resolve = |address| symbols.resolve(address);
        let evidence = Evidence::new(trace).named(&resolve).knowing(&self.code);
        let checked = self.judge.check(&evidence, |_| true);
        let invariants = self.judge.invariants.iter();
        for (invariant, said) in invariants.zip(&checked.checks) {
            if let Check::Holds { .. } = said.check {
                *self.exercised.entry(invariant.id).or_default() += 1;
            }
        }
        (checked.violations, checked.cut)
    }

    /// How a guest died, and the last lines of its console.
    fn last_words(&self, died: &str) -> Vec<String> {
        let mut messages = vec![match &self.common.end {
            TrialEnd::Panic { line: said } | TrialEnd::Misbehaved { what: said } => {
                format!("{died}: {said}")
            }
            _ => died.to_owned(),
        }];
        let lines: Vec<&str> = self.common.console.lines().collect();
        let last = lines.iter().rev().take(CONSOLE_LINES).rev();
        messages.extend(last.map(|line| (*line).to_owned()));
        messages
    }

    /// The messages of a failure are those of its first point.
    fn add_failure(&mut self, symptom: SweepSymptom, point: Point, messages: Vec<String>) {
        let failure = self.failures.entry(symptom).or_insert(Failure {
            points: BTreeSet::new(),
            messages: Vec::new(),
        });
        if failure.points.first().is_none_or(|first| point < *first) {
            failure.messages = messages;
        }
        failure.points.insert(point);
    }
}

/// Why a trial in which nothing fell is no pass, if lines of the kernel's log are missing.
fn log_lost(trace: &Trace) -> Option<String> {
    let why = || "lines of the kernel's log were lost, and a warning may be among them".to_owned();
    trace.log_has_gap().then(why)
}

/// What stands in the place of an invariant where a ring cannot be read.
const CORRUPT: &str = "corrupt ring";

/// A violated invariant and its finding.
fn fallen(it: &JudgedViolation) -> (String, Option<String>) {
    (it.violation.invariant.clone(), it.finding.clone())
}

fn outcome(symptom: &SweepSymptom) -> Outcome {
    match symptom.died {
        Some(GUEST_PANIC) => Outcome::GuestPanic,
        Some(MISBEHAVED) => Outcome::GuestMisbehaved,
        Some(_) => Outcome::Hang,
        None if symptom.is_known() => Outcome::ExpectedFailure,
        None => Outcome::Fail,
    }
}

const GUEST_PANIC: &str = Outcome::GuestPanic.name();
const MISBEHAVED: &str = Outcome::GuestMisbehaved.name();

/// How a guest died that did not complete its trial.
fn died(end: &TrialEnd) -> Option<&'static str> {
    match end {
        TrialEnd::Completed => None,
        TrialEnd::Panic { .. } => Some(GUEST_PANIC),
        TrialEnd::Misbehaved { .. } => Some(MISBEHAVED),
        _ => Some(Outcome::Hang.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_pairs_there_are_is_known_with_the_paths_behind_the_first_nmis() {
        let counts = |stand_for_all, known, far| PairCounts {
            firsts: 20,
            stand_for_all,
            near: 30,
            known,
            far,
            stood_for: 0,
        };
        assert_eq!(counts(5, 0, 0).trials(), None);
        assert_eq!(counts(5, 1, 3000).trials(), Some(15_030));
        assert_eq!(counts(5, 5, 10_000).trials(), Some(10_030));
        assert_eq!(counts(0, 0, 0).trials(), Some(30));
    }
}
