//! What a kernel showed of stacks that are known at every instruction.

use unwindlab_oracle::invariant::Shown;

use crate::judge::ScenarioResult;

/// One line, for a trial of a workload whose stacks are known; empty for others.
#[must_use]
pub fn line(result: &ScenarioResult) -> String {
    let shown = result.trace.as_ref().and_then(Shown::of);
    let shown = shown.filter(|shown| shown.chains > 0);
    shown.map_or_else(String::new, |shown| format!("  {shown}\n"))
}
