//! R1: the first request of a client in an entry returns 0, later ones 1 or more.

use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// R1. Requests overlap where an NMI asks in the middle of another; of those any may be the first.
#[derive(Debug)]
pub struct FirstIsZero;

impl Invariant for FirstIsZero {
    fn id(&self) -> &'static str {
        "R1"
    }

    fn title(&self) -> &'static str {
        "the first request of a client in an entry returns 0, later ones 1 or more"
    }

    fn check(&self, trace: &Trace) -> Check {
        let mut verdict = Verdict::new(self.id());
        lab::judge(trace, &mut verdict, lab::requests::first_is_zero);
        verdict.finish("no request of the lab client")
    }
}
