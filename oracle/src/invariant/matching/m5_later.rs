//! M5: the answer comes after the first request, in its entry, and so do the requests after it.

use crate::invariant::Tally;
use crate::invariant::evidence::{Answer, Evidence, Exchange, Pairs, Relation, Request, before};

/// M5. D(c) is later than the first S(c) and of its entry. An S(c) after it is late. That is legal
/// only in the same entry. Late samples are counted, because perf's own tool cannot merge a sample
/// with a record that it has already passed.
///
/// Within a ring the order is that of the ring, between rings that of the clock. Evidence is a D
/// with an S(c) certainly before it and proved to be of its entry ([`Relation::Same`]), and a late
/// S(c) that is: neither is there on a kernel that answers in another entry, or hands out a cookie
/// after the entry of its D. Either is a violation where it is proved to be of another entry. A tie,
/// and a pair of which the entries are not known, is undecided. A loss before a D that precedes all S(c) excuses it (XA): the
/// S(c) that asked may be among what was lost. So may its cookie, by the limit of contexts: undecided, as for C7.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut late = 0;
    let mut pairs = Pairs::of(evidence.trace());
    let mut compared = Pairs::of(evidence.trace());
    for (cookie, exchange) in facts.cookies() {
        for answer in &exchange.answers {
            let Some(first) = exchange.requests.first() else {
                continue;
            };
            match asked(exchange, answer, &mut compared) {
                Asked::Later => {
                    if let Some(why) = facts.losses.between(None, answer.event.time) {
                        tally.excuse(format!("cookie {cookie:#x}: {why}"));
                        continue;
                    }
                    let before = facts.may_have_asked_before(answer);
                    if let Some(why) = before.or_else(|| facts.may_be_of_a_cut_chain(answer)) {
                        tally.undecided(why);
                        continue;
                    }
                    if let Some(why) = facts.others_may_ask() {
                        tally.undecided(why);
                        continue;
                    }
                    let message =
                        format!("cookie {cookie:#x} was answered before it was requested");
                    let events = [answer.event.index, first.event.index];
                    tally.violated(message, events, facts.instruction(first.event));
                    continue;
                }
                Asked::Open => tally.undecided("no clock tells which came first"),
                Asked::TooMany => tally.undecided(Pairs::TOO_MANY),
                Asked::Before(r) => match facts.relation(r.event, answer.event) {
                    Relation::Same(_) => tally.holds(),
                    Relation::Different(apart) => {
                        let message = format!(
                            "cookie {cookie:#x} was answered in a later entry than its first \
                             sample: {}",
                            apart.why
                        );
                        let events = [r.event.index, answer.event.index];
                        let events = events.into_iter().chain(apart.events);
                        tally.violated(message, events, facts.instruction(r.event));
                    }
                    Relation::Helped => tally.undecided(Relation::HELPED),
                    Relation::Unknown => tally.undecided(Relation::UNDECIDED),
                },
            }
            for request in &exchange.requests {
                if !pairs.take() {
                    tally.undecided(Pairs::TOO_MANY);
                    break;
                }
                if !before(answer.event, request.event) {
                    continue;
                }
                late += 1;
                let apart = match facts.relation(answer.event, request.event) {
                    Relation::Different(apart) => apart,
                    Relation::Same(_) => {
                        tally.holds();
                        continue;
                    }
                    Relation::Helped => {
                        tally.undecided(Relation::HELPED);
                        continue;
                    }
                    Relation::Unknown => {
                        tally.undecided(Relation::UNDECIDED);
                        continue;
                    }
                };
                let message = format!(
                    "cookie {cookie:#x} came back in a later entry than its record 22: {}",
                    apart.why
                );
                let events = [first.event.index, answer.event.index, request.event.index];
                let events = events.into_iter().chain(apart.events);
                tally.violated(message, events, facts.instruction(request.event));
            }
        }
    }
    tally.note(late, "late samples (after their record 22)");
}

/// When an answer was asked for.
enum Asked<'e, 't> {
    /// This is the first request that is certainly earlier.
    Before(&'e Request<'t>),
    /// Each request is certainly later.
    Later,
    Open,
    TooMany,
}

