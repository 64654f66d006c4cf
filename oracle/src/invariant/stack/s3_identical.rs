//! S3: all answers of one cookie are the same.

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// S3. All D of one cookie have the same `nr` and frames, whatever event they went to: the callback
/// hands one trace to all of them (`perf_unwind_deferred_callback`, kernel/events/core.c, 7.2).
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for (cookie, exchange) in facts.cookies() {
        for pair in exchange.answers.windows(2) {
            let [a, b] = pair else { continue };
            if a.chain == b.chain && a.chain.ips.is_empty() {
                tally.undecided("two records 22 without a frame");
                continue;
            }
            if a.chain == b.chain {
                tally.holds();
                continue;
            }
            let what = crate::invariant::evidence::difference(&b.chain.ips, &a.chain.ips);
            let message = format!("two records 22 of cookie {cookie:#x} differ: {what}");
            let asked = exchange.requests.last();
            let instruction = asked.and_then(|r| facts.instruction(r.event));
            tally.violated(message, [a.event.index, b.event.index], instruction);
        }
    }
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::plan::EventSource;

    use crate::invariant::testkit::{Kit, holds, not_exercised, spec, violations};

    const C: u64 = 3 << 32 | 1;

    fn two(frames: &[u64]) -> Kit {
        let mut kit = Kit::new(1);
        let second = kit.open(spec("second", EventSource::Dummy));
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40, 0x80]);
        kit.deferred_to(second, 0, 1001, C, frames);
        kit
    }

    #[test]
    fn copies_hold() {
        assert_eq!(holds("S3", &two(&[0x40, 0x80])).0, 1);
    }

    #[test]
    fn other_frames_do_not() {
        violations("S3", &two(&[0x40, 0x84]));
        violations("S3", &two(&[0x40]));
    }

    #[test]
    fn one_copy_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.deferred(0, 1001, 0, &[0x40]);
        kit.deferred(0, 1001, 0, &[0x44]);
        not_exercised("S3", &kit);
    }
}
