//! NMIs at a fixed rate with one design: how far the program gets. The KVM host is deterministic: its clock counts the
//! instructions that QEMU executes, so that the machine's other load is in no figure.

use super::{Bench, WAYS, Way, row, scenario};
use crate::campaign::costs::Unmeasured;
use crate::campaign::error::CampaignError;
use crate::report::designs::{Storm, StormRow};
use unwindlab_abi::plan::SPIN_ROUNDS;
use unwindlab_oracle::trace::Trace;
use unwindlab_oracle::trace::recording::TrialEnd;
use unwindlab_scenario::Loaded;

/// What is injected.
pub(super) const INJECT: &str = "every: 2 ms, count: 200";
/// Noting returns would be most of what a sample costs.
pub(super) const MORE: &str = "witness: false\n";
/// The seeds of the hosts, one for each turn.
const SEEDS: [u64; 3] = [1, 2, 3];

pub(super) fn storms(
    bench: &mut Bench<'_>,
    depths: &[u32],
) -> Result<Vec<StormRow>, CampaignError> {
    let both = depths
        .iter()
        .flat_map(|&frames| WAYS.iter().map(move |way| (frames, way)));
    let mut rows: Vec<(&Way, StormRow)> = both
        .map(|(frames, way)| {
            let row = StormRow {
                frames,
                way: way.name,
                found: Ok(Vec::new()),
            };
            (way, row)
        })
        .collect();
    for seed in SEEDS {
        bench.restart(Some(seed))?;
        for (way, all) in &mut rows {
            let Ok(storms) = &mut all.found else { continue };
            let frames = all.frames;
            bench.say(&format!(
                "storm with seed {seed}, {frames} frames, {}",
                way.name
            ))?;
            let loaded = scenario(way, "spin", frames, INJECT, MORE)?;
            match row(storm(bench, way, &loaded))? {
                Ok(storm) => storms.push(storm),
                Err(reason) => all.found = Err(reason),
            }
        }
    }
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

fn storm(bench: &mut Bench<'_>, way: &Way, loaded: &Loaded) -> Result<Storm, Unmeasured> {
    let mut plan = bench.plan(loaded)?;
    if let Some(user_mode) = &mut plan.guest.user_mode {
        user_mode.instead = true;
    }
    let recording = bench.run(&plan)?;
    match &recording.end {
        TrialEnd::Completed => {}
        TrialEnd::Unsupported { reason } | TrialEnd::HostLacks { reason } => {
            return Err(Unmeasured::Lack(reason.clone()));
        }
        end => return Err(Unmeasured::Reason(format!("the trial ended by {end:?}"))),
    }
    let trace = Trace::decode(&recording);
    let progress = trace.progress.first();
    let progress = progress.ok_or_else(|| Unmeasured::Reason("no progress is known".to_owned()))?;
    let iterations = { progress.at_last_injection }.saturating_sub(progress.at_first_injection);
    let chains = trace
        .events
        .iter()
        .filter(|it| it.deferred_chain().is_some());
    let results = trace.user_mode.as_ref().map_or(0, |it| it.results.len());
    Ok(Storm {
        nmis: trace.injections.len() as u64,
        rounds: iterations.saturating_mul(SPIN_ROUNDS.into()),
        stacks: match way.unwinder {
            Some(_) => results as u64,
            None => chains.count() as u64,
        },
    })
}
