//! Judges a recording that perf made of any machine.
//!
//! It passes if an invariant was exercised, and none is violated. There is no plan of what had to happen, so much is
//! left open; what is open is never counted as good.

use super::invariants::Judge;
use super::known::entry_code;
use super::outcome::Outcome;
use super::result::ScenarioResult;
use unwindlab_oracle::invariant::{Check, Evidence};
use unwindlab_oracle::trace::{EventKind, Trace};
use unwindlab_scenario::KernelSymbols;

/// The invariants that only a trial shows: who knows the stacks, the injections, the log, the rings or the lab client.
pub const OF_TRIALS: [&str; 49] = [
    "S1", "S2", "S4", "D2", "D4", "P1", "P2", "P4", "P5", "P6", "X5", "X6", "X7", "A5", "A7", "U1",
    "U2", "U3", "U4", "U5", "U6", "U7", "F1", "F2", "F3", "F4", "F5", "O1", "O2", "O3", "N1", "N2",
    "N3", "N4", "N5", "N6", "N7", "N8", "R1", "R2", "R3", "R4", "R5", "R6", "T1", "T2", "W0", "W1",
    "W2",
];

/// The invariants that need no record of other CPUs: what a task did on them, or that it came and went there.
const OF_ANY_CPU: [&str; 7] = ["C4", "M2", "D3", "A1", "A2", "A4", "A8"];

/// Markers of system calls, which tell one entry from the next.
const MARKERS: &str = "-e raw_syscalls:sys_enter -e raw_syscalls:sys_exit besides the event";
/// Any deferred chain.
const CHAINS: &str = "--call-graph fp,defer";
/// Records of tasks that come and go.
const LIFE: &str = "--all-cpus, while tasks fork, exec and exit";

/// The option of perf record that shows what an invariant needs.
#[must_use]
pub fn option(invariant: &str) -> Option<&'static str> {
    Some(match invariant {
        "C1" | "C2" | "D1" | "M1" | "M3" | "M5" | "P3" => MARKERS,
        "C3" => "--call-graph fp,defer, of two tasks that ask",
        "C4" | "C7" | "M2" | "M4" | "M7" | "D3" | "A1" | "A2" | "A8" => CHAINS,
        "C5" | "C6" => "--all-cpus, and check --alone if nothing else asked for stacks",
        "M6" => "--switch-events",
        "S3" => "--call-graph fp,defer with two events that receive record 22",
        "S5" | "A3" => "a second event at the same place that does not defer",
        "A4" => "--max-stack N",
        "X1" | "X2" | "X3" | "X4" => LIFE,
        _ => return None,
    })
}

/// A kernel of which nothing is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unknown;

impl KernelSymbols for Unknown {
    fn addresses(&self, _name: &str) -> Vec<u64> {
        Vec::new()
    }

    fn size(&self, _name: &str) -> Option<u64> {
        None
    }

    fn similar(&self, _name: &str) -> Vec<String> {
        Vec::new()
    }

    fn current_task_offset(&self) -> Option<u64> {
        None
    }

    fn is_unknown(&self) -> bool {
        true
    }

    fn resolve(&self, _address: u64) -> Option<(String, u64)> {
        None
    }
}

/// Judges a recording.
#[must_use]
pub fn judge(judge: &Judge<'_>, name: &str, trace: Trace) -> ScenarioResult {
    let mut result = ScenarioResult::not_run(name, Outcome::Fail, String::new());
    result.reasons.clear();
    let resolve = |address| judge.symbols.resolve(address);
    let code = entry_code(judge.symbols);
    let evidence = match judge.symbols.is_unknown() {
        true => Evidence::new(&trace),
        false => Evidence::new(&trace).named(&resolve).knowing(&code),
    };
    let every_cpu = trace.recorded.is_some_and(|it| it.every_cpu);
    let asked = |id: &str| match every_cpu {
        true => !OF_TRIALS.contains(&id),
        false => OF_ANY_CPU.contains(&id),
    };
    let unsaid = judge.check(&evidence, asked);
    (result.checks, result.violations) = (unsaid.checks, unsaid.violations);
    count(&trace, &mut result);
    let held = { result.checks.iter() }.any(|it| matches!(it.check, Check::Holds { .. }));
    let unknown = result.violations.iter().filter(|it| it.finding.is_none());
    let bad: Vec<String> = unknown.map(|it| it.violation.line()).collect();
    let alike = unsaid.near.iter().map(|id| match judge.symbols.is_unknown() {
        true => format!(
            "the events are as those of {id}; at which instructions they were is not known \
             (--kernel with the kernel that was recorded shows it)"
        ),
        false => format!(
            "not {id}, though the events are alike: in this kernel's code they are not at its instructions"
        ),
    });
    let cut = unsaid.cut.is_some();
    result.outcome = match (bad.is_empty(), result.violations.is_empty(), held) {
        (false, ..) => Outcome::Fail,
        _ if cut => Outcome::InfraError,
        (true, false, _) => Outcome::ExpectedFailure,
        (true, true, true) => Outcome::Pass,
        (true, true, false) => Outcome::Skip,
    };
    result.reasons.extend(unsaid.cut);
    result.reasons.extend(bad);
    result.reasons.extend(alike);
    if result.outcome == Outcome::ExpectedFailure {
        let found = result.violations.iter();
        result.reasons.extend(found.map(|it| it.violation.line()));
    }
    if result.outcome == Outcome::Skip {
        result.reasons.push(nothing(&trace));
    }
    result.trace = Some(trace);
    result
}

