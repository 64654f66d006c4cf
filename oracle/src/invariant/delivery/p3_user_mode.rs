//! P3: user instructions retire between two unwinds of a task.

use std::collections::BTreeMap;

use crate::invariant::evidence::{Answer, Evidence, Facts, Relation, Task, before};
use crate::invariant::{Check, Tally};
use crate::trace::recording::ThreadProgress;
use crate::trace::{Event, Trace};

/// P3. Two consecutive D of a task must not be of one entry, as far as that is known (as for C1).
/// Evidence is a pair with a proven user instruction between them
/// (`Facts::user_code_between`). That the task returned to user mode is not enough: it may be
/// interrupted before its first instruction, again and again. Other pairs are undecided: a request
/// after the exit path's reset rightly makes a second D before the next user instruction, once. So are two between which
/// records were lost: another D may be one of them.
///
/// [`progress`] judges whether user mode advances by a stated amount under a storm; a scenario asks
/// for it.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut entry_of = BTreeMap::new();
    for (number, group) in evidence.one_entry().iter().enumerate() {
        for request in &group.requests {
            let entries: &mut Vec<usize> = entry_of.entry(request.cookie).or_default();
            entries.push(number);
        }
    }
    let mut of_task: BTreeMap<Task, Vec<&Answer<'_>>> = BTreeMap::new();
    for answer in &facts.answers {
        if let (Some(task), true) = (answer.task, answer.chain.cookie != 0) {
            of_task.entry(task).or_default().push(answer);
        }
    }
    for list in of_task.values() {
        for pair in list.windows(2) {
            let [a, b] = pair else { continue };
            if a.chain.cookie == b.chain.cookie {
                continue;
            }
            let entries = |x: &Answer<'_>| entry_of.get(&x.chain.cookie);
            let shared = entries(a).zip(entries(b));
            if shared.is_some_and(|(a, b)| a.iter().any(|n| b.contains(n))) {
                let message = format!(
                    "no user instruction between the unwinds for cookies {:#x} and {:#x}",
                    a.chain.cookie, b.chain.cookie
                );
                let asked = facts.exchanges.get(&b.chain.cookie);
                let asked = asked.and_then(|exchange| exchange.requests.first());
                let instruction = asked.and_then(|r| facts.instruction(r.event));
                tally.violated(message, [a.event.index, b.event.index], instruction);
            } else if facts.losses.between(a.event.time, b.event.time).is_some() {
                tally.undecided("an unwind between the two may be lost");
            } else if apart(facts, a, b) {
                tally.holds();
            } else {
                tally.undecided("nothing shows that user code ran in between");
            }
        }
    }
}

/// Whether user code is proved to have run between two unwinds.
///
/// Requests show more than answers do. But a kernel that answers late has both answers in one entry, whatever lay between
/// their requests. So a request stands for its answer only if no user code came between the two, or if it came first and so
/// what lies before it lies before its answer. The walk of the first answer shows user code behind it, too.
fn apart(facts: &Facts<'_>, a: &Answer<'_>, b: &Answer<'_>) -> bool {
    let shown = |first: &Event, second: &Event| facts.user_code_between(first, second).is_some();
    if shown(a.event, b.event) {
        return true;
    }
    let requests = |x: &Answer<'_>| facts.exchanges.get(&x.chain.cookie).map(|x| &x.requests);
    let last = requests(a).and_then(|list| list.last());
    let first = requests(b).and_then(|list| list.first());
    let (Some(last), Some(first)) = (last, first) else {
        return false;
    };
    if !before(first.event, b.event) {
        return false;
    }
    if facts.walked_from_elsewhere(a, first.event) {
        return true;
    }
    let own = || matches!(facts.relation(last.event, a.event), Relation::Same(_));
    shown(last.event, first.event) && own()
}

/// P3 with a number: from the first injection to the last, user mode advanced by at least
/// `at_least` units of the workload's progress counters (iterations; loops for `spin`).
///
/// With no more threads than vCPUs each thread has a CPU to itself, and each must advance so far;
/// otherwise all of them together must.
#[must_use]
pub fn progress(trace: &Trace, at_least: u64) -> Check {
    let mut tally = Tally::new("P3", "no progress counters");
    if trace.injections.len() < 2 {
        tally.lacks("fewer than two injections to advance between");
        return tally.finish();
    }
    let advanced = |p: &ThreadProgress| p.at_last_injection.saturating_sub(p.at_first_injection);
    let alone = u32::try_from(trace.progress.len()).is_ok_and(|n| n <= trace.vcpus);
    if alone {
        for p in &trace.progress {
            judge_progress(
                &mut tally,
                &format!("thread {}", p.thread),
                advanced(p),
                at_least,
            );
        }
    } else {
        let total = trace
            .progress
            .iter()
            .map(advanced)
            .fold(0, u64::saturating_add);
        judge_progress(&mut tally, "the workload", total, at_least);
    }
    tally.finish()
}

