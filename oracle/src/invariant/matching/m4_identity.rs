//! M4: an answer carries the pid and tid of its request.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Request};

/// M4. Every D(c) has the pid and tid of every S(c). perf takes both from `current` when it writes
/// the record. The task is the same; only an exec by a thread that is not the leader changes its
/// tid in between (to the leader's). Where a record of such an exec lies between, the tid is not
/// judged.
///
/// A D that is written while the task exits still has its ids: the exit flush comes before
/// `exit_notify` (kernel/exit.c, 7.2).
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for (cookie, exchange) in facts.cookies() {
        for answer in &exchange.answers {
            let ids = |e: &crate::trace::Event| (e.pid, e.tid);
            let (known, mut others) = (ids(answer.event), exchange.requests.iter());
            if known.0.is_none() || known.1.is_none() || exchange.requests.is_empty() {
                continue;
            }
            let unknown = |r: &Request<'_>| r.event.pid.is_none() || r.event.tid.is_none();
            if exchange.requests.iter().any(unknown) {
                tally.undecided("a request without pid and tid");
                continue;
            }
            let Some(request) = others.find(|r| ids(r.event) != known) else {
                tally.holds();
                continue;
            };
            if facts.exec_between(request.event, answer.event) {
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
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

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

    #[test]
    fn without_pairs_it_is_not_exercised() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C + 2, &[0x40]);
        not_exercised("M4", &kit);
    }
}
