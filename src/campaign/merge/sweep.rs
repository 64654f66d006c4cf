//! The parts of a sweep together.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use super::{MergeError, MergedSweep};
use crate::campaign::Context;
use crate::judge::outcome::OutcomeClass;
use crate::judge::sweep::{PairCounts, SweepSymptom, Verdicts};
use crate::judge::sweep_record::{
    RecordedFailure, RecordedPath, SweepLeft, SweepRecord, SweepRecordError,
};
use crate::report::sweep::Summary;
use unwindlab_engine::plan::Shard;
use unwindlab_engine::plan::sweep::{Boundary, Point, Reach, Step, Tried, boundaries};
use unwindlab_oracle::trace::Recording;

/// Points that are named, of those that no part tried.
const MAX_NAMED: usize = 12;
/// The lowest address of the kernel.
const KERNEL: u64 = 1 << 63;

/// Records with the files that they are from.
pub(super) type Parts = Vec<(PathBuf, SweepRecord)>;

/// Reads a record.
pub(super) fn read(text: &str) -> Result<SweepRecord, SweepRecordError> {
    let record = SweepRecord::read(text)?;
    match record.shard {
        Some(shard) if !shard.is_valid() => Err(SweepRecordError::OtherSweep("part (--shard)")),
        _ => Ok(record),
    }
}

/// Says where two parts are not of one sweep.
pub(super) fn check(parts: &Parts) -> Result<(), MergeError> {
    let Some((file, first)) = parts.first() else {
        return Ok(());
    };
    for (other, record) in parts {
        let parts = |record: &SweepRecord| record.shard.map(|it| it.of);
        let number = (parts(first) != parts(record)).then_some("number of parts (--shard)");
        let what = { first.identity.differs(&record.identity) }
            .or_else(|| first.choice.differs(&record.choice))
            .or(number);
        if let Some(what) = what {
            return Err(MergeError::Mixed {
                file: other.clone(),
                other: file.clone(),
                what: what.to_owned(),
            });
        }
    }
    Ok(())
}

/// All parts as one record, and what they lack.
pub(super) fn merged(parts: &Parts) -> Option<(SweepRecord, Vec<String>)> {
    let (_, first) = parts.first()?;
    let merging = Merging::of(parts, first);
    let mut lacks = merging.missing_parts(first.shard);
    lacks.extend(merging.untried(parts, first));
    lacks.extend(merging.fewer_pairs(first.shard));
    let tried: BTreeSet<Point> = merging.tried.values().copied().collect();
    let mut left = merging.left(parts);
    left.ended = lacks.is_empty();
    let failed: BTreeSet<Tried> = { merging.failures.values() }
        .flat_map(|it| it.points.iter().map(Point::tried))
        .collect();
    let record = SweepRecord {
        passed: u32::try_from(tried.len().saturating_sub(failed.len())).unwrap_or(u32::MAX),
        tried,
        failures: merging.failures.into_values().collect(),
        exercised: sums(merging.by_part.values().map(|it| it.exercised.clone())),
        shard: None,
        path: RecordedPath {
            chosen: merging.chosen.into_iter().collect(),
            names: merging.names,
            ..first.path.clone()
        },
        pairs: { merging.by_part.values().filter_map(|it| it.pairs) }.reduce(PairCounts::and),
        left,
        ..first.clone()
    };
    Some((record, lacks))
}

/// What is known of one part, from all its files.
#[derive(Default)]
struct Part {
    ended: bool,
    tried: usize,
    chosen: BTreeSet<Boundary>,
    pairs: Option<PairCounts>,
    /// It says by itself what it has not tried.
    is_told: bool,
    exercised: BTreeMap<String, u32>,
}

/// What is known from all files.
struct Merging {
    /// By the number of the part; 1 of a sweep in one part.
    by_part: BTreeMap<u32, Part>,
    tried: BTreeMap<Tried, Point>,
    failures: BTreeMap<SweepSymptomKey, RecordedFailure>,
    chosen: BTreeSet<Boundary>,
    names: BTreeMap<u64, String>,
    /// Numbers of the boundaries in the path of the first file.
    numbers: BTreeMap<Boundary, u32>,
}

