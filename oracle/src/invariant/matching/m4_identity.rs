//! M4: an answer carries the pid and tid of its request.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Request};

/// M4. Every D(c) has the pid and tid of every S(c). perf takes both from `current` when it writes
/// the record. The task is the same; only an exec by a thread that is not the leader changes its
/// tid in between (to the leader's). Where a record of such an exec lies between, the tid is not
/// judged, in whatever order: task work may run before the exec changes the tid, and a late S come behind it.
///
/// A D that is written while the task exits still has its ids: the exit flush comes before
/// `exit_notify` (kernel/exit.c, 7.2).
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for (cookie, exchange) in facts.cookies() {
        let ids = |e: &crate::trace::Event| (e.pid, e.tid);
        let unknown = |r: &Request<'_>| r.event.pid.is_none() || r.event.tid.is_none();
        let is_unknown = exchange.requests.iter().any(unknown);
        // The first, and the first with other ids: an endless entry has very many.
        let first = exchange.requests.first();
        let mut differing = exchange.requests.iter();
        let second =
            differing.find(|r| first.is_some_and(|first| ids(r.event) != ids(first.event)));
        for answer in &exchange.answers {
            let (known, mut others) = (ids(answer.event), first.into_iter().chain(second));
            if known.0.is_none() || known.1.is_none() || exchange.requests.is_empty() {
                continue;
            }
            if is_unknown {
                tally.undecided("a request without pid and tid");
                continue;
            }
            let Some(request) = others.find(|r| ids(r.event) != known) else {
                tally.holds();
                continue;
            };
            let (asked, answered) = (request.event, answer.event);
            if facts.exec_between(asked, answered) || facts.exec_between(answered, asked) {
                tally.excuse(format!("cookie {cookie:#x} went through an exec"));
                continue;
            }
            let message = format!(
                "cookie {cookie:#x} was requested by {} and answered as {}",
                name(request.event),
                name(answer.event)
            );
            let events = [request.event.index, answer.event.index];
            tally.violated(message, events, facts.instruction(request.event));
        }
    }
}

fn name(event: &crate::trace::Event) -> String {
    match (event.pid, event.tid) {
        (Some(pid), Some(tid)) => format!("pid {pid} tid {tid}"),
        _ => "a task without ids".into(),
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, check, holds, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn the_same_ids_hold() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(holds("M4", &kit).0, 1);
    }

    #[test]
    fn others_do_not() {
        let mut kit = Kit::new(1);
        let a = kit.nmi(0, 1001, C);
        let b = kit.deferred(0, 1002, C, &[0x40]);
        assert_eq!(violations("M4", &kit)[0].events, [a, b]);
    }

    #[test]
    fn exec_may_change_the_tid_to_the_leaders_only() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.exec(0, 1000);
        kit.deferred(0, 1000, C, &[0x40]);
        assert!(not_exercised("M4", &kit).contains("exec"));

        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.exec(0, 1000);
        kit.deferred(0, 1002, C, &[0x40]);
        violations("M4", &kit);
    }

    /// Where no event records comm: the leader exits first.
    #[test]
    fn an_exec_shows_in_the_exit_of_the_leader_too() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.exit(0, 1000);
        kit.deferred(0, 1000, C, &[0x40]);
        assert!(not_exercised("M4", &kit).contains("exec"));

        let mut kit = Kit::new(1);
        kit.exit(0, 1000);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1000, C, &[0x40]);
        violations("M4", &kit);
    }

    #[test]
    fn without_pairs_it_is_not_exercised() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C + 2, &[0x40]);
        not_exercised("M4", &kit);
    }

    #[test]
    fn an_exec_before_or_behind_is_no_excuse() {
        let mut kit = Kit::new(1);
        kit.exec(0, 1000);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1000, C, &[0x40]);
        kit.exec(0, 1000);
        let list = violations("M4", &kit);
        assert_eq!(
            list[0].message,
            format!(
                "cookie {C:#x} was requested by pid 1000 tid 1001 and answered as pid 1000 tid 1000"
            )
        );
    }

    /// Execs are searched from a place near the request.
    #[test]
    fn the_exec_in_between_is_found_among_many() {
        let many = |kit: &mut Kit| {
            for _ in 0..20 {
                kit.exec(0, 1000);
            }
        };
        let mut kit = Kit::new(1);
        many(&mut kit);
        kit.nmi(0, 1001, C);
        kit.exec(0, 1000);
        kit.deferred(0, 1000, C, &[0x40]);
        many(&mut kit);
        assert!(not_exercised("M4", &kit).contains("exec"));
    }

    #[test]
    fn records_without_ids_decide_nothing() {
        type Ids = (Option<u32>, Option<u32>);
        let judged = |asked: Ids, answered: Ids| {
            let mut kit = Kit::new(1);
            kit.nmi(0, 1001, C);
            kit.deferred(0, 1001, C, &[0x40]);
            let mut trace = kit.trace();
            for (event, ids) in trace.events.iter_mut().zip([asked, answered]) {
                (event.pid, event.tid) = ids;
            }
            check("M4", &trace)
        };
        let (pid, tid) = (Some(1000), Some(1001));
        for ids in [(None, tid), (pid, None)] {
            for (asked, answered, undecided) in [((pid, tid), ids, 0), (ids, (pid, tid), 1)] {
                let found = judged(asked, answered);
                let Check::NotExercised { undecided: n, .. } = found else {
                    panic!("{ids:?}: {found:?}");
                };
                assert_eq!(n, undecided, "{ids:?}");
            }
        }
    }

    /// Task work may run in exec, before the tid changes.
    #[test]
    fn an_exec_between_an_answer_and_a_late_request_changes_the_tid_too() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.exec(0, 1000);
        kit.nmi(0, 1000, C);
        assert!(not_exercised("M4", &kit).contains("exec"));
    }
}