/// Why nothing was exercised.
fn nothing(trace: &Trace) -> String {
    let mut events = trace.tracing.iter().flat_map(|it| &it.events);
    match events.any(|it| it.defer_callchain) {
        true => "no sample of it has a deferred chain, and there is no record 22",
        false => "none of its events asks for deferred chains: perf record --call-graph fp,defer, by a perf and on a kernel that know it",
    }
    .to_owned()
}

/// Counts all tasks: nobody says which are the workload's.
fn count(trace: &Trace, result: &mut ScenarioResult) {
    let of = |keep: &dyn Fn(&EventKind) -> bool| {
        let kept = trace.events.iter().filter(|it| keep(&it.kind)).count();
        kept as u64
    };
    result.counts.samples =
        of(&|it| matches!(it, EventKind::Sample(sample) if sample.cookie().is_some()));
    result.counts.deferred = of(&|it| matches!(it, EventKind::CallchainDeferred(_)));
    let lost = trace.events.iter().map(|it| match it.kind {
        EventKind::Lost { lost, .. } | EventKind::LostSamples { lost } => lost,
        _ => 0,
    });
    result.counts.lost = lost.fold(0, u64::saturating_add);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::judge::JudgeLimit;
    use unwindlab_engine::interrupt::Interrupt;
    use unwindlab_oracle::invariant::INVARIANTS;
    use unwindlab_oracle::invariant::finding::Findings;
    use unwindlab_oracle::trace::perf_data::{Limits, PerfData};

    /// Two entries for each of five times: one that is answered, and F001.
    const RESET: &[u8] =
        include_bytes!("../../oracle/src/trace/fixtures/debian-7.3/reset.perf.data");

    fn judged(change: impl Fn(&mut Trace)) -> ScenarioResult {
        let mut trace = PerfData::read(RESET, Limits::default()).unwrap().trace;
        change(&mut trace);
        let interrupt = Interrupt::default();
        let all = Judge {
            invariants: INVARIANTS,
            findings: &Findings::embedded().unwrap(),
            symbols: &Unknown,
            compare_snapshots: false,
            limit: JudgeLimit::usual(&interrupt),
        };
        judge(&all, "perf.data", trace)
    }

    #[test]
    fn a_finding_is_not_matched_without_the_kernels_code() {
        let result = judged(|_| ());
        assert_eq!(result.outcome, Outcome::Fail);
        assert_eq!((result.counts.samples, result.counts.deferred), (10, 10));
        assert!(result.violations.iter().all(|it| it.finding.is_none()));
        let says = "the events are as those of F001";
        assert!(
            result.reasons.iter().any(|it| it.starts_with(says)),
            "{:?}",
            result.reasons
        );
    }

    #[test]
    fn a_pass_takes_an_invariant_that_was_exercised() {
        // One sample and its answer.
        let result = judged(|trace| trace.events.truncate(2));
        assert_eq!((result.outcome, result.reasons), (Outcome::Pass, vec![]));
        let result = judged(|trace| trace.events.clear());
        assert_eq!(result.outcome, Outcome::Skip);
        assert!(
            result.reasons[0].contains("no sample of it has"),
            "{:?}",
            result.reasons
        );
        let result = judged(|trace| *trace = Trace::default());
        assert_eq!(result.outcome, Outcome::Skip);
        assert!(
            result.reasons[0].contains("--call-graph fp,defer"),
            "{:?}",
            result.reasons
        );
    }

    #[test]
    fn each_invariant_is_of_trials_or_says_what_shows_it() {
        let of_trials: BTreeSet<&str> = OF_TRIALS.into_iter().collect();
        assert_eq!(of_trials.len(), OF_TRIALS.len());
        for invariant in INVARIANTS {
            let id = invariant.id;
            assert!(of_trials.contains(id) != option(id).is_some(), "{id}");
        }
        let known: BTreeSet<&str> = INVARIANTS.iter().map(|it| it.id).collect();
        assert!(of_trials.is_subset(&known));
    }
}
