//! U1: a walk ends, after 510 frames at the latest.

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;
use crate::trace::model::MAX_DEFERRED_FRAMES;

/// U1. No D has more than 510 frames, and one whose frame 0 is at the leaf of a stack of 510 or
/// more has exactly 510 (`UNWIND_MAX_ENTRIES`, kernel/unwind/deferred.c, 7.2). The end of the trial
/// shows that every walk ends at all.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut deep = 0;
    for answer in &facts.answers {
        let frames = answer.chain.ips.len();
        let stacks = facts.stacks_at_leaf(answer);
        let shallowest = stacks.iter().map(|stack| stack.depth()).min();
        let must_be_full = shallowest.is_some_and(|d| d >= MAX_DEFERRED_FRAMES as u64);
        if frames > MAX_DEFERRED_FRAMES || (must_be_full && frames != MAX_DEFERRED_FRAMES) {
            let message = format!(
                "record 22 of cookie {:#x} has {frames} frames, of a stack of {}",
                answer.chain.cookie,
                shallowest.map_or_else(|| "unknown depth".into(), |d| d.to_string())
            );
            tally.violated(message, [answer.event.index], None);
            continue;
        }
        deep += usize::from(must_be_full);
        tally.holds();
    }
    tally.note(deep, "records 22 of stacks of 510 frames or more");
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;

    fn deep(frames: usize) -> Kit {
        let mut kit = Kit::new(1);
        kit.deep_thread(0, 1001, 600);
        let mut chain = vec![0x2000; frames];
        chain[0] = 0x1004;
        kit.deferred(0, 1001, C, &chain);
        kit
    }

    #[test]
    fn exactly_510_holds() {
        assert_eq!(holds("U1", &deep(510)).1.len(), 1);
    }

    #[test]
    fn fewer_or_more_do_not() {
        violations("U1", &deep(509));
        violations("U1", &deep(511));
    }

    #[test]
    fn short_stacks_may_be_short() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.deferred(0, 1001, C, &[0x1004, 0x2000, 0x2000, 0x3000]);
        holds("U1", &kit);
    }

    #[test]
    fn a_trace_without_answers_does_not_exercise_it() {
        not_exercised("U1", &Kit::new(1));
    }
}
