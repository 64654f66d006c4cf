//! `perf-calls`: as `deep`; in one iteration the leaf does something to a perf event just before
//! its `getppid`. A request that the event makes when that system call begins is pending while the
//! operation runs.

use super::{WorkloadError, failed};
use crate::chain::Chain;

/// Runs all iterations.
pub(super) fn run(chain: &Chain, thread: u32) -> Result<(), WorkloadError> {
    let mut iteration = 0;
    while chain.goes_on() {
        iteration += 1;
        let operation = chain.shared().operation();
        let due = operation.filter(|it| thread == 0 && it.iteration == iteration);
        let [before, _] = chain.before();
        match &due {
            Some(it) => before.set(it.number, &it.arguments),
            None => before.unset(),
        }
        chain.run();
        if due.is_some() {
            let answer = before.answer();
            answer.map_err(failed(thread, "its operation on a perf event"))?;
        }
    }
    Ok(())
}
