//! W1: every ring could be read to its end.

use super::verdict::Verdict;
use super::{Check, Invariant};
use crate::trace::Trace;

/// W1. No ring held what cannot be: a head behind the tail, a record of no length or beyond the
/// head, a body too short for its type. Of a ring that did, what was read before is still
/// judged, and nothing after it can be missed: for the other invariants it is a loss (XA).
#[derive(Debug)]
pub struct Rings;

impl Invariant for Rings {
    fn id(&self) -> &'static str {
        "W1"
    }

    fn title(&self) -> &'static str {
        "every ring buffer makes sense to its end"
    }

    fn check(&self, trace: &Trace) -> Check {
        let mut verdict = Verdict::new(self.id());
        for why in &trace.corrupt {
            verdict.violated(why.clone(), [], None);
        }
        for _ in &trace.rings {
            verdict.holds();
        }
        verdict.finish("no rings")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, not_exercised, violations};
    use super::*;

    #[test]
    fn readable_rings_hold() {
        assert_eq!(holds(&Rings, &Kit::new(2)).0, 2);
    }

    #[test]
    fn a_corrupt_one_does_not() {
        let mut kit = Kit::new(2);
        kit.corrupt("ring 1: head behind tail");
        assert_eq!(violations(&Rings, &kit).len(), 1);
    }

    #[test]
    fn no_rings_do_not_exercise_it() {
        not_exercised(&Rings, &Kit::new(0));
    }
}
