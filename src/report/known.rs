//! What a kernel, or the program itself, showed of stacks that are known.

use unwindlab_oracle::invariant::{OwnStacks, Shown, Signals};

use crate::judge::ScenarioResult;

/// A line for a trial of a workload whose stacks are known, and those for a program that unwinds itself; empty for others.
#[must_use]
pub fn line(result: &ScenarioResult) -> String {
    let shown = result.trace.as_ref().and_then(Shown::of);
    let shown = shown.filter(|shown| shown.chains > 0);
    let mut line = shown.map_or_else(String::new, |shown| format!("  {shown}\n"));
    if let Some(own) = result.trace.as_ref().and_then(OwnStacks::of) {
        line.push_str(&format!("  {own}\n"));
    }
    if let Some(nonces) = &result.nonce_stacks {
        line.push_str(&format!("  {nonces}\n"));
    }
    let signals = result.trace.as_ref().and_then(Signals::of);
    if let Some(signals) = signals.filter(|it| !it.has_nonces) {
        line.push_str(&format!("  {signals}\n"));
    }
    line
}