fn asked<'e, 't>(
    exchange: &'e Exchange<'t>,
    answer: &Answer<'t>,
    pairs: &mut Pairs,
) -> Asked<'e, 't> {
    let mut found = Asked::Later;
    for request in &exchange.requests {
        if !pairs.take() {
            return Asked::TooMany;
        }
        if before(request.event, answer.event) {
            return Asked::Before(request);
        }
        if !before(answer.event, request.event) {
            found = Asked::Open;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::{
        Kit, check, holds, judged, not_exercised, undecided, violations,
    };

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn late_samples_are_counted() {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.nmi(0, 1001, C);
        let (evidence, notes) = holds("M5", &kit);
        assert_eq!(evidence, 2);
        assert_eq!(notes, ["1 late samples (after their record 22)"]);
    }

    #[test]
    fn a_late_sample_may_stand_before_its_answer() {
        let mut kit = Kit::new(2);
        kit.witness();
        let first = kit.nmi(0, 1001, C);
        let late = kit.nmi(0, 1001, C);
        let answer = kit.deferred(1, 1001, C, &[0x40]);
        let mut trace = kit.trace();
        // A record that nests in the writing of another has its place behind it, and an earlier time.
        for (at, time) in [(first, 10), (late, 50), (answer, 45)] {
            trace.events[at].time = Some(time);
        }
        assert_eq!(judged("M5", &trace), (2, 0, false));
    }

    #[test]
    fn a_tie_and_entries_that_are_not_known_are_undecided() {
        let mut kit = Kit::new(2);
        kit.witness();
        kit.nmi(0, 1001, C);
        kit.deferred(1, 1001, C, &[0x40]);
        assert_eq!(holds("M5", &kit).0, 1);
        let mut trace = kit.trace();
        trace.events[1].time = trace.events[0].time;
        let tied = check("M5", &trace);
        assert!(matches!(tied, Check::NotExercised { undecided: 1, .. }));

        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.nmi(0, 1001, C);
        assert_eq!(undecided("M5", &kit), 2);
    }

    #[test]
    fn an_answer_before_the_question_does_not_hold() {
        let mut kit = Kit::new(1);
        let a = kit.deferred(0, 1001, C, &[0x40]);
        let b = kit.nmi(0, 1001, C);
        assert_eq!(violations("M5", &kit)[0].events, [a, b]);
    }

    /// A request behind the exit work, before a sweep's checkpoint, is answered in the trial.
    #[test]
    fn what_waited_when_the_trace_began_may_have_been_asked_for() {
        let mut kit = Kit::new(1);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.nmi(0, 1001, C);
        let mut trace = kit.trace();
        trace.begins_late = true;
        assert_eq!(judged("M5", &trace), (0, 1, false));

        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C + (2 << 32));
        let a = kit.deferred(0, 1001, C, &[0x40]);
        kit.nmi(0, 1001, C);
        let mut trace = kit.trace();
        trace.begins_late = true;
        assert!(judged("M5", &trace).2, "asked for between: {a}");
    }

    #[test]
    fn a_late_sample_of_another_entry_does_not_hold() {
        let mut kit = Kit::new(1);
        let asked = kit.nmi(0, 1001, C);
        let answered = kit.deferred(0, 1001, C, &[0x40]);
        let a = kit.sys_enter(0, 1001);
        kit.sys_exit(0, 1001);
        let b = kit.sys_enter(0, 1001);
        let late = kit.nmi(0, 1001, C);
        assert_eq!(
            violations("M5", &kit)[0].events,
            [asked, answered, a, b, late]
        );
    }

    #[test]
    fn without_pairs_it_is_not_exercised() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        not_exercised("M5", &kit);
    }

    /// The request that was first has no cookie in its chain.
    #[test]
    fn a_cookie_that_the_limit_of_contexts_cut_off_may_have_been_first() {
        let mut kit = Kit::new(1);
        kit.kernel_only(0, 1001);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.nmi(0, 1001, C);
        violations("M5", &kit);
        let mut trace = kit.trace();
        let name = "perf_event_max_contexts_per_stack".to_owned();
        trace.sysctls.push((name, "1".to_owned()));
        assert!(!judged("M5", &trace).2);
    }
}
