//! Counts of a trace.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use unwindlab_oracle::trace::{EventKind, Trace};

/// Counts of one trace. Samples and chains count only for the workload's tasks: its threads and the
/// processes that they start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Number of deferred chains by number of frames.
    pub frames: BTreeMap<u64, u64>,
}

impl Counts {
    /// Counts a trace.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
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
