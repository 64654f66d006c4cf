//! What a part of a sweep (`--shard`) costs before its first trial: the KVM host's start, the guest's boot, and recording
//! the path. A sweep on many machines pays that on each.

use std::error::Error;
use std::time::Instant;

use unwindlab_engine::plan::sweep::SweepPlan;
use unwindlab_engine::plan::{Executor, Shard};

use super::trials::judged;
use super::{Better, Line, PeerSeries, Row, RowError, number};
use crate::bench::series::Series;
use crate::judge::Judge;

/// The part: large enough that a trial's time is a mean of hundreds.
pub const PART: Shard = Shard { number: 1, of: 8 };

/// Makes a part of a sweep `rounds` times, each on a KVM host of its own.
pub fn shard<E: Error>(
    (plan, judge): (&SweepPlan, Judge<'_>),
    rounds: u32,
    mut start: impl FnMut(u32) -> Result<Box<dyn Executor>, E>,
) -> Line {
    let (mut before, mut one) = (Series::default(), Series::default());
    let mut trials = 0;
    for round in 0..rounds {
        before.take(|| {
            let begin = Instant::now();
            let host = start(round).map_err(|error| RowError::Sweep(error.to_string()));
            let swept = judged(host?.as_mut(), plan, judge)?;
            trials = swept.trials;
            one.add(1e3 * swept.seconds / number(trials as u64));
            Ok::<_, RowError>(1e3 * swept.begin.duration_since(begin).as_secs_f64())
        });
    }
    if let Some(why) = &before.failed {
        one.failed.get_or_insert_with(|| why.clone());
    }
    let kind = format!("a part of {PART} of a sweep of {}", plan.trial.scenario);
    Line {
        row: Row::Shard,
        what: "what a part of a sweep costs before its first trial",
        unit: "ms",
        better: Better::Less,
        ours: before,
        peer: Some(PeerSeries {
            name: "one trial",
            series: one,
        }),
        promises: Vec::new(),
        notes: vec![format!(
            "{kind}, {trials} trials: start of the KVM host, boot, recording of the path; the ratio is the trials that it is worth"
        )],
        parameters: vec![format!("{kind}, {} machines", plan.jobs)],
    }
}
