//! A2: the layout of record 22.

use unwindlab_abi::attr::flag;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, spec};
use crate::trace::model::{MAX_DEFERRED_FRAMES, MISC_USER};
use crate::trace::{Event, Trace};

/// Header, cookie and `nr`, in bytes.
const FIXED: usize = 24;
/// Bits of `sample_type` that sample_id has 8 bytes for: TID, TIME, ID, CPU, STREAM_ID,
/// IDENTIFIER (`perf_event__id_header_size`, kernel/events/core.c).
const SAMPLE_ID: u64 = (1 << 1) | (1 << 2) | (1 << 6) | (1 << 7) | (1 << 9) | (1 << 16);

/// A2. `misc` is user and nothing else, the size is 24 + 8 * nr + sample_id, and nr <= 510. Without
/// `sample_id_all` there is no sample_id. On 7.2 `ips` holds the unwinder's entries alone, so nr counts frames: no
/// context marker comes first, and 510 is what fits into a page after `struct unwind_cache`.
///
/// Evidence is a record whose event is known: its size follows from the event's attributes, and a
/// record with a field too many or too few has another. Where the event is not known, only part of
/// the layout can be looked at, and the record is undecided.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    for answer in &facts.answers {
        let (event, chain) = (answer.event, answer.chain);
        let frames = chain.ips.len();
        let wrong = if event.misc != MISC_USER {
            format!("has misc {:#x}", event.misc)
        } else if chain.nr > MAX_DEFERRED_FRAMES as u64 {
            format!("claims {} frames", chain.nr)
        } else if chain.nr != frames as u64 {
            format!("claims {} frames and has {frames}", chain.nr)
        } else {
            match size(trace, event, frames) {
                Some(wanted) if usize::from(event.size) == wanted => {
                    tally.holds();
                    continue;
                }
                Some(wanted) => format!("is {} bytes long, not {wanted}", event.size),
                None => {
                    tally
                        .undecided("the event of a record 22 is not known, so neither is its size");
                    continue;
                }
            }
        };
        let message = format!("record 22 of cookie {:#x} {wrong}", chain.cookie);
        tally.violated(message, [event.index], None);
    }
}

/// The size that a record with so many frames must have, if the event's attributes are known.
fn size(trace: &Trace, event: &Event, frames: usize) -> Option<usize> {
    let spec = spec(trace, event)?;
    let bits = match spec.details.clear & flag::SAMPLE_ID_ALL {
        0 => (spec.sample_type & SAMPLE_ID).count_ones(),
        _ => 0,
    };
    Some(FIXED + 8 * frames + 8 * usize::try_from(bits).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit::check;
    use crate::invariant::testkit::{Kit, holds, not_exercised};
    use crate::trace::EventKind;

    fn one(frames: usize) -> Trace {
        let mut kit = Kit::new(1);
        kit.deferred(0, 1001, 3 << 32 | 1, &vec![0x40; frames]);
        kit.trace()
    }

    #[test]
    fn the_kernels_layout_holds() {
        let mut kit = Kit::new(1);
        kit.deferred(0, 1001, 3 << 32 | 1, &[0x40; 510]);
        kit.deferred(0, 1001, 5 << 32 | 1, &[]);
        assert_eq!(holds("A2", &kit).0, 2);
    }

    #[test]
    fn anything_else_does_not() {
        let changes: [fn(&mut Event); 4] = [
            |e| e.misc = 1,
            |e| e.size -= 8,
            |e| {
                if let EventKind::CallchainDeferred(d) = &mut e.kind {
                    d.nr -= 1;
                }
            },
            |e| {
                if let EventKind::CallchainDeferred(d) = &mut e.kind {
                    d.ips.pop();
                }
            },
        ];
        for change in changes {
            let mut trace = one(3);
            change(&mut trace.events[0]);
            assert!(matches!(check("A2", &trace), Check::Violated(_)));
        }
        assert!(matches!(check("A2", &one(511)), Check::Violated(_)));
    }

    /// A record that is 8 bytes too long, of which nobody knows how long it should be.
    #[test]
    fn a_record_of_an_unknown_event_does_not_exercise_it() {
        let mut trace = one(3);
        trace.events[0].size += 8;
        trace.events[0].event = None;
        let Check::NotExercised { undecided, .. } = check("A2", &trace) else {
            panic!("was exercised");
        };
        assert_eq!(undecided, 1);
    }

    #[test]
    fn a_trace_without_answers_does_not_exercise_it() {
        not_exercised("A2", &Kit::new(1));
    }
}
