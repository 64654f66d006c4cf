//! C7: the cookie of an answer is one that some request carried.

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// C7. For every D(c) there is an S(c), of whatever task and at whatever time: M3, M4 and M5 judge
/// whose and when.
///
/// The S(c) may be lost although its request was made: perf asks for the cookie while it prepares
/// the sample, before it finds space. A loss before the D excuses (XA). Nothing else in the guest
/// uses perf. Where `perf_event_max_contexts_per_stack` leaves no room for a cookie in a chain, which
/// one its request got is not known: undecided.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for (&cookie, exchange) in &facts.exchanges {
        for answer in &exchange.answers {
            if !exchange.requests.is_empty() {
                tally.holds();
                continue;
            }
            if let Some(why) = facts.losses.between(None, answer.event.time) {
                tally.excuse(format!("cookie {cookie:#x}: {why}"));
                continue;
            }
            if let Some(why) = evidence.lost_before(answer.event) {
                tally.undecided(why);
                continue;
            }
            let before = facts.may_have_asked_before(answer);
            if let Some(why) = before.or_else(|| facts.may_be_of_a_cut_chain(answer)) {
                tally.undecided(why);
                continue;
            }
            if let Some(why) = facts.others_may_ask().filter(|_| cookie != 0) {
                tally.undecided(why);
                continue;
            }
            let (events, instruction) = facts.story(answer);
            let message = format!("no sample carries cookie {cookie:#x} of a record 22");
            tally.violated(message, events, instruction);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, SOMEWHERE, check, holds, not_exercised, violations};
    use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER_DEFERRED};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn a_cookie_that_was_asked_for_holds() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(holds("C7", &kit).0, 1);
    }

    #[test]
    fn one_that_was_not_does_not() {
        let mut kit = Kit::new(1);
        let asked = kit.nmi(0, 1001, C);
        let stray = kit.deferred(0, 1001, 0, &[0x40]);
        assert_eq!(violations("C7", &kit)[0].events, [asked, stray]);
    }

    /// A chain is taken while another one is: perf asks first, and has no buffer then.
    #[test]
    fn a_sample_without_a_chain_may_have_asked() {
        for (chain, violated) in [(vec![], false), (vec![CONTEXT_KERNEL, SOMEWHERE], true)] {
            let mut kit = Kit::new(1);
            kit.sample(0, 1001, 1, chain);
            kit.deferred(0, 1001, C, &[0x40]);
            for id in ["C7", "M3"] {
                let found = check(id, &kit.trace());
                assert_eq!(matches!(found, Check::Violated(_)), violated, "{id}");
            }
        }
    }

    #[test]
    fn what_waited_when_the_trace_began_may_have_carried_it() {
        for (asked_first, violated) in [(false, false), (true, true)] {
            let mut kit = Kit::new(1);
            if asked_first {
                kit.nmi(0, 1001, C + (2 << 32));
            }
            kit.deferred(0, 1001, C, &[0x40]);
            let mut trace = kit.trace();
            trace.begins_late = true;
            for id in ["C7", "M3"] {
                let found = check(id, &trace);
                assert_eq!(matches!(found, Check::Violated(_)), violated, "{id}");
            }
        }
    }

    #[test]
    fn a_lost_sample_may_have_carried_it() {
        let mut kit = Kit::new(1);
        kit.lost(0, 1);
        kit.deferred(0, 1001, C, &[0x40]);
        assert!(not_exercised("C7", &kit).contains("XA"));
    }

    #[test]
    fn a_cookie_that_the_limit_of_contexts_cut_off_is_not_decided() {
        let answered = |limit: &str, tid: u32, tail: &[u64]| {
            let mut kit = Kit::new(1);
            let mut chain = vec![CONTEXT_KERNEL, SOMEWHERE];
            chain.extend(tail);
            kit.sample(0, 1001, 1, chain);
            kit.deferred(0, tid, C, &[0x40]);
            let mut trace = kit.trace();
            let name = "perf_event_max_contexts_per_stack".to_owned();
            trace.sysctls.push((name, limit.to_owned()));
            ["C7", "M3"].map(|id| check(id, &trace))
        };
        let marker = CONTEXT_USER_DEFERRED;
        for (limit, tail) in [("2", &[marker][..]), ("1", &[])] {
            for found in answered(limit, 1001, tail) {
                assert!(matches!(found, Check::NotExercised { undecided: 1, .. }));
            }
            for found in answered(limit, 1002, tail) {
                assert!(matches!(found, Check::Violated(_)));
            }
        }
        for (limit, tail) in [
            ("8", &[marker][..]),
            ("3", &[marker]),
            ("3", &[marker, C + 2]),
        ] {
            for found in answered(limit, 1001, tail) {
                assert!(matches!(found, Check::Violated(_)), "{limit} {tail:?}");
            }
        }
    }

    #[test]
    fn a_trace_without_answers_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        not_exercised("C7", &kit);
    }
}
