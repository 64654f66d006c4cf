//! W1: every ring could be read to its end.

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// W1. No ring held anything impossible: a head behind the tail, a record of no length or beyond
/// the head, a body too short for its type. What was read of such a ring before that point is still
/// judged. The other invariants treat the rest as lost (XA), so no record after that point counts
/// as missing.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    for why in &trace.corrupt {
        tally.violated(why.clone(), [], None);
    }
    tally.holds_on(trace.rings.len());
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    #[test]
    fn readable_rings_hold() {
        assert_eq!(holds("W1", &Kit::new(2)).0, 2);
    }

    #[test]
    fn a_corrupt_one_does_not() {
        let mut kit = Kit::new(2);
        kit.corrupt("ring 1: head behind tail");
        assert_eq!(violations("W1", &kit).len(), 1);
    }

    #[test]
    fn no_rings_do_not_exercise_it() {
        not_exercised("W1", &Kit::new(0));
    }
}
