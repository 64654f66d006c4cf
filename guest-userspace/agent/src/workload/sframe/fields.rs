//! Right sections with one field wrong, thousands of them. Each follows from its number.

use unwindlab_abi::sframe::SframeCase;
use unwindlab_sframe::Numbers;

use super::super::WorkloadError;
use super::ground::{ENCODINGS, Ground, whole};

/// The seed of all trials. Those of one number are the same in each run.
pub(super) const SEED: u64 = 0x5f4a;

/// A trial for each iteration.
pub(super) fn run(ground: &mut Ground) -> Result<(), WorkloadError> {
    whole(ground)?;
    let right = ENCODINGS
        .iter()
        .map(|&encoding| ground.encoded(encoding))
        .collect::<Result<Vec<_>, _>>()?;
    let mut trial = 0;
    while ground.chain.goes_on() {
        let mut numbers = Numbers::of(SEED, trial.into());
        let index = usize::try_from(trial).unwrap_or(0) % right.len().max(1);
        let Some(mut section) = right.get(index).cloned() else {
            break;
        };
        section.make_wrong(&mut numbers);
        ground.offer(SframeCase::Field, trial, &section.bytes)?;
        trial += 1;
    }
    Ok(())
}
