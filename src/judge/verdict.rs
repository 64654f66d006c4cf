//! Judges a trial: the only code that decides what is a pass.
//!
//! A trial passes if it completed, every planned injection was made, every required invariant was
//! exercised, none is violated, all expectations are met, and the snapshot is the same. Whatever
//! of this does not hold is a reason, and any reason makes the trial a failure.

use std::collections::BTreeSet;
use std::time::Duration;

use super::counts::Counts;
use super::expect;
use super::invariants::{Checked, Judge};
use super::known::entry_code;
use super::outcome::Outcome;
use super::overflows;
use super::perf_tool;
use super::program;
use super::result::{InvariantCheck, ScenarioResult};
use super::snapshot::{SnapshotComparison, compare};
use unwindlab_engine::plan::TrialPlan;
use unwindlab_oracle::invariant::{Check, Evidence, NonceStacks};
use unwindlab_oracle::trace::Trace;
use unwindlab_oracle::trace::canonical::canonical;
use unwindlab_oracle::trace::recording::{Point, StoodStill, TrialEnd, VcpuPlace};
use unwindlab_scenario::library::snapshot_file;
use unwindlab_scenario::{KernelSymbols, Loaded, Scenario};

/// The invariant that a trial violates which is cut short because it never ends.
const ENDLESS: &str = "P6";
/// What violations are worth in a trial that did not come to its end.
const CUT_SHORT: &str = "the trace is cut short, which can look like a violation";

/// A trial that is over.
#[derive(Debug)]
pub struct Case<'a> {
    /// The scenario and its snapshot.
    pub loaded: &'a Loaded,
    /// What was planned.
    pub plan: &'a TrialPlan,
    /// How it ended.
    pub end: &'a TrialEnd,
    /// Its trace.
    pub trace: Trace,
    /// From the start of the machine to its end.
    pub duration: Duration,
}

