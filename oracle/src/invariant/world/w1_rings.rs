//! W1: every ring could be read to its end.

use std::collections::BTreeSet;

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// W1. No ring held anything impossible: a head behind the tail, a record of no length or beyond
/// the head, a body too short for its type. What was read of such a ring before that point is still
/// judged. The other invariants treat the rest as lost (XA), so no record after that point counts
/// as missing.
///
/// Evidence is a ring with at least one record: its bytes were read, and made sense to the end. An
/// announced ring without one may not have been read at all, and is undecided.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    for why in &trace.corrupt {
        tally.violated(why.clone(), [], None);
    }
    let filled: BTreeSet<u32> = trace.events.iter().map(|event| event.ring).collect();
    for ring in &trace.rings {
        if filled.contains(&ring.ring) {
            tally.holds();
        } else {
            tally.undecided("a ring without records");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    #[test]
    fn rings_that_were_read_hold() {
        let mut kit = Kit::new(2);
        kit.nmi(1, 1001, 3 << 32 | 1);
        assert_eq!(holds("W1", &kit).0, 1);
    }

    /// Nobody may have read these.
    #[test]
    fn rings_without_records_do_not_exercise_it() {
        assert!(not_exercised("W1", &Kit::new(2)).contains("2 undecided"));
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
