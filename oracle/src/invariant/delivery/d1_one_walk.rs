//! D1: at most one walk of the user stack per entry.

use std::collections::{BTreeMap, BTreeSet};

use crate::invariant::Tally;
use crate::invariant::evidence::{Answer, Evidence, Facts, Relation, Task, Together};

/// D1, as far as records show it: an entry gives D of at most one cookie. A walk leaves no record
/// of its own; only an in-kernel client can show that the cache answered a second one.
///
/// Evidence are two D in a row of a task, with different cookies, that are proved to be of
/// different entries ([`Relation::Different`]), with nothing lost in between, which may be a second D of one of them. Those of one system call violate it, and so do the D
/// to requests that a right kernel has in one entry (as for C1). That no user instruction retired
/// between two is no violation: the task may have returned, and been interrupted at once. Copies of one D to several events, and a second D of the same
/// cookie, are M2's.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut judged = BTreeSet::new();
    for group in evidence.one_entry() {
        let mut answers: Vec<&Answer<'_>> = Vec::new();
        for request in &group.requests {
            let exchange = facts.exchanges.get(&request.cookie);
            answers.extend(exchange.and_then(|x| x.answers.first()));
        }
        judge_entry(facts, tally, &mut judged, &answers, &group.why);
    }
    let mut of_task: BTreeMap<Task, Vec<&Answer<'_>>> = BTreeMap::new();
    for answer in &facts.answers {
        if let Some(task) = answer.task {
            of_task.entry(task).or_default().push(answer);
        }
    }
    for pair in of_task.values().flat_map(|list| list.windows(2)) {
        let [a, b] = *pair else { continue };
        if a.chain.cookie == b.chain.cookie {
            continue;
        }
        match facts.relation(a.event, b.event) {
            Relation::Different(_) => match facts.losses.between(a.event.time, b.event.time) {
                None => tally.holds(),
                Some(_) => tally.undecided("records were lost between two answers"),
            },
            Relation::Helped | Relation::Unknown => tally.undecided(Relation::UNDECIDED),
            Relation::Same(Together::NoUserCode) => tally.undecided(
                "the task may have returned and been interrupted before a user instruction",
            ),
            Relation::Same(Together::SystemCall) => {
                let why = "between one sys_enter and its sys_exit";
                judge_entry(facts, tally, &mut judged, &[a, b], why);
            }
        }
    }
}

/// Judges the answers of one entry. `judged` holds those judged before, since an entry may be known
/// in several ways.
fn judge_entry(
    facts: &Facts<'_>,
    tally: &mut Tally,
    judged: &mut BTreeSet<(usize, usize)>,
    answers: &[&Answer<'_>],
    why: &str,
) {
    let Some(first) = answers.first() else { return };
    let cookie = first.chain.cookie;
    let other = answers.iter().find(|a| a.chain.cookie != cookie);
    let Some(other) = other else { return };
    if !judged.insert((first.event.index, other.event.index)) {
        return;
    }
    let message = format!(
        "one entry was unwound for cookies {cookie:#x} and {:#x} ({why})",
        other.chain.cookie
    );
    let asked = facts.exchanges.get(&other.chain.cookie);
    let asked = asked.and_then(|exchange| exchange.requests.first());
    let instruction = asked.and_then(|request| facts.instruction(request.event));
    tally.violated(message, [first.event.index, other.event.index], instruction);
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, kernel, not_exercised, undecided, violations};

    const C: u64 = 3 << 32 | 1;
    const RIP: u64 = 0xffff_ffff_8100_1234;

    #[test]
    fn one_cookie_in_each_of_two_entries_holds() {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.deferred(0, 1001, C, &[0x40]);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.returns(0, 1001);
        kit.deferred(0, 1001, C + (2 << 32), &[0x40]);
        assert_eq!(holds("D1", &kit).0, 1);
        kit.deferred(0, 1001, C + (4 << 32), &[0x40]);
        assert_eq!(
            holds("D1", &kit).0,
            1,
            "it may be an interrupt at the very return"
        );
    }

    #[test]
    fn one_answer_to_a_burst_is_no_evidence() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, kernel(RIP).iteration(0, 1));
        kit.inject(0, 1001, C, kernel(RIP).iteration(0, 1));
        kit.deferred(0, 1001, C, &[0x40]);
        not_exercised("D1", &kit);
        kit.deferred(0, 1001, C + (2 << 32), &[0x40]);
        assert_eq!(undecided("D1", &kit), 1);
    }

    #[test]
    fn two_unwinds_of_an_entry_do_not() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, kernel(RIP).iteration(0, 1));
        kit.inject(0, 1001, C + (2 << 32), kernel(RIP).iteration(0, 1));
        let a = kit.deferred(0, 1001, C, &[0x40]);
        let b = kit.deferred(0, 1001, C + (2 << 32), &[0x40]);
        assert_eq!(violations("D1", &kit)[0].events, [a, b]);

        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.deferred(0, 1001, C + (2 << 32), &[0x40]);
        kit.sys_exit(0, 1001);
        violations("D1", &kit);
    }

    #[test]
    fn answers_of_unknown_entries_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        not_exercised("D1", &kit);
    }

    /// Another answer of one of the two entries may be among what was lost.
    #[test]
    fn answers_beside_a_loss_are_undecided() {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.deferred(0, 1001, C, &[0x40]);
        kit.lost(0, 1);
        kit.returns(0, 1001);
        kit.deferred(0, 1001, C + (2 << 32), &[0x40]);
        assert_eq!(undecided("D1", &kit), 1);
    }
}
