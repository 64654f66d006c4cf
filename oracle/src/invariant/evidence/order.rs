//! Which of two records came first.

use crate::trace::Event;

/// An NMI, an interrupt and a soft interrupt can nest in the writing of one record. So the order of
/// a ring may differ from that of its records' times by this many places.
pub(crate) const NESTING: usize = 4;

/// Whether `first` certainly came before `second`.
///
/// Within a ring the position decides: space is reserved in order, even by an NMI that interrupts
/// the writing of another record. Between rings the clock decides, and a tie decides nothing.
pub(crate) fn before(first: &Event, second: &Event) -> bool {
    if first.ring == second.ring {
        return first.position < second.position;
    }
    matches!((first.time, second.time), (Some(a), Some(b)) if a < b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::Kit;

    #[test]
    fn order_within_a_ring_is_by_position_and_between_rings_by_time() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.nmi(1, 1002, 3 << 32 | 2);
        let mut trace = kit.trace();
        // An NMI that nests in the writing of a record reserves its space later.
        trace.events[0].time = Some(50);
        trace.events[1].time = Some(40);
        trace.events[2].time = Some(50);
        let [a, b, c] = &trace.events[..] else {
            panic!("three events");
        };
        assert!(before(a, b) && !before(b, a));
        assert!(before(b, c) && !before(c, b));
        assert!(!before(a, c) && !before(c, a));
    }
}
