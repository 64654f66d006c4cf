//! A7: the records of an event land in the buffer that it was opened for.

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// A7. Inherited events write into their parent's buffer, under its id (`primary_event_id`,
/// `perf_output_begin`, kernel/events, 7.2). All events are judged: a record that names its event
/// is in that event's ring, which is the ring of the event's CPU. Where no event is inherited, this
/// says that redirected output (`PERF_EVENT_IOC_SET_OUTPUT`) goes to the right ring.
///
/// Evidence is a record in a session of several rings: a kernel that picks another shows it there.
/// Where there is only one ring, each record is undecided.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    for event in &trace.events {
        let Some(open) = event.event.and_then(|at| trace.session.get(at)) else {
            continue;
        };
        if open.ring == event.ring && open.cpu == event.cpu {
            if trace.rings.len() > 1 {
                tally.holds();
            } else {
                tally.undecided("there is only one ring");
            }
            continue;
        }
        let message = format!(
            "event {} writes to ring {} of CPU {}, not to ring {} of CPU {}",
            open.id, event.ring, event.cpu, open.ring, open.cpu
        );
        tally.violated(message, [event.index], None);
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::check;
    use crate::invariant::testkit::{Kit, holds, not_exercised};

    #[test]
    fn own_rings_hold() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.deferred(1, 1001, 3 << 32 | 1, &[0x40]);
        assert_eq!(holds("A7", &kit).0, 2);
    }

    #[test]
    fn others_do_not() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        let mut trace = kit.trace();
        trace.events[0].ring = 1;
        assert!(matches!(check("A7", &trace), Check::Violated(_)));
    }

    #[test]
    fn a_single_ring_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, 3 << 32 | 1);
        assert!(not_exercised("A7", &kit).contains("1 undecided"));
    }

    #[test]
    fn records_without_an_event_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.push(
            0,
            1001,
            99,
            crate::trace::EventKind::Other { record_type: 9 },
        );
        not_exercised("A7", &kit);
    }
}
