//! A7: an event's records land in the buffer it was opened for.

use super::verdict::Verdict;
use super::{Check, Invariant};
use crate::trace::Trace;

/// A7. Inherited events write into their parent's buffer, under its id (`primary_event_id`,
/// `perf_output_begin`, kernel/events, 7.2). Stated for all events: a record that tells its event
/// is in that event's ring, which is the one of the event's CPU. Where no event is inherited this
/// says that redirected output (`PERF_EVENT_IOC_SET_OUTPUT`) does not stray.
#[derive(Debug)]
pub struct OwnBuffer;

impl Invariant for OwnBuffer {
    fn id(&self) -> &'static str {
        "A7"
    }

    fn title(&self) -> &'static str {
        "an event's records land in the buffer it was opened for"
    }

    fn check(&self, trace: &Trace) -> Check {
        let mut verdict = Verdict::new(self.id());
        for event in &trace.events {
            let Some(open) = event.event.and_then(|at| trace.session.get(at)) else {
                continue;
            };
            if open.ring == event.ring && open.cpu == event.cpu {
                verdict.holds();
                continue;
            }
            let message = format!(
                "event {} writes to ring {} of CPU {}, not to ring {} of CPU {}",
                open.id, event.ring, event.cpu, open.ring, open.cpu
            );
            verdict.violated(message, [event.index], None);
        }
        verdict.finish("no records that tell their event")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, not_exercised};
    use super::*;

    #[test]
    fn own_rings_hold() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.deferred(1, 1001, 3 << 32 | 1, &[0x40]);
        assert_eq!(holds(&OwnBuffer, &kit).0, 2);
    }

    #[test]
    fn others_do_not() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        let mut trace = kit.trace();
        trace.events[0].ring = 1;
        assert!(matches!(OwnBuffer.check(&trace), Check::Violated(_)));
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
        not_exercised(&OwnBuffer, &kit);
    }
}
