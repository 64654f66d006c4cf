//! The canonical form of a trace: what a snapshot holds.
//!
//! Two runs that did the same have the same canonical form, on any kernel build and any KVM host.
//! Cookies are named `c0`, `c1`... in order of appearance. User addresses are symbol and offset
//! (the agent is the same binary everywhere), kernel addresses are function names, and tasks are
//! named by workload thread. There are no times, pids, CPUs or addresses.
//!
//! A snapshot never replaces an invariant: it shows a reader what happened, and that it happens
//! again.

mod events;
mod names;
mod place;
mod shapes;
mod stack;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::Trace;

/// Returns function name and offset of a kernel address.
pub type KernelResolver<'a> = &'a dyn Fn(u64) -> Option<(String, u64)>;

/// How much of a trace its snapshot shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotStyle {
    /// One line per record of interest, in order: for scenarios that place every injection.
    #[default]
    Events,
    /// The set of distinct request and stack shapes: for scenarios that inject at random.
    Shapes,
}

/// The canonical form; ends with a newline, and says so when there is nothing to show.
#[must_use]
pub fn canonical(trace: &Trace, style: SnapshotStyle, kernel: KernelResolver<'_>) -> String {
    let (mut lines, nothing) = match style {
        SnapshotStyle::Events => (events::lines(trace, kernel), "no events"),
        SnapshotStyle::Shapes => (shapes::lines(trace, kernel), "no shapes"),
    };
    if lines.is_empty() {
        lines.push(nothing.to_owned());
    }
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests;