impl Judge<'_> {
    /// Judges a trial.
    #[must_use]
    pub fn judge(&self, case: Case<'_>) -> ScenarioResult {
        let (outcome, reason) = match case.end {
            TrialEnd::Completed => return self.judge_complete(case),
            TrialEnd::HostLacks { reason } => (Outcome::Skip, reason.clone()),
            TrialEnd::Unsupported { reason } => {
                (Outcome::GuestSkip, format!("{reason}, says the guest"))
            }
            TrialEnd::Silent { line } => (
                Outcome::InfraError,
                format!("{line}: the emulated KVM host's doing, most likely"),
            ),
            TrialEnd::Misbehaved { what } => (Outcome::GuestMisbehaved, what.clone()),
            TrialEnd::BootError { reason, places } => (
                Outcome::BootError,
                format!("{reason}{}", standstill(places, self.symbols)),
            ),
            TrialEnd::Infra { reason } => (Outcome::InfraError, reason.clone()),
            TrialEnd::Unknown => (
                Outcome::InfraError,
                "the trial ended without saying how".to_owned(),
            ),
            TrialEnd::Panic { line } => (Outcome::GuestPanic, line.clone()),
            TrialEnd::Hang { places } => (
                Outcome::Hang,
                format!("no progress{}", standstill(places, self.symbols)),
            ),
            TrialEnd::Starved { places, percent } => {
                (Outcome::InfraError, starved(places, *percent, self.symbols))
            }
            TrialEnd::Timeout => (
                Outcome::Timeout,
                format!(
                    "still running: its `timeout` is over, {} ms from the last place that it came to, or {} ms in all",
                    case.plan.limits.run_ms,
                    case.plan.limits.run_ms_in_all()
                ),
            ),
        };
        let mut result = ScenarioResult::not_run(&case.plan.scenario, outcome, reason);
        result.reasons.extend(self.stood_still(&case.trace));
        result
            .reasons
            .extend(missing_injections(case.plan, &case.trace));
        if outcome.is_death() || matches!(outcome, Outcome::Timeout | Outcome::InfraError) {
            // Violations are shown as hints and do not change the outcome.
            let (_, cut) = self.check_invariants(&case, &mut result);
            result.reasons.extend(cut);
            let found = result.violations.iter();
            let is_hint = found
                .map(|it| &it.violation)
                .any(|it| it.invariant != ENDLESS);
            result.reasons.extend(is_hint.then(|| CUT_SHORT.to_owned()));
        }
        if outcome == Outcome::Timeout
            && let Some(endless) = result
                .violations
                .iter()
                .find(|it| it.violation.invariant == ENDLESS)
        {
            // What is in the trace is enough for this one.
            result.reasons.insert(0, endless.violation.line());
            result.outcome = Outcome::Fail;
        }
        let cut = self.count(&case.trace, &mut result);
        result.reasons.extend(cut);
        result.duration = case.duration;
        result.trace = Some(case.trace);
        result
    }

    fn judge_complete(&self, case: Case<'_>) -> ScenarioResult {
        let scenario = &case.loaded.scenario;
        let mut result = ScenarioResult::not_run(&scenario.name, Outcome::Fail, String::new());
        result.reasons.clear();
        let (near, cut) = self.check_invariants(&case, &mut result);
        let cut = self.count(&case.trace, &mut result).or(cut);
        result.canonical = self.canonical(&case);
        let compared = result.canonical.as_deref();
        result.snapshot = compared.map(|actual| self.compare_snapshot(&case, actual));
        result.duration = case.duration;

        let said = program::said(case.plan, &case.trace, self.findings, self.symbols);
        let unknown = result.violations.iter().filter(|it| it.finding.is_none());
        let violated: Vec<String> = unknown.map(|it| it.violation.line()).collect();
        let mut reasons = violated;
        reasons.extend(near.iter().map(|id| {
            format!(
                "not {id}, though the events are alike: in this kernel's code they are not at its \
                 instructions"
            )
        }));
        reasons.extend(
            case.trace
                .corrupt
                .iter()
                .map(|why| format!("corrupt ring: {why}")),
        );
        reasons.extend(self.stood_still(&case.trace));
        reasons.extend(missing_injections(case.plan, &case.trace));
        reasons.extend(overflows::unhandled(case.plan, &case.trace));
        reasons.extend(perf_tool::unmet(case.plan, &case.trace));
        let other = said.is_some() || case.trace.perf_script.is_some();
        reasons.extend(not_exercised(scenario, &result.checks, other));
        reasons.extend(expect::no_request(&scenario.expect, &case.trace));
        reasons.extend(expect::unmet(&scenario.expect, &result.counts, &case.trace));
        reasons.extend(
            result
                .snapshot
                .as_ref()
                .and_then(|it| snapshot_line(case.loaded, it)),
        );

        let is_cut = cut.is_some();
        let bad = result.violations.iter().any(|it| it.finding.is_none());
        reasons.splice(0..0, cut);
        let clean = reasons.is_empty();
        let said = said.map(|it| it.told(&mut reasons, &mut result.program_finding));
        result.outcome = match (clean, said) {
            // What was found stays found; what was not says nothing.
            _ if is_cut && !bad => Outcome::InfraError,
            (false, _) => Outcome::Fail,
            (true, Some(Outcome::Pass) | None) if !result.violations.is_empty() => {
                Outcome::ExpectedFailure
            }
            (true, said) => said.unwrap_or(Outcome::Pass),
        };
        if result.outcome == Outcome::ExpectedFailure {
            reasons.extend(result.violations.iter().map(|it| it.violation.line()));
        }
        result.reasons = reasons;
        result.trace = Some(case.trace);
        result
    }

    /// The vCPU that nothing let go on, in words.
    fn stood_still(&self, trace: &Trace) -> Option<String> {
        let StoodStill {
            vcpu,
            ms,
            by,
            places,
        } = trace.stood_still.as_ref()?;
        let at = standstill(places, self.symbols);
        Some(format!(
            "vCPU {vcpu} stood still for {ms} ms because of {by}, and nothing let it go in time{at}"
        ))
    }

    /// Counts what the trace shows; why not all of it was counted.
    fn count(&self, trace: &Trace, result: &mut ScenarioResult) -> Option<String> {
        let resolve = |address| self.symbols.resolve(address);
        let code = entry_code(self.symbols);
        let evidence = Evidence::new(trace).named(&resolve).knowing(&code);
        // A scenario need not have chosen them.
        let is_counted = |id: &str| trace.user_mode.is_some() && Counts::VIOLATIONS.contains(&id);
        let Checked { checks, cut, .. } = self.check(&evidence, is_counted);
        result.counts = Counts::of(&evidence, &checks);
        result.nonce_stacks = NonceStacks::of(&evidence);
        cut
    }

    /// Checks the scenario's invariants; the findings that are near, and why not all were checked.
    fn check_invariants(
        &self,
        case: &Case<'_>,
        result: &mut ScenarioResult,
    ) -> (BTreeSet<String>, Option<String>) {
        let chosen = case.loaded.scenario.invariants.as_deref();
        let resolve = |address| self.symbols.resolve(address);
        let code = entry_code(self.symbols);
        let evidence = Evidence::new(&case.trace).named(&resolve).knowing(&code);
        let is_chosen = |id: &str| chosen.is_none_or(|it| it.iter().any(|it| it.as_str() == id));
        let checked = self.check(&evidence, is_chosen);
        result.checks.extend(checked.checks);
        result.violations.extend(checked.violations);
        (checked.near, checked.cut)
    }

    fn canonical(&self, case: &Case<'_>) -> Option<String> {
        let style = case.loaded.scenario.snapshot.as_ref()?;
        let resolve = |address| self.symbols.resolve(address);
        Some(canonical(&case.trace, **style, &resolve))
    }

    fn compare_snapshot(&self, case: &Case<'_>, actual: &str) -> SnapshotComparison {
        match self.compare_snapshots {
            true => compare(case.loaded.snapshot.as_deref(), actual),
            false => SnapshotComparison::Skipped,
        }
    }
}

/// Why a guest that makes no progress is not said to hang.
pub(super) fn starved(places: &[VcpuPlace], percent: u64, symbols: &dyn KernelSymbols) -> String {
    format!(
        "no progress{}; but the KVM host waited for a CPU in {percent} % of the time that it wanted one",
        standstill(places, symbols)
    )
}

