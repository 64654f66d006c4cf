//! M1: every request is answered in its entry.

use crate::invariant::Tally;
use crate::invariant::evidence::{
    Answer, Evidence, Exchange, Facts, Pairs, Relation, Request, receivers,
};

/// M1. Every S(c) has a D(c), in whatever ring, and of its own entry. A late S (after its D) is
/// answered too: the callback ran earlier in its entry and does not run again (`unwind_completed`,
/// kernel/unwind/deferred.c, 7.2).
///
/// Evidence is an S(c) with a D(c) that is proved to be of its entry ([`Relation::Same`]): a kernel
/// that answers in another one has a return to user mode between the two. Where every D(c) is
/// proved to be of another entry, that is a violation; the rest is undecided.
///
/// An instance of tracefs that is cancelled and registered anew is another client each time. Where it may have been cancelled,
/// its tracing may have ended, or its buffer may have been full, before the entry of a request was over that has no answer
/// of its own, that is undecided.
///
/// Excuses: XA, XC and XD, as `Facts::unanswered` proves them. Without an event that receives
/// record 22 nothing can be judged.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let mut pairs = Pairs::of(trace);
    let received = receivers(trace).next().is_some();
    let exchanges = facts.cookies().filter(|_| received);
    let parts = exchanges.flat_map(|(cookie, all)| {
        { evidence.by_registration(all).into_iter() }.map(move |part| (cookie, part))
    });
    for (cookie, exchange) in parts {
        if exchange.answers.is_empty() {
            missing(evidence, tally, cookie, &exchange);
        } else {
            for request in &exchange.requests {
                elsewhere(evidence, tally, request, &exchange.answers, &mut pairs);
            }
        }
    }
    if !received {
        tally.lacks("no event receives record 22");
    }
}

fn missing<'t>(evidence: &Evidence<'t>, tally: &mut Tally, cookie: u64, exchange: &Exchange<'t>) {
    let facts = evidence.facts();
    let (Some(first), Some(last)) = (exchange.requests.first(), exchange.requests.last()) else {
        return;
    };
    let excuse = facts.unanswered(first).or_else(|| facts.unanswered(last));
    if let Some(why) = excuse {
        tally.excuse(format!("cookie {cookie:#x}: {why}"));
        return;
    }
    if let Some(why) = facts.answer_may_be_elsewhere(last) {
        return tally.undecided(why);
    }
    if evidence.may_be_cancelled(last) {
        return tally.undecided(Evidence::MAY_BE_CANCELLED);
    }
    let message = format!(
        "no record 22 for cookie {cookie:#x} of task {} ({} samples)",
        first.event.tid.unwrap_or_default(),
        exchange.requests.len()
    );
    let events = [first.event.index, last.event.index];
    let events = events.into_iter().chain(exit_behind(facts, last));
    tally.violated(message, events, facts.instruction(last.event));
}

/// The exit record of the task, if it made no other request in between.
fn exit_behind(facts: &Facts<'_>, request: &Request<'_>) -> Option<usize> {
    let task = request.task?;
    let last = facts.requests_of(task).last()?;
    let exit = facts.tasks.exit(task)?;
    (last.cookie == request.cookie).then_some(exit)
}

fn elsewhere<'t>(
    evidence: &Evidence<'t>,
    tally: &mut Tally,
    request: &Request<'t>,
    answers: &[Answer<'t>],
    pairs: &mut Pairs,
) {
    let facts = evidence.facts();
    let is_own = |it: &Answer<'_>| {
        let relation = facts.relation(request.event, it.event);
        matches!(relation, Relation::Same(_))
    };
    // Most likely the next one.
    let next = answers.partition_point(|it| it.event.index < request.event.index);
    if answers.get(next).is_some_and(is_own) {
        return tally.holds();
    }
    let mut proof = None;
    let mut undecided = None;
    for answer in answers {
        if !pairs.take() {
            return tally.undecided(Pairs::TOO_MANY);
        }
        match facts.relation(request.event, answer.event) {
            Relation::Same(_) => return tally.holds(),
            Relation::Different(apart) => proof = Some((answer, apart)),
            Relation::Helped => undecided = Some(Relation::HELPED),
            Relation::Unknown => undecided = undecided.or(Some(Relation::UNDECIDED)),
        }
    }
    if let Some(why) = undecided {
        return tally.undecided(why);
    }
    let Some((answer, apart)) = proof else { return };
    // Its own may not have been written, and the cookie kept for another entry.
    if evidence.may_be_cancelled(request) {
        return tally.undecided(Evidence::MAY_BE_CANCELLED);
    }
    let message = format!(
        "cookie {:#x} was answered in another entry than it was requested in: {}",
        request.cookie, apart.why
    );
    let events = [request.event.index, answer.event.index];
    let events = events.into_iter().chain(apart.events);
    tally.violated(message, events, facts.instruction(request.event));
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, undecided, violations};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn answered_on_another_cpu_holds_and_so_does_a_late_sample() {
        let mut kit = Kit::new(2);
        let mut unseen = Kit::new(2);
        kit.witness();
        for kit in [&mut kit, &mut unseen] {
            kit.nmi(0, 1001, C);
            kit.deferred(1, 1001, C, &[0x40]);
            kit.nmi(1, 1001, C);
        }
        assert_eq!(holds("M1", &kit).0, 2);
        assert_eq!(undecided("M1", &unseen), 2);
    }

    #[test]
    fn unanswered_does_not_hold() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        let a = kit.nmi(0, 1001, C + (2 << 32));
        kit.nmi(0, 1001, C + (2 << 32));
        let b = kit.nmi(0, 1001, C + (2 << 32));
        assert_eq!(violations("M1", &kit)[0].events, [a, b]);
    }

    #[test]
    fn answered_after_user_mode_does_not_hold() {
        let mut kit = Kit::new(1);
        let asked = kit.nmi(0, 1001, C);
        let leave = kit.sys_exit(0, 1001);
        let enter = kit.sys_enter(0, 1001);
        let answered = kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(
            violations("M1", &kit)[0].events,
            [asked, leave, enter, answered]
        );
    }

    #[test]
    fn an_exiting_task_is_no_excuse() {
        let mut kit = Kit::new(1);
        let before = kit.nmi(0, 1001, C);
        let asked = kit.nmi(0, 1001, C + (2 << 32));
        let exit = kit.exit(0, 1001);
        let named: Vec<_> = { violations("M1", &kit).into_iter() }
            .map(|it| it.events)
            .collect();
        assert_eq!(named, [vec![before], vec![asked, exit]]);
    }

    #[test]
    fn an_excuse_is_no_evidence() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.switch_out(0, 1001);
        assert!(not_exercised("M1", &kit).contains("XD"));
    }

    #[test]
    fn without_a_receiver_nothing_is_judged() {
        let mut kit = Kit::new(1);
        kit.spec("track", |spec| spec.defer_output = false);
        kit.nmi(0, 1001, C);
        let lacks = "no event receives record 22";
        assert!(not_exercised("M1", &kit).contains(lacks));
        assert!(!not_exercised("M1", &Kit::new(1)).contains(lacks));
    }
}
