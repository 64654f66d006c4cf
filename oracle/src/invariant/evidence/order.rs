//! Which of two records came first.

use crate::invariant::limit::step;
use crate::trace::Event;

/// An NMI, an interrupt and a soft interrupt can nest in the writing of one record. So the order of
/// a ring may differ from that of its records' times by this many places.
pub(crate) const NESTING: usize = 4;

/// Whether `first` certainly came before `second`.
///
/// Within a ring the position decides: space is reserved in order, even by an NMI that interrupts
/// the writing of another record. Between rings the clock decides, and a tie decides nothing.
pub(crate) fn before(first: &Event, second: &Event) -> bool {
    step();
    if first.ring == second.ring {
        return first.position < second.position;
    }
    matches!((first.time, second.time), (Some(a), Some(b)) if a < b)
}

/// Of a list in trace order, those that are certainly later than a record, in order. Where one record was written in the
/// middle of another, their times and their positions disagree: it starts a little early and lets [`before`] decide.
pub(crate) fn later<'l, T>(
    list: &'l [T],
    than: &Event,
    of: impl Fn(&T) -> &Event,
) -> impl Iterator<Item = &'l T> {
    let from = list.partition_point(|it| of(it).index <= than.index);
    let near = list.get(from.saturating_sub(NESTING)..).unwrap_or_default();
    near.iter().filter(move |it| before(than, of(it)))
}

/// The same of those that are certainly earlier, the last one first.
pub(crate) fn earlier<'l, T>(
    list: &'l [T],
    than: &Event,
    of: impl Fn(&T) -> &Event,
) -> impl Iterator<Item = &'l T> {
    let to = list.partition_point(|it| of(it).index < than.index);
    let near = list
        .get(..to.saturating_add(NESTING).min(list.len()))
        .unwrap_or_default();
    near.iter().rev().filter(move |it| before(of(it), than))
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
        let all = |list: Vec<&Event>| list.iter().map(|it| it.index).collect::<Vec<_>>();
        let list = &trace.events;
        assert_eq!(all(later(list, a, |it| it).collect()), [1]);
        assert_eq!(all(later(list, b, |it| it).collect()), [2]);
        assert_eq!(all(earlier(list, b, |it| it).collect()), [0]);
        assert_eq!(all(earlier(list, c, |it| it).collect()), [1]);
        // In the order of their times the one that nests comes first.
        trace.events.swap(0, 1);
        for (index, event) in trace.events.iter_mut().enumerate() {
            event.index = index;
        }
        let list = &trace.events;
        assert_eq!(all(later(list, &list[1], |it| it).collect()), [0]);
        assert_eq!(all(earlier(list, &list[0], |it| it).collect()), [1]);
    }
}