type SweepSymptomKey = (Option<String>, BTreeSet<(String, Option<String>)>);

impl Merging {
    fn of(parts: &Parts, first: &SweepRecord) -> Self {
        let mut merging = Self {
            by_part: BTreeMap::new(),
            tried: BTreeMap::new(),
            failures: BTreeMap::new(),
            chosen: BTreeSet::new(),
            names: BTreeMap::new(),
            numbers: boundaries(&steps(&first.path))
                .into_iter()
                .zip(0..)
                .collect(),
        };
        for (_, record) in parts {
            merging.add(record);
        }
        merging
    }

    fn add(&mut self, record: &SweepRecord) {
        let number = record.shard.map_or(1, |it| it.number);
        let part = self.by_part.entry(number).or_default();
        part.ended |= record.left.ended;
        part.is_told |= !record.left.missed.is_empty() || !record.left.unjudged.is_empty();
        part.tried = part.tried.max(record.tried.len());
        part.chosen.extend(&record.path.chosen);
        // Of two files of one part, the one that came further.
        let known = |pairs: Option<PairCounts>| pairs.map(|it| (it.known, it.far));
        if known(record.pairs) > known(part.pairs) {
            part.pairs = record.pairs;
        }
        for (invariant, points) in &record.exercised {
            let most = part.exercised.entry(invariant.clone()).or_default();
            *most = (*most).max(*points);
        }
        self.chosen.extend(&record.path.chosen);
        self.names.extend(record.path.names.clone());
        for point in &record.tried {
            let point = self.renumbered(*point);
            self.tried.insert(point.tried(), point);
        }
        for failure in &record.failures {
            let key = (failure.died.clone(), failure.fell.clone());
            let points: BTreeSet<Point> = { failure.points.iter() }
                .map(|it| self.renumbered(*it))
                .collect();
            let all = self.failures.entry(key).or_insert_with(|| RecordedFailure {
                points: BTreeSet::new(),
                ..failure.clone()
            });
            // The messages are those of the first point.
            if all.points.first() > points.first() {
                all.messages.clone_from(&failure.messages);
            }
            all.points.extend(points);
        }
    }

    fn renumbered(&self, point: Point) -> Point {
        Point {
            number: self.numbers.get(&point.at).copied().unwrap_or(point.number),
            ..point
        }
    }

    /// What all files have left that none has tried.
    fn left(&self, parts: &Parts) -> SweepLeft {
        let mut left = SweepLeft::default();
        let mut known = HashSet::new();
        for (_, record) in parts {
            let is_left = |point: &Point| !self.tried.contains_key(&point.tried());
            let missed = record.left.missed.iter().copied().filter(is_left);
            left.missed.extend(missed.map(|it| self.renumbered(it)));
            let unjudged = record.left.unjudged.iter().filter(|it| is_left(&it.0));
            let unjudged = unjudged.map(|(point, why)| (self.renumbered(*point), why.clone()));
            left.unjudged.extend(unjudged);
            for unsteady in &record.left.unsteady {
                let mut unsteady = unsteady.clone();
                unsteady.point = self.renumbered(unsteady.point);
                if known.insert(format!("{unsteady:?}")) {
                    left.unsteady.push(unsteady);
                }
            }
        }
        left.missed.sort_unstable();
        left.missed.dedup();
        left
    }

    /// The parts that are not there, or did not come to their end.
    fn missing_parts(&self, shard: Option<Shard>) -> Vec<String> {
        let of = shard.map_or(1, |it| it.of);
        let told = |number| match (self.by_part.get(&number), shard) {
            (None, _) => Some(format!("part {number}/{of} is missing")),
            (Some(part), _) if part.ended => None,
            (Some(part), Some(_)) => Some(format!(
                "part {number}/{of} did not come to its end: {} trials are over",
                part.tried
            )),
            (Some(_), None) => Some("the sweep did not come to its end".to_owned()),
        };
        (1..=of).filter_map(told).collect()
    }

