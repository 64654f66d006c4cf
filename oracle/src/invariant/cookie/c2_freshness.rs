//! C2: two entries with a user instruction between them have different cookies.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts, Relation, Request, Task};

/// C2. Judges requests between which the task is proved to have left the kernel, its exit work
/// included ([`Relation::Different`]): evidence are two with different cookies, a violation is two
/// with one. Two with one cookie of which the entries are not known are undecided.
///
/// A kernel that keeps a cookie until it answers, however late, shows different cookies too: before
/// and after the answer. So two with different cookies are evidence only if the first is proved to
/// have been answered in its entry, or if no two with one cookie are undecided.
///
/// Two NMIs at one user instruction are not such a pair: the second may be taken before the
/// self-IPI of the first, and then rightly carries its cookie. Neither is an NMI in user mode after
/// one in the kernel, because the first may lie after the exit path's reset, unless the first was
/// answered before the second.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut of_cookie: BTreeMap<(Task, u64), Vec<Request<'_>>> = BTreeMap::new();
    for request in &facts.requests {
        let Some(task) = request.task else { continue };
        let key = (task, request.cookie);
        of_cookie.entry(key).or_default().push(*request);
    }
    let (mut kept, mut changed) = (0, Vec::new());
    for (_, requests) in facts.by_task() {
        for pair in requests.windows(2) {
            let [a, b] = pair else { continue };
            match facts.relation(a.event, b.event) {
                Relation::Different(_) if a.cookie != b.cookie => changed.push(*a),
                Relation::Unknown if a.cookie == b.cookie => {
                    kept += 1;
                    tally.undecided(Relation::UNDECIDED);
                }
                _ => {}
            }
        }
    }
    for first in changed {
        match kept == 0 || answered(facts, &first) {
            true => tally.holds(),
            false => tally.undecided("the first cookie may have been kept over several entries"),
        }
    }
    for ((task, cookie), requests) in &of_cookie {
        let Some((a, b, proof)) = facts.separated_among(requests) else {
            continue;
        };
        let message = format!(
            "two entries of task {} share cookie {cookie:#x}: {}",
            task.tid, proof.why
        );
        let events = [a.event.index, b.event.index]
            .into_iter()
            .chain(proof.events);
        tally.violated(message, events, facts.instruction(b.event));
    }
}

/// Whether a request is proved to have been answered in its entry.
fn answered(facts: &Facts<'_>, request: &Request<'_>) -> bool {
    let exchange = facts.exchanges.get(&request.cookie);
    let mut answers = exchange.into_iter().flat_map(|it| &it.answers);
    answers.any(|it| matches!(facts.relation(request.event, it.event), Relation::Same(_)))
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::{
        Kit, check, holds, kernel, not_exercised, undecided, user, violations,
    };

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn another_cookie_after_user_mode_holds() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1000));
        kit.inject(0, 1001, C + (2 << 32), user(0x1004));
        assert_eq!(holds("C2", &kit).0, 1);
    }

    #[test]
    fn the_same_cookie_after_user_mode_does_not() {
        let mut kit = Kit::new(1);
        let a = kit.inject(0, 1001, C, user(0x1000));
        let b = kit.inject(0, 1001, C, user(0x1004));
        let found = violations("C2", &kit);
        assert_eq!(found[0].events, [a, b]);
        assert_eq!(found[0].instruction, Some(0x1004));

        let rip = kernel(0xffff_ffff_8100_0000);
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, rip.iteration(0, 1));
        kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0008));
        kit.inject(0, 1001, C, rip.iteration(0, 2));
        assert_eq!(violations("C2", &kit).len(), 1);

        let mut kit = Kit::new(1);
        let a = kit.nmi(0, 1001, C);
        let leave = kit.sys_exit(0, 1001);
        let enter = kit.sys_enter(0, 1001);
        let b = kit.nmi(0, 1001, C);
        let found = violations("C2", &kit);
        assert_eq!(found[0].events, [a, leave, enter, b]);
    }

    #[test]
    fn different_cookies_beside_one_that_may_have_been_kept_are_no_evidence() {
        let next = C + (2 << 32);
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1000));
        kit.inject(0, 1001, next, user(0x1004));
        kit.inject(0, 1001, next, user(0x1004));
        assert_eq!(undecided("C2", &kit), 2);
    }

    #[test]
    fn the_same_cookie_at_one_user_instruction_is_not_judged() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1000));
        kit.inject(0, 1001, C, user(0x1000));
        kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000));
        not_exercised("C2", &kit);
    }

    /// A cookie that a task may have kept takes the evidence of those that were not answered only.
    #[test]
    fn a_cookie_that_was_answered_in_its_entry_was_not_kept() {
        let judged = |answered: bool, unknown: u64| {
            let mut kit = Kit::new(1);
            kit.witness();
            kit.nmi(0, 1001, C);
            if answered {
                kit.deferred(0, 1001, C, &[0x40]);
            }
            kit.returns(0, 1001);
            kit.returns(0, 1001);
            kit.nmi(0, 1001, C + (2 << 32));
            // Of these nobody noted anything.
            let mut trace = kit.trace();
            let mut more = Kit::new(1);
            more.nmi(0, 2001, C + (4 << 32));
            more.nmi(0, 2001, unknown);
            let begin = trace.events.len();
            for (at, mut event) in (begin..).zip(more.trace().events) {
                (event.index, event.position) = (at, at);
                event.time = event.time.map(|it| it + 1000);
                event.start = u64::MAX / 2;
                event.ring_index = usize::MAX;
                trace.events.push(event);
            }
            match check("C2", &trace) {
                Check::Holds { evidence, .. } => evidence,
                Check::NotExercised { .. } => 0,
                Check::Violated(list) => panic!("{list:?}"),
            }
        };
        let kept = C + (4 << 32);
        assert_eq!((judged(true, kept), judged(false, kept)), (1, 0));
        // Two cookies of two entries or of one: nothing was kept.
        assert_eq!(judged(false, C + (6 << 32)), 1);
    }
}
