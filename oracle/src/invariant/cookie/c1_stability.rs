//! C1: all requests of a task in one kernel entry carry one cookie.

use std::collections::BTreeSet;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts, Relation, Request};

/// Why two cookies are not held against a kernel.
const BEHIND_RESET: &str = "the exit path's reset may lie in between";

/// C1. Evidence are two requests in a row of a task that are proved to be of one entry
/// ([`Relation::Same`]) and carry one cookie. That they share it is never the proof.
///
/// A violation are two with different cookies that are proved to be of one entry, or that come
/// before the answer to the first ([`crate::invariant::evidence`]): a right kernel does not answer
/// elsewhere, and does not reset while an answer is pending.
///
/// The exception (a request after the exit path's reset and before the return may get a new cookie,
/// kernel/unwind/deferred.c, the comment of `get_cookie`) needs no excuse here. The reset is the
/// first thing in `exit_to_user_mode` (include/linux/irq-entry-common.h, 7.2), after `sys_exit`, so
/// no bracket of markers contains a request made after it. Where only the witness shows that no user
/// instruction retired between two with different cookies, the pair is undecided. Migration is no exception
/// either: the entry follows the task over all CPUs.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut judged = BTreeSet::new();
    for group in evidence.one_entry() {
        for pair in group.requests.windows(2) {
            let [a, b] = pair else { continue };
            if a.cookie != b.cookie && judged.insert((a.event.index, b.event.index)) {
                changed(facts, tally, (a, b), &group.why, &group.events);
            }
        }
    }
    for (_, requests) in facts.by_task() {
        for pair in requests.windows(2) {
            let [a, b] = pair else { continue };
            if judged.contains(&(a.event.index, b.event.index)) {
                continue;
            }
            match (facts.relation(a.event, b.event), a.cookie == b.cookie) {
                (Relation::Same(_), true) => tally.holds(),
                (Relation::Same(_), false) => tally.undecided(BEHIND_RESET),
                (Relation::Helped | Relation::Unknown, false) => {
                    tally.undecided(Relation::UNDECIDED)
                }
                (Relation::Helped | Relation::Unknown, true) | (Relation::Different(_), _) => {}
            }
        }
    }
}

fn changed(
    facts: &Facts<'_>,
    tally: &mut Tally,
    (a, b): (&Request<'_>, &Request<'_>),
    why: &str,
    events: &[usize],
) {
    let message = format!(
        "cookie {:#x} became {:#x} within one entry ({why})",
        a.cookie, b.cookie
    );
    let shown = [a.event.index, b.event.index];
    let events = shown.into_iter().chain(events.iter().copied());
    tally.violated(message, events, facts.instruction(b.event));
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, kernel, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;
    const RIP: u64 = 0xffff_ffff_8100_1234;

    #[test]
    fn one_cookie_over_a_migration_holds() {
        let mut kit = Kit::new(2);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.nmi(1, 1001, C);
        kit.sys_exit(1, 1001);
        assert_eq!(holds("C1", &kit).0, 1);
    }

    #[test]
    fn two_cookies_in_a_system_call_do_not() {
        let mut kit = Kit::new(1);
        let enter = kit.sys_enter(0, 1001);
        let a = kit.inject(0, 1001, C, kernel(RIP));
        let b = kit.inject(0, 1001, C + (2 << 32), kernel(RIP));
        let leave = kit.sys_exit(0, 1001);
        let found = violations("C1", &kit);
        assert_eq!(found[0].events, [enter, a, b, leave]);
        assert_eq!(found[0].instruction, Some(RIP));
    }

    #[test]
    fn another_cookie_before_the_first_is_answered_does_not() {
        let mut kit = Kit::new(1);
        let a = kit.nmi(0, 1001, C);
        let b = kit.nmi(0, 1001, C + (2 << 32));
        let answer = kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(violations("C1", &kit)[0].events, [a, b, answer]);
    }

    #[test]
    fn requests_of_unknown_entries_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        // Behind sys_exit the reset may have come between the two.
        kit.sys_enter(0, 1001);
        kit.sys_exit(0, 1001);
        kit.nmi(0, 1001, C);
        kit.nmi(0, 1001, C + (2 << 32));
        not_exercised("C1", &kit);
    }

    #[test]
    fn another_task_in_between_is_another_entry() {
        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.nmi(0, 1002, C + (2 << 32));
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        assert_eq!(holds("C1", &kit).0, 1);
    }
}
