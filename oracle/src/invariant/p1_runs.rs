//! P1: the task work runs once in an entry, and once more for each client that joins.

use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// P1. Counted from the order in which clients are called, so it is a lower bound: runs that call
/// nobody are not seen.
#[derive(Debug)]
pub struct Runs;

impl Invariant for Runs {
    fn id(&self) -> &'static str {
        "P1"
    }

    fn title(&self) -> &'static str {
        "the task work runs once in an entry, and once more for each client that joins"
    }

    fn check(&self, trace: &Trace) -> Check {
        let mut verdict = Verdict::new(self.id());
        lab::judge(trace, &mut verdict, lab::matching::runs);
        verdict.finish("no callback of the lab client")
    }
}
