//! The invariants: each a property of a [`Trace`], one file each.
//!
//! An invariant answers one of three things: it holds (and on how much evidence), it is violated
//! (where), or the trace has nothing to judge it by. Only the first may be counted as checked.

use serde::{Deserialize, Serialize};

use crate::trace::Trace;

/// What an invariant says of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Check {
    /// It holds.
    Holds {
        /// How many things (samples, pairs, records) it was checked on; never 0.
        evidence: usize,
        /// Things it had to leave out, by the excuse (XA..XF) that was proved for each.
        excused: Vec<String>,
    },
    /// Nothing in the trace could have violated it.
    NotExercised {
        /// Why.
        reason: String,
    },
    /// It does not hold.
    Violated(Vec<Violation>),
}

/// One violation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// ID of the invariant, as in docs/invariants.md (`C1`).
    pub invariant: String,
    /// What is wrong, in one line, with the values that show it.
    pub message: String,
    /// [`crate::trace::Event::index`] of the events that show it, in order.
    pub events: Vec<usize>,
    /// The interrupted instruction, where one is known (symbol and offset are added by the
    /// report).
    pub instruction: Option<u64>,
}

/// A property of a trace.
pub trait Invariant: Sync {
    /// Stable ID (`C1`).
    fn id(&self) -> &'static str;
    /// One line: what must hold.
    fn title(&self) -> &'static str;
    /// Judges a trace.
    fn check(&self, trace: &Trace) -> Check;
}

/// All of them (temporary).
#[must_use]
pub fn registry() -> Vec<&'static dyn Invariant> {
    Vec::new()
}