/// Where the vCPUs stood, to append to a sentence.
fn standstill(places: &[VcpuPlace], symbols: &dyn KernelSymbols) -> String {
    let at = |place: &VcpuPlace| {
        let VcpuPlace { vcpu, rip, cpl, .. } = *place;
        match symbols.resolve(rip) {
            Some((name, offset)) if cpl == 0 => format!("vCPU {vcpu} at {name}+{offset:#x}"),
            _ if cpl == 0 => format!("vCPU {vcpu} at {rip:#x} in the kernel"),
            _ => format!("vCPU {vcpu} at {rip:#x} in user mode"),
        }
    };
    match places {
        [] => String::new(),
        _ => format!("; {}", places.iter().map(at).collect::<Vec<_>>().join(", ")),
    }
}

/// Injections that were not made as often as planned.
fn missing_injections(plan: &TrialPlan, trace: &Trace) -> Vec<String> {
    let mut reasons = Vec::new();
    for (index, injection) in plan.injections.iter().enumerate() {
        let planned = injection.trigger.injections();
        let made = trace
            .injections
            .iter()
            .chain(&trace.failures)
            .chain(&trace.actions)
            .filter(|it| it.spec as usize == index);
        let made = made.count() as u64;
        let passes = trace.points.iter().find(|it| it.spec as usize == index);
        let swept = injection.trigger.may_end_early() && passes.is_some_and(|it| it.swept);
        let enough = swept && (1..planned).contains(&made);
        // A whole burst follows one that was broken off.
        let repeated = injection.trigger.may_break_off() && made > planned;
        if made != planned && !enough && !repeated {
            let name = &injection.name;
            reasons.push(format!(
                "point not reached: {name} was made {made} times of {planned}{}",
                passes.map(passed).unwrap_or_default()
            ));
        }
    }
    reasons
}

/// How often the place of an injection was passed, to append to a sentence.
fn passed(point: &Point) -> String {
    let times = |n: u64| match n {
        1 => "once".to_owned(),
        n => format!("{n} times"),
    };
    let mut said = match (point.iterations, point.least, point.most) {
        (0, ..) if point.unfinished > 0 => {
            format!("; its place was passed {}", times(point.unfinished))
        }
        (0, ..) => "; its place was not passed while it counted".to_owned(),
        (n, 0, 0) => format!("; its place was passed in none of {n} iterations"),
        (n, least, most) if least == most => {
            format!(
                "; its place was passed {} in each of {n} iterations",
                times(most)
            )
        }
        (n, least, most) => {
            format!("; its place was passed {least} to {most} times in each of {n} iterations")
        }
    };
    if point.hit > 1 {
        said.push_str(&format!(", and arrival {} was asked for", point.hit));
    }
    if point.others > 0 {
        let others = times(point.others);
        said.push_str(&format!(
            " ({others} by others: another task, another vCPU, an NMI's handler)"
        ));
    }
    said
}

/// Required invariants that were not exercised. At least one invariant of what tracers got must have been exercised: a
/// trace that shows nothing of it is no pass.
fn not_exercised(scenario: &Scenario, checks: &[InvariantCheck], has_other: bool) -> Vec<String> {
    let mut reasons: Vec<String> = scenario
        .require
        .iter()
        .filter_map(|required| {
            let found = checks.iter().find(|it| it.invariant == required.as_str());
            match found.map(|it| &it.check) {
                Some(Check::Holds { .. } | Check::Violated(_)) => None,
                Some(Check::NotExercised { reason, .. }) => Some(format!(
                    "{} is required but was not exercised: {reason}",
                    required.as_str()
                )),
                None => Some(format!(
                    "{} is required but was not checked",
                    required.as_str()
                )),
            }
        })
        .collect();
    // That the kernel has not complained, and that its rings can be read, says nothing of unwinding.
    let evidence = |it: &InvariantCheck| {
        !it.invariant.starts_with('W') && !matches!(it.check, Check::NotExercised { .. })
    };
    // What a program says of the kernel, and what perf printed, is evidence, too.
    if !has_other && !checks.iter().any(evidence) {
        reasons.push("no invariant was exercised".to_owned());
    }
    reasons
}

fn snapshot_line(loaded: &Loaded, comparison: &SnapshotComparison) -> Option<String> {
    let name = loaded.scenario.name.as_str();
    match comparison {
        SnapshotComparison::Same | SnapshotComparison::Skipped => None,
        SnapshotComparison::Different { .. } => Some(format!("snapshots/{name}.snap differs")),
        SnapshotComparison::Missing { .. } => {
            let place = snapshot_file(loaded).map(|it| it.display().to_string());
            Some(format!(
                "{} is missing; write this run's with --accept-snapshots, or run with --no-snapshots",
                place.unwrap_or_else(|| format!("snapshots/{name}.snap"))
            ))
        }
        SnapshotComparison::Unreadable { reason } => {
            Some(format!("snapshots/{name}.snap is not a snapshot: {reason}"))
        }
    }
}
