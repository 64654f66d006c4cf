//! Counts of a trace.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::result::InvariantCheck;
use unwindlab_abi::user_mode::Asked;
use unwindlab_oracle::invariant::{Check, Evidence, Signals};
use unwindlab_oracle::trace::EventKind;

/// Counts of one trace. Samples and chains count only for the workload's tasks: its threads and the
/// processes that they start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Counts {
    /// Samples with a deferred chain, S(c).
    pub samples: u64,
    /// Deferred chains, D(c): records of type 22.
    pub deferred: u64,
    /// Different cookies among both.
    pub cookies: u64,
    /// Samples that came after their deferred chain.
    pub late: u64,
    /// Records that the kernel reports as lost, of all tasks.
    pub lost: u64,
    /// Injections made.
    pub injections: u64,
    /// Nonces of user mode for which a signal was sent.
    #[serde(default)]
    pub nonces: u64,
    /// Samples that used a pending nonce again.
    #[serde(default)]
    pub reused: u64,
    /// Signals that the kernel refused.
    #[serde(default)]
    pub refused: u64,
    /// Results that handlers wrote.
    #[serde(default)]
    pub results: u64,
    /// Signals that it refused with `EBUSY`.
    #[serde(default)]
    pub busy: u64,
    /// Samples of threads that had not opted in.
    #[serde(default)]
    pub unasked: u64,
    /// What a program saw of the kernel that its twin saw otherwise.
    #[serde(default)]
    pub changed: u64,
    /// Nonces before whose handler the thread ran other code.
    #[serde(default)]
    pub late_results: u64,
    /// Results with another stack than the thread's at the interruption.
    #[serde(default)]
    pub wrong_results: u64,
    /// Different values of the signals of all results.
    #[serde(default)]
    pub values: u64,
    /// Signals of timers that were not sent, as results tell.
    #[serde(default)]
    pub overruns: u64,
    /// Results of threads that are none of the workload's.
    #[serde(default)]
    pub strangers: u64,
    /// Number of deferred chains by number of frames.
    pub frames: BTreeMap<u64, u64>,
}

impl Counts {
    /// The invariants whose violations are counted.
    pub const VIOLATIONS: [&str; 3] = ["N2", "N3", "N5"];

    /// Counts a trace, of which these invariants say this.
    #[must_use]
    pub fn of(evidence: &Evidence<'_>, checks: &[InvariantCheck]) -> Self {
        let trace = evidence.trace();
        let mut pids: BTreeSet<u32> = trace.threads.iter().map(|thread| thread.pid).collect();
        for event in &trace.events {
            match event.kind {
                EventKind::Fork { pid, ppid, .. } if pids.contains(&ppid) => pids.insert(pid),
                _ => false,
            };
        }
        let mut counts = Self {
            injections: trace.injections.len() as u64,
            ..Self::default()
        };
        if let Some(user_mode) = &trace.user_mode {
            let asked = |what| {
                let requests = user_mode.requests.iter();
                requests.filter(|it| it.asked == what).count() as u64
            };
            counts.nonces = asked(Asked::Sent);
            counts.reused = asked(Asked::Again);
            counts.refused = asked(Asked::Refused);
            counts.unasked = asked(Asked::NotOptedIn);
            let busy = user_mode.requests.iter().filter(|it| it.answer == BUSY);
            counts.busy = busy.count() as u64;
            counts.results = user_mode.results.len() as u64;
            [counts.late_results, counts.wrong_results, counts.changed] =
                Self::VIOLATIONS.map(|id| violations(checks, id));
            let signals = Signals::of(evidence.trace()).unwrap_or_default();
            counts.values = signals.values as u64;
            counts.overruns = signals.overruns;
            counts.strangers = signals.strangers as u64;
        }
        let mut cookies = BTreeSet::new();
        let mut answered = BTreeSet::new();
        for event in &trace.events {
            if let EventKind::Lost { lost, .. } | EventKind::LostSamples { lost } = &event.kind {
                counts.lost = counts.lost.saturating_add(*lost);
            }
            if !event.pid.is_some_and(|pid| pids.contains(&pid)) {
                continue;
            }
            if let Some((_, cookie)) = event.deferred_sample() {
                counts.samples += 1;
                counts.late += u64::from(answered.contains(&cookie));
                cookies.insert(cookie);
            }
            if let Some(chain) = event.deferred_chain() {
                counts.deferred += 1;
                *counts
                    .frames
                    .entry(chain.frames().len() as u64)
                    .or_default() += 1;
                answered.insert(chain.cookie);
                cookies.insert(chain.cookie);
            }
        }
        counts.cookies = cookies.len() as u64;
        counts
    }
}

/// `-EBUSY`.
const BUSY: i64 = -16;

/// How often an invariant is violated.
fn violations(checks: &[InvariantCheck], id: &str) -> u64 {
    let found = checks.iter().find(|it| it.invariant == id);
    match found.map(|it| &it.check) {
        Some(Check::Violated(list)) => list.len() as u64,
        _ => 0,
    }
}
