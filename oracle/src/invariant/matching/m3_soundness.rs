//! M3: every answer answers a request of its own entry.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Pairs, Relation, Request, before, spec};

/// M3. For every D(c) there is an S(c) of an event that defers, in the entry of the D. Evidence is
/// one that is proved to be of that entry ([`Relation::Same`]): on a kernel that answers what was
/// asked for elsewhere there is none, unless the task asks again with the same cookie where it is
/// answered. So a D with an S(c) of another entry beside one of its own is undecided (M1 judges the
/// former), one with an S(c) that is not later and whose entry is not known, and one with more of them than are compared. Where all are proved to be of other entries, or there is none
/// at all, that is a violation; the rest is undecided. A lost S(c) excuses (XA), as for C7, which
/// asks for the cookie alone, and so does a cookie that the limit of contexts may have cut off.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let mut pairs = Pairs::of(trace);
    for (&cookie, exchange) in &facts.exchanges {
        for answer in &exchange.answers {
            let asked =
                |r: &&Request<'_>| spec(trace, r.event).is_none_or(|spec| spec.defer_callchain);
            let mut requests = exchange.requests.iter().filter(asked).peekable();
            let nobody = requests.peek().is_none();
            let (mut own, mut other, mut unknown) = (false, None, None);
            // One of unknown entry that is not certainly later.
            let mut beside = false;
            let mut all = true;
            for request in requests {
                all = pairs.take();
                if !all {
                    break;
                }
                let relation = facts.relation(request.event, answer.event);
                let open = matches!(relation, Relation::Helped | Relation::Unknown);
                beside |= open && !before(answer.event, request.event);
                match relation {
                    Relation::Same(_) => own = true,
                    Relation::Different(proof) => other = Some(proof.why),
                    Relation::Helped => unknown = Some(Relation::HELPED),
                    Relation::Unknown => unknown = unknown.or(Some(Relation::UNDECIDED)),
                }
            }
            if !all {
                tally.undecided(Pairs::TOO_MANY);
                continue;
            }
            match (own, other.is_some(), unknown) {
                (true, false, Some(why)) if beside => tally.undecided(why),
                (true, false, _) => tally.holds(),
                (true, true, _) => tally.undecided("its cookie was asked for in another entry too"),
                (false, _, Some(why)) => tally.undecided(why),
                (false, _, None) => {}
            }
            if own || unknown.is_some() {
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
            let cut = || facts.may_be_of_a_cut_chain(answer).filter(|_| nobody);
            if let Some(why) = facts.may_have_asked_before(answer).or_else(cut) {
                tally.undecided(why);
                continue;
            }
            if let Some(why) = facts.others_may_ask().filter(|_| nobody && cookie != 0) {
                tally.undecided(why);
                continue;
            }
            let (events, instruction) = facts.story(answer);
            let what = match other {
                None => "no sample asked for it".to_owned(),
                Some(why) => format!("it was asked for in other entries only: {why}"),
            };
            let message = format!("record 22 with cookie {cookie:#x}: {what}");
            tally.violated(message, events, instruction);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, undecided, violations};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn an_answer_to_a_request_holds() {
        let mut kit = Kit::new(1);
        let mut unseen = Kit::new(1);
        kit.witness();
        for kit in [&mut kit, &mut unseen] {
            kit.sys_enter(0, 1001);
            kit.nmi(0, 1001, C);
            kit.sys_exit(0, 1001);
            kit.deferred(0, 1001, C, &[0x40]);
        }
        assert_eq!(holds("M3", &kit).0, 1);
        assert_eq!(undecided("M3", &unseen), 1, "it may come after the return");
    }

    #[test]
    fn an_answer_to_nothing_or_to_an_earlier_entry_does_not() {
        let mut kit = Kit::new(1);
        let asked = kit.nmi(0, 1001, C);
        let stray = kit.deferred(0, 1001, 0, &[0x40]);
        assert_eq!(violations("M3", &kit)[0].events, [asked, stray]);

        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        kit.sys_enter(0, 1001);
        kit.deferred(0, 1001, C, &[0x40]);
        violations("M3", &kit);
    }

    #[test]
    fn an_event_that_does_not_defer_asks_for_nothing() {
        let mut kit = Kit::new(1);
        kit.spec("nmi", |spec| spec.defer_callchain = false);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        violations("M3", &kit);
    }

    #[test]
    fn a_trace_without_answers_does_not_exercise_it() {
        not_exercised("M3", &Kit::new(1));
    }

    /// What asks before the `sys_enter` may be of the entry before, and a kernel that answers late answers that.
    #[test]
    fn an_answer_with_another_request_of_an_unknown_entry_is_undecided() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.sys_exit(0, 1001);
        assert_eq!(undecided("M3", &kit), 1);
        // It answers none that came later.
        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.sys_exit(0, 1001);
        kit.nmi(0, 1001, C);
        assert_eq!(holds("M3", &kit).0, 1);
    }
}
