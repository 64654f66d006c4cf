//! The trial that every set-up changes.

use crate::campaign::Context;
use crate::campaign::error::CampaignError;
use unwindlab_scenario::Loaded;
use unwindlab_scenario::check::check;
use unwindlab_scenario::parse::parse;

const FILE: &str = "setups.yaml";
const NAME: &str = "setups";

/// One thread, so that its stays in the kernel follow one another; the iterations and the events
/// are the set-up's. The workload ends by itself.
const TEXT: &str = "
name: setups
description: One set-up of perf.
workload: { kind: perf-calls, frames: 13, iterations: 6 }
perf:
  events:
    - { name: reference, event: dummy, task: true, defer-output: true }
    - { name: enter, event: raw_syscalls:sys_enter, period: 1, sample: [raw], output-to: reference }
";

/// The scenario.
pub(super) fn base(context: Context<'_>) -> Result<Loaded, CampaignError> {
    let scenario = parse(FILE, TEXT)
        .and_then(|written| check(FILE, NAME, written, &context.analysis.invariant_ids()))?;
    Ok(Loaded {
        file: FILE.to_owned(),
        text: TEXT.to_owned(),
        scenario,
        snapshot: None,
    })
}
