//! What the instances held, as it is recorded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use unwindlab_abi::tracefs::{
    ChurnKind, MAX_INSTANCES, PART_BYTES, TracefsFormat, TracefsPart, TracefsPlan,
};

use super::TracefsClient;

/// Most bytes of sub-buffers of a trial.
const MAX_BYTES: usize = 256 << 20;
/// Most format files, and bytes of one.
const MAX_FORMATS: usize = 16;
/// Most times that instances are made in a trial.
const MAX_LIVES: usize = 4096;
/// Most CPUs that write.
const MAX_CPUS: usize = 64;

/// What the instances held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracefsLog {
    /// What was planned.
    pub plan: TracefsPlan,
    /// The format files, by event.
    pub formats: Vec<(String, String)>,
    /// What the buffers held.
    pub held: TracefsHeld,
}

/// What the buffers held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracefsHeld {
    /// The sub-buffers, one entry for each instance, life and CPU.
    pub pages: Vec<TracefsPages>,
    /// Events lost, by instance and life.
    pub lost: Vec<(u32, u32, u64)>,
}

/// The sub-buffers of one CPU, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracefsPages {
    /// Index of the instance.
    pub instance: u32,
    /// How often it had been removed.
    pub life: u32,
    /// The CPU.
    pub cpu: u32,
    /// Sub-buffer after sub-buffer.
    pub bytes: Vec<u8>,
    /// Number of the first one.
    #[serde(default)]
    pub first: usize,
    /// Bytes of events at the start of the first one that were there before.
    #[serde(default)]
    pub skip: usize,
    /// There is no empty one behind them: what was written later was dropped.
    #[serde(default)]
    pub is_full: bool,
}

impl TracefsLog {
    /// Nothing yet, of these instances.
    #[must_use]
    pub fn of(plan: TracefsPlan) -> Self {
        Self {
            plan,
            ..Self::default()
        }
    }

    /// Adds a format file; `false` where there is more than any trial has.
    #[must_use]
    pub fn add_format(&mut self, format: TracefsFormat) -> bool {
        let fits = self.formats.len() < MAX_FORMATS && format.text.len() <= PART_BYTES;
        let format = (format.event, format.text);
        self.formats.extend(fits.then_some(format));
        fits
    }

    /// Adds a part; `false` where there is more than any trial has.
    #[must_use]
    pub fn add(&mut self, part: TracefsPart) -> bool {
        let held = &mut self.held;
        match part {
            TracefsPart::Lost {
                instance,
                life,
                events,
            } => {
                let fits = held.lost.len() < MAX_INSTANCES * MAX_LIVES;
                held.lost.extend(fits.then_some((instance, life, events)));
                fits
            }
            TracefsPart::Pages {
                instance,
                life,
                cpu,
                bytes,
            } => {
                let bytes_held: usize = held.pages.iter().map(|it| it.bytes.len()).sum();
                if bytes_held.saturating_add(bytes.len()) > MAX_BYTES {
                    return false;
                }
                let is_it = |it: &&mut TracefsPages| {
                    (it.instance, it.life, it.cpu) == (instance, life, cpu)
                };
                if let Some(pages) = held.pages.iter_mut().find(is_it) {
                    pages.bytes.extend(bytes);
                    return true;
                }
                held.pages.push(TracefsPages {
                    instance,
                    life,
                    cpu,
                    bytes,
                    first: 0,
                    skip: 0,
                    is_full: false,
                });
                held.pages.len() <= MAX_INSTANCES * MAX_LIVES.min(MAX_CPUS * 64)
            }
        }
    }

    /// All instances and lives of which something is known, in order.
    fn keys(&self) -> Vec<(u32, u32)> {
        let planned = (0..).zip(&self.plan.instances).map(|(at, _)| (at, 0));
        let seen = self.held.pages.iter().map(|it| (it.instance, it.life));
        let known = |key: &(u32, u32)| {
            usize::try_from(key.0).is_ok_and(|at| at < self.plan.instances.len())
        };
        let mut keys: Vec<_> = planned.chain(seen).filter(known).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// All clients, by number, and their numbers by instance and life.
    pub(super) fn clients(&self) -> (Vec<TracefsClient>, BTreeMap<(u32, u32), usize>) {
        let keys = self.keys();
        let mut told: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for &(instance, life, events) in &self.held.lost {
            let lost = told.entry((instance, life)).or_default();
            *lost = lost.saturating_add(events);
        }
        let client = |&(instance, life): &(u32, u32)| {
            let at = usize::try_from(instance).unwrap_or(usize::MAX);
            let name = self.plan.instances.get(at).map_or("?", |it| &it.name);
            let lost = told.get(&(instance, life)).copied();
            TracefsClient {
                name: match life {
                    0 => name.to_owned(),
                    life => format!("{name}.{life}"),
                },
                // It is told behind the sub-buffers: a guest that hangs sends none.
                lost: lost.unwrap_or(u64::MAX),
                cancels: self.plan.churn.is_some(),
                full_from: None,
                ends_early: { self.plan.churn }.is_some_and(|it| it.what == ChurnKind::Remove),
            }
        };
        let clients = keys.iter().map(client).collect();
        (clients, keys.into_iter().zip(0..).collect())
    }
}
