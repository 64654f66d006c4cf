//! A2: the layout of record 22.

use super::facts::{Facts, spec};
use super::verdict::Verdict;
use super::{Check, Invariant};
use crate::trace::model::MAX_DEFERRED_FRAMES;
use crate::trace::{Event, Trace};

/// `PERF_RECORD_MISC_USER`, the record's whole `misc`.
const MISC_USER: u16 = 2;
/// Header, cookie and `nr`, in bytes.
const FIXED: usize = 24;
/// Bits of `sample_type` that sample_id has 8 bytes for: TID, TIME, ID, CPU, STREAM_ID,
/// IDENTIFIER (`perf_event__id_header_size`, kernel/events/core.c).
const SAMPLE_ID: u64 = (1 << 1) | (1 << 2) | (1 << 6) | (1 << 7) | (1 << 9) | (1 << 16);

/// A2. `misc` is user, the size is 24 + 8 * nr + sample_id, and nr <= 510; the harness always asks
/// for `sample_id_all`. On 7.2 `ips` holds the unwinder's entries alone, so nr counts frames: no
/// context marker comes first, and 510 is what fits a page behind `struct unwind_cache`.
#[derive(Debug)]
pub struct Layout;

impl Invariant for Layout {
    fn id(&self) -> &'static str {
        "A2"
    }

    fn title(&self) -> &'static str {
        "record 22 is as long as its frames say, at most 510, and of user mode"
    }

    fn check(&self, trace: &Trace) -> Check {
        let facts = Facts::new(trace);
        let mut verdict = Verdict::new(self.id());
        for answer in &facts.answers {
            let (event, chain) = (answer.event, answer.chain);
            let frames = chain.ips.len();
            let wrong = if event.misc != MISC_USER {
                format!("has misc {:#x}", event.misc)
            } else if chain.nr > MAX_DEFERRED_FRAMES as u64 {
                format!("claims {} frames", chain.nr)
            } else if chain.nr != frames as u64 {
                format!("claims {} frames and has {frames}", chain.nr)
            } else if let Some(wanted) = size(trace, event, frames)
                && usize::from(event.size) != wanted
            {
                format!("is {} bytes long, not {wanted}", event.size)
            } else {
                verdict.holds();
                continue;
            };
            let message = format!("record 22 of cookie {:#x} {wrong}", chain.cookie);
            verdict.violated(message, [event.index], None);
        }
        verdict.finish("no record 22")
    }
}

/// The size that a record with so many frames must have, if the event's attributes are known.
fn size(trace: &Trace, event: &Event, frames: usize) -> Option<usize> {
    let bits = (spec(trace, event)?.sample_type & SAMPLE_ID).count_ones();
    Some(FIXED + 8 * frames + 8 * usize::try_from(bits).ok()?)
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, not_exercised};
    use super::*;
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
        assert_eq!(holds(&Layout, &kit).0, 2);
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
            assert!(matches!(Layout.check(&trace), Check::Violated(_)));
        }
        assert!(matches!(Layout.check(&one(511)), Check::Violated(_)));
    }

    #[test]
    fn a_trace_without_answers_does_not_exercise_it() {
        not_exercised(&Layout, &Kit::new(1));
    }
}
