//! C3: two tasks never share a cookie.

use crate::invariant::Tally;
use crate::invariant::evidence::Evidence;

/// C3. The tid in the records of the requests tells the tasks apart; fork and exit records tell a
/// task from an earlier one with the same tid.
///
/// Horizon: the counter is a u32 stepped by 2 per CPU (`get_cookie`, kernel/unwind/deferred.c), so
/// a CPU repeats a cookie after 2^31 births. No trial makes that many.
///
/// An exec by a thread that is not the leader gives the task the leader's tid. One cookie then
/// appears under two tids of one process. With a record of the exec between the two it is one task,
/// and the cookie is not judged.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut owners = std::collections::BTreeSet::new();
    let mut cookies = 0;
    for (cookie, exchange) in facts.cookies() {
        let mut known = exchange.requests.iter().filter(|r| r.task.is_some());
        let Some(first) = known.next() else { continue };
        let Some(other) = known.find(|r| r.task != first.task) else {
            cookies += 1;
            owners.insert(first.task);
            continue;
        };
        if facts.exec_between(first.event, other.event) {
            tally.excuse(format!("cookie {cookie:#x} went through an exec"));
            continue;
        }
        let message = format!(
            "tasks {} and {} share cookie {cookie:#x}",
            first.event.tid.unwrap_or_default(),
            other.event.tid.unwrap_or_default()
        );
        let events = [first.event.index, other.event.index];
        tally.violated(message, events, facts.instruction(other.event));
    }
    if owners.len() > 1 {
        tally.holds_on(cookies);
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn a_cookie_each_holds() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.nmi(0, 1002, C + (2 << 32));
        assert_eq!(holds("C3", &kit).0, 2);
    }

    #[test]
    fn a_shared_cookie_does_not() {
        let mut kit = Kit::new(2);
        let a = kit.nmi(0, 1001, C);
        let b = kit.nmi(1, 1002, C);
        assert_eq!(violations("C3", &kit)[0].events, [a, b]);
    }

    #[test]
    fn one_tid_used_twice_is_two_tasks() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.exit(0, 1001);
        kit.fork(0, 1000, 1001);
        kit.nmi(0, 1001, C);
        violations("C3", &kit);
    }

    #[test]
    fn one_task_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.nmi(0, 1001, C + (2 << 32));
        not_exercised("C3", &kit);
    }

    #[test]
    fn a_tid_that_exec_changed_is_not_another_task() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.exec(0, 1000);
        kit.nmi(0, 1000, C);
        let (evidence, notes) = {
            kit.nmi(0, 2000, C + (2 << 32));
            kit.nmi(0, 2001, C + (4 << 32));
            holds("C3", &kit)
        };
        assert_eq!(
            (evidence, notes.len()),
            (2, 1),
            "the one that went through an exec is none"
        );
    }
}
