//! C6: the count of a CPU never goes back.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// C6. In the ring of the CPU that cookies name, the high words of cookies that appear there for
/// the first time never decrease, mod 2^32. The order is that of the ring, not of the clock.
///
/// Samples that nest on one CPU are of one task in one entry, so they share a cookie, and the order
/// of births is the order of first samples. Only births are compared: a task that comes back to the
/// CPU rightly carries an old cookie. A birth on another CPU than the cookie names is C5's. A
/// cookie whose first S may have been lost would look like a late birth: it is left out where the
/// first S is not known (`Exchange::birth`) or where a loss lies before it.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut births: BTreeMap<u32, Vec<(u64, usize, &crate::trace::Event)>> = BTreeMap::new();
    for (cookie, exchange) in facts
        .cookies()
        .filter(|&(cookie, _)| !evidence.given(cookie))
    {
        let Some(first) = exchange.birth() else {
            continue;
        };
        let event = first.event;
        if (cookie & u64::from(u32::MAX)) == u64::from(event.cpu) + 1 {
            let list = births.entry(event.ring).or_default();
            list.push((cookie >> 32, event.position, event));
        }
    }
    for list in births.values_mut() {
        list.sort_by_key(|&(_, position, _)| position);
        for pair in list.windows(2) {
            let [(a, _, first), (b, _, second)] = pair else {
                continue;
            };
            // Forward by less than half the circle is forward.
            if b.wrapping_sub(*a) & u64::from(u32::MAX) < 1 << 31 {
                tally.holds();
                continue;
            }
            if let Some(why) = facts.losses.between(None, second.time) {
                tally.excuse(why);
                continue;
            }
            if let Some(why) = facts.others_may_ask() {
                tally.undecided(why);
                continue;
            }
            let message = format!("CPU {} gave out count {b:#x} after {a:#x}", second.cpu);
            let events = [first.index, second.index];
            tally.violated(message, events, facts.instruction(second));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, check, holds, not_exercised, violations};

    #[test]
    fn growing_counts_hold_over_the_wrap_too() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 0xffff_fffd_0000_0001);
        kit.nmi(0, 1001, 0xffff_ffff_0000_0001);
        kit.nmi(0, 1001, 0x0000_0001_0000_0001);
        assert_eq!(holds("C6", &kit).0, 2);
    }

    #[test]
    fn a_count_that_goes_back_does_not() {
        let mut kit = Kit::new(1);
        let a = kit.nmi(0, 1001, 5 << 32 | 1);
        let b = kit.nmi(0, 1002, 3 << 32 | 1);
        assert_eq!(violations("C6", &kit)[0].events, [a, b]);
    }

    #[test]
    fn an_old_cookie_that_comes_back_is_no_birth() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.nmi(0, 1002, 5 << 32 | 1);
        kit.nmi(1, 1001, 3 << 32 | 1);
        kit.nmi(0, 1001, 3 << 32 | 1);
        assert_eq!(holds("C6", &kit).0, 1);
    }

    #[test]
    fn what_was_answered_before_its_first_sample_was_born_elsewhere() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, 5 << 32 | 1);
        kit.deferred(0, 1002, 3 << 32 | 1, &[0x40]);
        kit.nmi(0, 1002, 3 << 32 | 1);
        not_exercised("C6", &kit);
    }

    /// The request that got the lower count shows no cookie, and comes to light after the other.
    #[test]
    fn a_birth_in_a_chain_without_room_for_the_cookie_is_not_known() {
        let mut kit = Kit::new(1);
        kit.kernel_only(0, 1001);
        kit.nmi(0, 1002, 5 << 32 | 1);
        kit.nmi(0, 1001, 3 << 32 | 1);
        let mut trace = kit.trace();
        assert!(matches!(check("C6", &trace), Check::Violated(_)));
        let name = "perf_event_max_contexts_per_stack".to_owned();
        trace.sysctls.push((name, "1".to_owned()));
        assert!(matches!(check("C6", &trace), Check::NotExercised { .. }));
    }

    #[test]
    fn one_birth_does_not_exercise_it() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.nmi(1, 1002, 3 << 32 | 2);
        not_exercised("C6", &kit);
    }

    #[test]
    fn half_the_range_ahead_is_behind() {
        let counts = |second: u64| {
            let mut kit = Kit::new(1);
            kit.nmi(0, 1001, 1 << 32 | 1);
            kit.nmi(0, 1001, second << 32 | 1);
            kit
        };
        assert_eq!(holds("C6", &counts(1 << 31)).0, 1);
        violations("C6", &counts(1 + (1 << 31)));
    }
}
