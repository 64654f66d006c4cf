//! S2: two entries with different stacks give different answers.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::{Answer, Evidence, Facts, Task, expected, in_part};

/// S2. The unwinder keeps the frames of an entry in a cache of the task, which must not outlive the
/// entry. Two D must differ where their stacks are known to differ:
///
/// * two consecutive D of one task whose entries are known to be made at different user instructions: frame 0
///   differs;
/// * two consecutive D in a ring, of workload threads whose stacks differ by construction within
///   510 frames, or within those that an instance had room for.
///
/// S1 judges whether each of the two is right; here they only need to differ.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut of_task: BTreeMap<Task, Vec<&Answer<'_>>> = BTreeMap::new();
    let mut of_ring: BTreeMap<u32, Vec<&Answer<'_>>> = BTreeMap::new();
    for answer in &facts.answers {
        if let Some(task) = answer.task {
            of_task.entry(task).or_default().push(answer);
        }
        of_ring.entry(answer.event.ring).or_default().push(answer);
    }
    for list in of_task.values() {
        compare(facts, tally, list, entered_elsewhere);
    }
    for list in of_ring.values() {
        compare(facts, tally, list, built_otherwise);
    }
}

fn compare(
    facts: &Facts<'_>,
    tally: &mut Tally,
    list: &[&Answer<'_>],
    differ: fn(&Facts<'_>, &Answer<'_>, &Answer<'_>) -> bool,
) {
    for pair in list.windows(2) {
        let [a, b] = pair else { continue };
        if !differ(facts, a, b) {
            continue;
        }
        if a.chain.ips != b.chain.ips {
            tally.holds();
            continue;
        }
        let message = format!(
            "cookies {:#x} and {:#x} show one stack of {} frames though theirs differ",
            a.chain.cookie,
            b.chain.cookie,
            a.chain.ips.len()
        );
        let asked = facts.exchanges.get(&b.chain.cookie);
        let asked = asked.and_then(|exchange| exchange.requests.last());
        let instruction = asked.and_then(|request| facts.instruction(request.event));
        tally.violated(message, [a.event.index, b.event.index], instruction);
    }
}

fn entered_elsewhere(facts: &Facts<'_>, a: &Answer<'_>, b: &Answer<'_>) -> bool {
    let ip = |answer: &Answer<'_>| {
        let exchange = facts.exchanges.get(&answer.chain.cookie)?;
        facts.entry_ip(exchange).map(|(ip, _)| ip)
    };
    matches!((ip(a), ip(b)), (Some(x), Some(y)) if x != y)
}

fn built_otherwise(facts: &Facts<'_>, a: &Answer<'_>, b: &Answer<'_>) -> bool {
    if a.task == b.task || a.task.is_none() || b.task.is_none() {
        return false;
    }
    // Threads that announce no tid may be of several stacks: one of each is needed.
    let stack = |answer: &Answer<'_>| match facts.stacks_at_leaf(answer)[..] {
        [only] => Some(only),
        _ => None,
    };
    let stacks = stack(a).zip(stack(b));
    let written = match in_part(a.chain) || in_part(b.chain) {
        true => a.chain.ips.len().min(b.chain.ips.len()),
        false => usize::MAX,
    };
    let shown = |stack| expected(stack, 0).take(written);
    stacks.is_some_and(|(x, y)| shown(x).ne(shown(y)))
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, user, violations};

    const C: u64 = 3 << 32 | 1;
    const D: u64 = 5 << 32 | 1;

    #[test]
    fn two_places_and_two_answers_hold() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1004));
        kit.deferred(0, 1001, C, &[0x1004, 0x2000]);
        kit.inject(0, 1001, D, user(0x1008));
        kit.deferred(0, 1001, D, &[0x1008, 0x2000]);
        assert_eq!(holds("S2", &kit).0, 1);
    }

    #[test]
    fn the_same_answer_to_both_does_not() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1004));
        let a = kit.deferred(0, 1001, C, &[0x1004, 0x2000]);
        kit.inject(0, 1001, D, user(0x1008));
        let b = kit.deferred(0, 1001, D, &[0x1004, 0x2000]);
        assert_eq!(violations("S2", &kit)[0].events, [a, b]);
    }

    #[test]
    fn the_stack_of_another_thread_does_not() {
        let mut kit = Kit::new(1);
        kit.deep_thread(0, 1001, 2);
        kit.deep_thread(1, 1002, 3);
        kit.deferred(0, 1001, C, &[0x1004, 0x2000, 0x2000, 0x3000]);
        kit.deferred(0, 1002, D, &[0x1004, 0x2000, 0x2000, 0x3000]);
        violations("S2", &kit);
    }

    #[test]
    fn stacks_that_differ_below_the_cut_only_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.deep_thread(0, 1001, 600);
        kit.deep_thread(1, 1002, 601);
        let mut frames = vec![0x2000; 510];
        frames[0] = 0x1004;
        kit.deferred(0, 1001, C, &frames);
        kit.deferred(0, 1002, D, &frames);
        not_exercised("S2", &kit);
    }
}
