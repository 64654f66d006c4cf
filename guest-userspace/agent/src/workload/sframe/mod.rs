//! SFrame sections that are hostile, wrong or taken away, and the chain without frame pointers as
//! the kernel then shows it. The host knows the chains by the order of the requests.

mod cases;
mod fields;
mod ground;
mod in_walk;
mod lives;
mod reads;

use unwindlab_abi::{Observation, WorkloadKind};

use super::WorkloadError;
use crate::chain::Chain;
pub use lives::after_exec;

/// Runs a kind of workload that registers sections of its own. Returns what was done with them.
pub(super) fn run(
    chain: Chain,
    thread: u32,
    kind: WorkloadKind,
    stack_bytes: usize,
) -> Result<Vec<Observation>, WorkloadError> {
    let mut ground = ground::Ground::new(chain, thread, stack_bytes)?;
    match kind {
        WorkloadKind::SframeFields => fields::run(&mut ground)?,
        WorkloadKind::SframeReads => reads::run(&mut ground)?,
        WorkloadKind::SframeLives => lives::run(&mut ground)?,
        _ => {
            cases::run(&mut ground)?;
            in_walk::run(&mut ground)?;
            lives::hostile(&mut ground)?;
        }
    }
    Ok(ground.observations())
}
