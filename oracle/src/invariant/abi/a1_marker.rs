//! A1: the deferred marker appears at most once, followed by exactly the cookie.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, spec};
use crate::trace::EventKind;
use crate::trace::model::CONTEXT_USER_DEFERRED;

/// A1. The chain of a sample contains `PERF_CONTEXT_USER_DEFERRED` at most once. The marker is the
/// last entry but one and the cookie is the last (`get_perf_callchain`, kernel/events/callchain.c,
/// 7.2). Events without `defer_callchain` never have the marker. No cookie looks like it: the low
/// word of a cookie is a CPU number.
///
/// Evidence is a chain with a marker, of an event that is known to defer: each way of being wrong
/// is visible in it. Of an unknown event, it is undecided whether it may have a marker at all.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    for event in &trace.events {
        let EventKind::Sample(sample) = &event.kind else {
            continue;
        };
        let chain = sample.chain.as_deref().unwrap_or_default();
        let markers = chain.iter().enumerate();
        let mut markers = markers.filter(|&(_, &ip)| ip == CONTEXT_USER_DEFERRED);
        let Some((at, _)) = markers.next() else {
            continue;
        };
        let spec = spec(trace, event);
        let wrong = if let Some((second, _)) = markers.next() {
            format!("comes at {at} and at {second}")
        } else if spec.is_some_and(|spec| !spec.defer_callchain) {
            "is in a sample of an event that does not defer".into()
        } else if at + 2 != chain.len() {
            format!("is followed by {} entries", chain.len() - at - 1)
        } else if spec.is_none() {
            tally.undecided("whether an unknown event defers");
            continue;
        } else {
            tally.holds();
            continue;
        };
        let message = format!("the deferred marker {wrong}");
        tally.violated(message, [event.index], facts.instruction(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::{Kit, SOMEWHERE, holds, not_exercised, violations};
    use crate::trace::model::CONTEXT_KERNEL;

    const C: u64 = 3 << 32 | 1;
    const M: u64 = CONTEXT_USER_DEFERRED;

    #[test]
    fn marker_and_cookie_hold() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        assert_eq!(holds("A1", &kit).0, 1);
    }

    #[test]
    fn none_twice_and_more_do_not() {
        for bad in [&[M][..], &[M, C, M, C], &[M, C, 0x40], &[M, M]] {
            let mut kit = Kit::new(1);
            let mut chain = vec![CONTEXT_KERNEL, SOMEWHERE];
            chain.extend(bad);
            let at = kit.sample(0, 1001, 1, chain);
            assert_eq!(violations("A1", &kit)[0].events, [at]);
        }
    }

    #[test]
    fn an_event_that_does_not_defer_has_none() {
        let mut kit = Kit::new(1);
        kit.sample(0, 1001, 2, vec![M, C]);
        violations("A1", &kit);
    }

    #[test]
    fn a_marker_of_an_unknown_event_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.sample(0, 1001, 99, vec![M, C]);
        not_exercised("A1", &kit);
    }

    #[test]
    fn chains_without_it_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.inline(0, 1001, &[0x40]);
        kit.sys_enter(0, 1001);
        not_exercised("A1", &kit);
    }
}