fn judge_progress(tally: &mut Tally, who: &str, advanced: u64, at_least: u64) {
    if advanced >= at_least {
        return tally.holds();
    }
    let message = format!(
        "{who} advanced by {advanced} from the first injection to the last, not by {at_least}"
    );
    tally.violated(message, [], None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::{
        Kit, holds, kernel, not_exercised, undecided, user, violations,
    };

    const C: u64 = 3 << 32 | 1;
    const D: u64 = 5 << 32 | 1;
    const RIP: u64 = 0xffff_ffff_8100_1234;

    #[test]
    fn unwinds_with_user_code_between_hold() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1004));
        kit.deferred(0, 1001, C, &[0x1004]);
        kit.inject(0, 1001, D, user(0x1008));
        kit.deferred(0, 1001, D, &[0x1008]);
        assert_eq!(holds("P3", &kit).0, 1);
    }

    #[test]
    fn two_unwinds_of_one_entry_do_not() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, kernel(RIP).iteration(0, 1));
        kit.inject(0, 1001, D, kernel(RIP).iteration(0, 1));
        let a = kit.deferred(0, 1001, C, &[0x40]);
        let b = kit.deferred(0, 1001, D, &[0x40]);
        assert_eq!(violations("P3", &kit)[0].events, [a, b]);
    }

    #[test]
    fn unwinds_with_nothing_known_between_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.nmi(0, 1001, D);
        kit.deferred(0, 1001, D, &[0x40]);
        not_exercised("P3", &kit);
    }

    #[test]
    fn stated_progress() {
        let mut kit = Kit::new(2);
        assert!(matches!(
            progress(&kit.trace(), 1),
            Check::NotExercised { .. }
        ));
        kit.inject(0, 1001, C, user(0x1004));
        kit.inject(0, 1001, D, user(0x1008));
        assert!(matches!(
            progress(&kit.trace(), 1),
            Check::NotExercised { .. }
        ));
        kit.progress(0, 10, 20, 30);
        kit.progress(1, 10, 15, 30);
        let evidence = |check| match check {
            Check::Holds { evidence, .. } => evidence,
            _ => 0,
        };
        assert_eq!(evidence(progress(&kit.trace(), 5)), 2);
        assert!(matches!(progress(&kit.trace(), 6), Check::Violated(v) if v.len() == 1));
        // A third thread: they share CPUs, so only the total counts.
        kit.progress(2, 10, 10, 10);
        assert_eq!(evidence(progress(&kit.trace(), 15)), 1);
        assert!(matches!(progress(&kit.trace(), 16), Check::Violated(_)));
    }

    /// A kernel that answers twice before the user code, and once behind it, shows these.
    #[test]
    fn a_lost_unwind_may_be_between_two_others() {
        let pair = |loses: bool| {
            let mut kit = Kit::new(1);
            kit.nmi(0, 1001, C);
            kit.deferred(0, 1001, C, &[0x1004]);
            if loses {
                kit.lost(0, 1);
            }
            for _ in 0..2 {
                kit.sys_enter(0, 1001);
                kit.sys_exit(0, 1001);
            }
            kit.nmi(0, 1001, D);
            kit.deferred(0, 1001, D, &[0x1008]);
            kit
        };
        assert_eq!(holds("P3", &pair(false)).0, 1);
        assert_eq!(undecided("P3", &pair(true)), 1);
    }

    /// A kernel that answers an entry late shows these, and no user code between its answers.
    #[test]
    fn user_code_between_the_requests_need_not_be_between_the_answers() {
        let mut kit = Kit::new(1);
        for cookie in [C, D] {
            kit.sys_enter(0, 1001);
            kit.nmi(0, 1001, cookie);
            kit.sys_exit(0, 1001);
        }
        kit.deferred(0, 1001, C, &[0x40]);
        kit.deferred(0, 1001, D, &[0x40]);
        assert_eq!(undecided("P3", &kit), 1);

        // The first is answered in its entry, or behind its exit work.
        let in_iterations = |late: bool| {
            let mut kit = Kit::new(1);
            kit.witness();
            kit.inject(0, 1001, C, kernel(RIP).iteration(0, 1));
            if !late {
                kit.deferred(0, 1001, C, &[0x40]);
            }
            for _ in 0..2 {
                kit.returns(0, 1001);
            }
            kit.inject(0, 1001, D, kernel(RIP).iteration(0, 2));
            if late {
                kit.deferred(0, 1001, C, &[0x40]);
            }
            kit.deferred(0, 1001, D, &[0x40]);
            kit
        };
        assert_eq!(holds("P3", &in_iterations(false)).0, 1);
        assert_eq!(undecided("P3", &in_iterations(true)), 1);
    }
}
