//! U1: a walk ends, after 510 frames at the latest.

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;
use crate::trace::model::MAX_DEFERRED_FRAMES;

/// U1. No D has more than 510 frames, and one whose frame 0 is at the leaf of a stack of 510 or
/// more has exactly 510 (`UNWIND_MAX_ENTRIES`, kernel/unwind/deferred.c, 7.2). The end of the trial
/// shows that every walk ends at all.
///
/// Evidence is a D of exactly 510 frames at the leaf of a stack of more: a kernel with another
/// limit, or none, shows another number there. Any other stack looks the same whatever the limit,
/// and its D is undecided.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
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
        if shallowest.is_some_and(|depth| depth > MAX_DEFERRED_FRAMES as u64) {
            tally.holds();
        } else {
            tally.undecided("stacks that are not known to have more than 510 frames");
        }
    }
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
        assert_eq!(holds("U1", &deep(510)).0, 1);
    }

    #[test]
    fn fewer_or_more_do_not() {
        violations("U1", &deep(509));
        violations("U1", &deep(511));
    }

    #[test]
    fn short_stacks_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.deferred(0, 1001, C, &[0x1004, 0x2000, 0x2000, 0x3000]);
        assert!(not_exercised("U1", &kit).contains("1 undecided"));
        // A limit of 511 would give the same.
        let mut kit = Kit::new(1);
        kit.deep_thread(0, 1001, 508);
        let mut chain = vec![0x2000; 510];
        (chain[0], chain[509]) = (0x1004, 0x3000);
        kit.deferred(0, 1001, C, &chain);
        not_exercised("U1", &kit);
    }

    #[test]
    fn a_trace_without_answers_does_not_exercise_it() {
        not_exercised("U1", &Kit::new(1));
    }
}