    /// Boundaries of some part's path that no part has tried, though the one that has to came to its end: the path was
    /// another one in its boot. Of pairs, those that were not on its path.
    fn untried(&self, parts: &Parts, first: &SweepRecord) -> Option<String> {
        let told = parts.iter().flat_map(|(_, record)| {
            let unjudged = record.left.unjudged.iter().map(|it| it.0.at);
            record.left.missed.iter().map(|it| it.at).chain(unjudged)
        });
        let told: BTreeSet<Boundary> = told.collect();
        let of = first.shard.map_or(1, |it| it.of);
        let lacks = |at: &&Boundary| {
            let owner = (1..=of).find(|number| {
                let number = *number;
                first.shard.is_none() || Shard { number, of }.has(**at)
            });
            let part = owner.and_then(|owner| self.by_part.get(&owner));
            let is_tried = self.tried.contains_key(&(**at, None)) || told.contains(*at);
            let may_lack = |part: &Part| part.pairs.is_some() && part.chosen.contains(*at);
            !is_tried && part.is_some_and(|part| part.ended && !may_lack(part))
        };
        let lacking: Vec<&Boundary> = self.chosen.iter().filter(lacks).collect();
        let name = |at: &&Boundary| {
            let start = self.names.range(..=at.rip).next_back();
            let name = start.map_or_else(String::new, |(start, name)| {
                format!("{name}+{:#x}, ", at.rip - start)
            });
            format!("{name}time {}", at.occurrence)
        };
        let named: Vec<String> = lacking.iter().take(MAX_NAMED).map(name).collect();
        (!lacking.is_empty()).then(|| {
            format!(
                "{} points were tried by no part: {}",
                lacking.len(),
                named.join("; ")
            )
        })
    }
}

impl Merging {
    /// Parts that came to their end, and have fewer pairs than they counted.
    fn fewer_pairs(&self, shard: Option<Shard>) -> Vec<String> {
        let of = shard.map_or(1, |it| it.of);
        let told = |(number, part): (&u32, &Part)| {
            let pairs = part.pairs.filter(|_| part.ended && !part.is_told)?;
            let counted = pairs.near.saturating_add(pairs.far);
            let is_whole = pairs.known == pairs.stand_for_all && part.tried as u64 >= counted;
            let tried = part.tried;
            (!is_whole).then(|| {
                format!(
                    "part {number}/{of} tried {tried} of {counted} pairs, behind {} of {} first NMIs \
                     that represent others",
                    pairs.known, pairs.stand_for_all
                )
            })
        };
        self.by_part.iter().filter_map(told).collect()
    }
}

/// The sums of counts.
fn sums(counts: impl Iterator<Item = BTreeMap<String, u32>>) -> BTreeMap<String, u32> {
    let mut all: BTreeMap<String, u32> = BTreeMap::new();
    for (name, count) in counts.flatten() {
        let sum = all.entry(name).or_default();
        *sum = sum.saturating_add(count);
    }
    all
}

fn steps(path: &RecordedPath) -> Vec<Step> {
    let step = |rip: &u64| Step {
        rip: *rip,
        task: 0,
        user: *rip < KERNEL,
        reach: Reach::default(),
        local: false,
        clock: None,
    };
    path.instructions.iter().map(step).collect()
}

/// The report of a merged record, which lacks this.
pub(super) fn report<T>(
    record: &SweepRecord,
    lacks: &[String],
    context: Context<'_>,
    tell: impl FnOnce(&MergedSweep<'_>) -> T,
) -> T {
    let judge = context.judge(&record.path, false);
    let mut verdicts = Verdicts::new(judge, Recording::default(), steps(&record.path));
    verdicts.left_out.clone_from(&record.path.left_out);
    verdicts.resume(record.clone());
    verdicts.before = 0;
    verdicts.pairs = record.pairs;
    verdicts.missed.clone_from(&record.left.missed);
    verdicts.unjudged.clone_from(&record.left.unjudged);
    let class = if !verdicts.failures.keys().all(SweepSymptom::is_known) {
        OutcomeClass::Bad
    } else if !record.left.is_nothing() || !lacks.is_empty() || record.tried.is_empty() {
        OutcomeClass::Untested
    } else {
        OutcomeClass::Good
    };
    tell(&MergedSweep {
        summary: Summary {
            verdicts: &verdicts,
            chosen: record.path.chosen.len(),
            effort: None,
            elapsed: Duration::ZERO,
            cut: None,
        },
        record,
        lacks,
        class,
    })
}
