//! The parts of a sweep of places together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::parts::{Lines, Parts};
use super::{Merged, SeenPlaces};
use crate::campaign::part::Units;
use crate::campaign::requests::PlacesSummary;
use crate::judge::requests::{Fate, PlaceRecord, RequestVerdicts};

/// All places that any survey saw. Of two trials of one place the worse counts.
pub(super) fn merged(
    lines: &Lines,
    parts: &Parts<'_>,
    mut lacks: Vec<String>,
) -> Merged<SeenPlaces> {
    let mut verdicts = RequestVerdicts::default();
    for unit in parts.units.iter().flat_map(Units::each) {
        let is_its = |it: &PlaceRecord| it.verdict.place.to_string() == unit.name;
        let records = parts.read(&unit, is_its, "the trial of another place", &mut lacks);
        let badness = |it: &PlaceRecord| match it.verdict.fate {
            Fate::Failed => 4,
            Fate::Untested(_) => 3,
            Fate::Known => 2,
            Fate::Passed => 1,
            Fate::Declined | Fate::NotReached | Fate::Refused(_) => 0,
        };
        if let Some(record) = records.into_iter().max_by_key(badness) {
            verdicts.add(record);
        }
    }
    let summary = PlacesSummary {
        verdicts,
        sweeps: None,
        found: parts.units.len(),
        elapsed: Duration::ZERO,
        release: parts.head.release.clone(),
        kvm_host: String::new(),
    };
    let class = summary.class();
    let places = SeenPlaces {
        summary,
        seen_once: seen_once(lines),
    };
    Merged::new(places, class, parts, lacks)
}

/// How many places one part alone saw, where there are several.
fn seen_once(lines: &Lines) -> usize {
    let mut seen: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    let mut parts = BTreeSet::new();
    for (_, _, head) in &lines.heads {
        parts.insert(head.shard.number);
        for unit in &head.units {
            seen.entry(&unit.name)
                .or_default()
                .insert(head.shard.number);
        }
    }
    let once = seen.values().filter(|it| it.len() == 1 && parts.len() > 1);
    once.count()
}
