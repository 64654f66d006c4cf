//! C6: the count of a CPU never goes back.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// C6. In the ring of the CPU that cookies name, the high words of cookies that appear there for
/// the first time never decrease, mod 2^32. The order is that of the ring, not of the clock.
///
/// Samples that nest on one CPU are of one task in one entry, so they share a cookie, and the
/// order of births is the order of first samples. Only births are compared: a task that comes
/// back to the CPU carries an old cookie rightly. A birth on another CPU than the one named is
/// C5's business and left out; so is a cookie whose first S may have been lost, which would look
/// like a late birth: it is left out where the first S is not known ([`super::facts::Exchange::birth`])
/// or a loss lies before it.
#[derive(Debug)]
pub struct Order;

impl Invariant for Order {
    fn id(&self) -> &'static str {
        "C6"
    }

    fn title(&self) -> &'static str {
        "the count in the cookies born on a CPU never decreases"
    }

    fn check(&self, trace: &Trace) -> Check {
        let facts = Facts::new(trace);
        let mut verdict = Verdict::new(self.id());
        let mut births: BTreeMap<u32, Vec<(u64, usize, &crate::trace::Event)>> = BTreeMap::new();
        let given = lab::cookies::given(trace);
        for (cookie, exchange) in facts
            .cookies()
            .filter(|(cookie, _)| !given.contains(cookie))
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
                    verdict.holds();
                    continue;
                }
                if let Some(why) = facts.losses.between(None, second.time) {
                    verdict.excuse(why);
                    continue;
                }
                let message = format!("CPU {} gave out count {b:#x} after {a:#x}", second.cpu);
                let events = [first.index, second.index];
                verdict.violated(message, events, facts.instruction(second));
            }
        }
        lab::judge(trace, &mut verdict, lab::cookies::order);
        verdict.finish("no two cookies born on one CPU")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, not_exercised, violations};
    use super::*;

    #[test]
    fn growing_counts_hold_over_the_wrap_too() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 0xffff_fffd_0000_0001);
        kit.nmi(0, 1001, 0xffff_ffff_0000_0001);
        kit.nmi(0, 1001, 0x0000_0001_0000_0001);
        assert_eq!(holds(&Order, &kit).0, 2);
    }

    #[test]
    fn a_count_that_goes_back_does_not() {
        let mut kit = Kit::new(1);
        let a = kit.nmi(0, 1001, 5 << 32 | 1);
        let b = kit.nmi(0, 1002, 3 << 32 | 1);
        assert_eq!(violations(&Order, &kit)[0].events, [a, b]);
    }

    #[test]
    fn an_old_cookie_that_comes_back_is_no_birth() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.nmi(0, 1002, 5 << 32 | 1);
        kit.nmi(1, 1001, 3 << 32 | 1);
        kit.nmi(0, 1001, 3 << 32 | 1);
        assert_eq!(holds(&Order, &kit).0, 1);
    }

    #[test]
    fn one_birth_does_not_exercise_it() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.nmi(1, 1002, 3 << 32 | 2);
        not_exercised(&Order, &kit);
    }
}
