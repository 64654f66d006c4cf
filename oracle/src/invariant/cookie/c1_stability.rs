//! C1: all requests of a task in one kernel entry carry one cookie.

use std::collections::BTreeSet;

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// C1. Judges requests that the system call markers, the injection log or a pending answer prove to
/// be of one entry ([`crate::invariant::evidence`]). That they share a cookie is never the proof.
///
/// The exception (a request after the exit path's reset and before the return may get a new cookie)
/// needs no excuse here. The reset is the first thing in `exit_to_user_mode`
/// (include/linux/irq-entry-common.h, 7.2), after `sys_exit`, so no bracket of markers contains a
/// request made after it. The kernel does not reset while an answer is pending. And all requests of
/// one arrival find the task in the same state. Migration is no exception either: the brackets
/// follow the task over all CPUs.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut judged = BTreeSet::new();
    for group in evidence.one_entry() {
        for pair in group.requests.windows(2) {
            let [a, b] = pair else { continue };
            // One pair may be proved in several ways, and counts once.
            if !judged.insert((a.event.index, b.event.index)) {
                continue;
            }
            if a.cookie == b.cookie {
                tally.holds();
                continue;
            }
            let message = format!(
                "cookie {:#x} became {:#x} within one entry ({})",
                a.cookie, b.cookie, group.why
            );
            let shown = [a.event.index, b.event.index];
            let events = shown.into_iter().chain(group.events.iter().copied());
            tally.violated(message, events, facts.instruction(b.event));
        }
    }
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
    fn two_cookies_in_a_system_call_or_at_one_arrival_do_not() {
        let mut kit = Kit::new(1);
        let enter = kit.sys_enter(0, 1001);
        let a = kit.nmi(0, 1001, C);
        let b = kit.nmi(0, 1001, C + (2 << 32));
        let leave = kit.sys_exit(0, 1001);
        assert_eq!(violations("C1", &kit)[0].events, [enter, a, b, leave]);

        let mut kit = Kit::new(1);
        let a = kit.inject(0, 1001, C, kernel(RIP).iteration(0, 1));
        let b = kit.inject(0, 1001, C + (2 << 32), kernel(RIP).iteration(0, 1));
        let found = violations("C1", &kit);
        assert_eq!(found[0].events, [a, b]);
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
