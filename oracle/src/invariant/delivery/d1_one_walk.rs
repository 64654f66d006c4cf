//! D1: at most one walk of the user stack per entry.

use std::collections::{BTreeMap, BTreeSet};

use crate::invariant::Tally;
use crate::invariant::evidence::{Answer, Evidence, Facts};

/// D1, as far as records show it: an entry gives D of at most one cookie. A walk leaves no record
/// of its own; only an in-kernel client can show that the cache answered a second one.
///
/// Entries are known as for C1, plus D that lie between a `sys_enter` and its `sys_exit` (an entry
/// that runs task work without leaving). Copies of one D to several events, and a second D of the
/// same cookie, are M2's.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
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
    let mut inside: BTreeMap<_, Vec<&Answer<'_>>> = BTreeMap::new();
    for answer in &facts.answers {
        let Some(task) = answer.task else { continue };
        let around = facts.syscalls.around(trace, task, answer.event);
        if let Some(bracket) = around {
            inside.entry(bracket.enter).or_default().push(answer);
        }
    }
    for answers in inside.values() {
        let why = "between one sys_enter and its sys_exit";
        judge_entry(facts, tally, &mut judged, answers, why);
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
    let at = other.map_or(first.event.index, |other| other.event.index);
    if !judged.insert((first.event.index, at)) {
        return;
    }
    let Some(other) = other else {
        return tally.holds();
    };
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
    use crate::invariant::testkit::{Kit, holds, kernel, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;
    const RIP: u64 = 0xffff_ffff_8100_1234;

    #[test]
    fn one_answer_to_a_burst_holds() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, kernel(RIP).iteration(0, 1));
        kit.inject(0, 1001, C, kernel(RIP).iteration(0, 1));
        kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(holds("D1", &kit).0, 1);
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
}
