//! N7: a thread is asked for its own requests, once each.

use std::collections::BTreeSet;

use unwindlab_abi::Observation;

use super::stacks;
use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// N7. A signal that asks for a stack carries the cookie of a request of the thread that gets it, comes once for a
/// cookie, and to no thread that has not opted in.
///
/// perf asks for the cookie before it finds room for the sample, so where records were lost (XA) a sample with it may have been
/// one of them. Where `perf_event_max_contexts_per_stack` cuts cookies off, which one a request got is not known: undecided.
///
/// Evidence is such a signal. Cookies that a thread was told as lost are counted.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut seen = BTreeSet::new();
    let mut lost = 0;
    for stack in stacks(evidence.trace()) {
        lost += stack.lost as usize;
        let exchange = facts.exchanges.get(&stack.cookie);
        let request = exchange.and_then(|it| it.requests.first());
        let is_own = request.is_some_and(|it| {
            let threads = facts.threads(it.event);
            threads.iter().any(|it| it.thread == stack.thread)
        });
        let wrong = match request {
            None => {
                if let Some(why) = facts.losses.between(None, None) {
                    tally.excuse(format!("cookie {:#x}: {why}", stack.cookie));
                    continue;
                }
                if let Some(why) = facts.chains_are_cut() {
                    tally.undecided(why);
                    continue;
                }
                "which no sample carries"
            }
            Some(_) if !is_own => "which is another task's",
            Some(_) if !seen.insert(stack.cookie) => "for the second time",
            Some(_) => {
                tally.holds();
                continue;
            }
        };
        tally.violated(
            format!(
                "thread {} was asked for cookie {:#x}, {wrong}",
                stack.thread, stack.cookie
            ),
            request.map(|it| it.event.index),
            None,
        );
    }
    tally.note(lost, "cookies that a thread was told as lost");
    let signals = evidence.trace().observations.iter();
    let strays = signals.filter_map(|it| match it {
        Observation::UserSignals { stray, full, .. } => Some((*stray, *full)),
        _ => None,
    });
    let (stray, full) = strays.fold((0, 0), |(stray, full), it| {
        (it.0.max(stray), it.1.max(full))
    });
    if stray > 0 {
        tally.violated(
            format!("{stray} signals came to threads that had not opted in"),
            [],
            None,
        );
    }
    tally.note(
        usize::try_from(full).unwrap_or(usize::MAX),
        "signals for which a thread had no room",
    );
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::Observation;
    use unwindlab_abi::user_stack::UserStack;

    use crate::invariant::Check;
    use crate::invariant::program::testkit::{C, CHAIN, stack, trace};
    use crate::invariant::testkit::{Kit, SOMEWHERE, check};
    use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER_DEFERRED};

    fn judged(stacks: Vec<UserStack>) -> Check {
        check("N7", &trace(stacks))
    }

    #[test]
    fn a_request_of_the_thread_holds() {
        let found = judged(vec![stack(C, &CHAIN)]);
        assert!(matches!(found, Check::Holds { evidence: 1, .. }));
    }

    #[test]
    fn a_second_signal_and_a_cookie_of_nobody_do_not() {
        let twice = judged(vec![stack(C, &CHAIN), stack(C, &CHAIN)]);
        assert!(matches!(twice, Check::Violated(_)));
        for cookie in [C + 1, C & 0xffff_ffff, 0] {
            assert!(matches!(
                judged(vec![stack(cookie, &CHAIN)]),
                Check::Violated(_)
            ));
        }
    }

    /// perf asks for the cookie before it finds room for the sample, and in its chain.
    #[test]
    fn a_cookie_whose_sample_may_be_lost_or_cut_does_not_violate_it() {
        let unseen = || trace(vec![stack(C + 2, &CHAIN)]);
        assert!(matches!(check("N7", &unseen()), Check::Violated(_)));
        let mut kit = Kit::new(1);
        kit.lost(0, 1);
        let mut lost = kit.trace();
        lost.observations = unseen().observations;
        let mut kit = Kit::new(1);
        kit.sample(
            0,
            1001,
            1,
            vec![CONTEXT_KERNEL, SOMEWHERE, CONTEXT_USER_DEFERRED],
        );
        let mut cut = kit.trace();
        cut.observations = unseen().observations;
        let limit = ("perf_event_max_contexts_per_stack", "2");
        cut.sysctls.push((limit.0.to_owned(), limit.1.to_owned()));
        for trace in [lost, cut] {
            let found = check("N7", &trace);
            assert!(
                matches!(found, Check::NotExercised { .. } | Check::Holds { .. }),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_thread_asked_for_anothers_cookie_does_not() {
        let mut other = stack(C, &CHAIN);
        other.thread = 1;
        assert!(matches!(judged(vec![other]), Check::Violated(_)));
    }

    #[test]
    fn a_signal_to_who_has_not_opted_in_does_not() {
        let mut trace = Kit::new(1).trace();
        trace.observations = vec![Observation::UserSignals {
            thread: 0,
            stray: 1,
            full: 0,
        }];
        assert!(matches!(check("N7", &trace), Check::Violated(_)));
    }

    #[test]
    fn cookies_that_are_told_as_lost_are_counted() {
        let mut stacks = [stack(C, &CHAIN), stack(C + 2, &CHAIN)];
        stacks[0].lost = 2;
        let Check::Holds { excused, .. } = judged(stacks[..1].to_vec()) else {
            panic!("does not hold");
        };
        assert_eq!(excused, ["2 cookies that a thread was told as lost"]);
    }
}
