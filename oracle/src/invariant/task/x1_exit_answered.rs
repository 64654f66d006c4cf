//! X1: an entry that ends in exit is answered before the mm goes, with a real stack.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts, before};

/// X1. When a task exits, `unwind_deferred_task_exit` in `do_exit` answers what is still pending,
/// right before `exit_mm` (kernel/exit.c, 7.2; commit b3b9cb11aa03). That is after the exit record,
/// which `perf_event_exit_task` writes just before. If `exit_task_work` answered it later, there
/// would be no mm to walk, and the D would be empty.
///
/// Judges the D after the exit record of their task: each must have at least the user instruction
/// pointer. Judges the last cookie of a task that exited too: it must have a D, unless data was
/// lost (XA). Only the first kind is evidence: an earlier D may be of an earlier entry.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for answer in &facts.answers {
        let Some(exit) = answer.task.and_then(|task| facts.exit(task)) else {
            continue;
        };
        if !before(exit, answer.event) {
            continue;
        }
        if !answer.chain.ips.is_empty() {
            tally.holds();
            continue;
        }
        let message = format!(
            "the record 22 of cookie {:#x} at the exit of task {} is empty",
            answer.chain.cookie,
            answer.event.tid.unwrap_or_default()
        );
        let asked = facts.exchanges.get(&answer.chain.cookie);
        let asked = asked.and_then(|exchange| exchange.requests.last());
        let events = [exit.index, answer.event.index];
        let events = events.into_iter().chain(asked.map(|r| r.event.index));
        let instruction = asked.and_then(|r| facts.instruction(r.event));
        tally.violated(message, events, instruction);
    }
    unanswered(facts, tally);
}

/// The last request of every task that exited.
fn unanswered(facts: &Facts<'_>, tally: &mut Tally) {
    for (task, requests) in facts.by_task() {
        let Some(request) = requests.last() else {
            continue;
        };
        let answered = facts.exchanges.get(&request.cookie);
        let answered = answered.is_some_and(|x| !x.answers.is_empty());
        let Some(exit) = facts.tasks.exit(task) else {
            continue;
        };
        if answered || request.cookie == 0 {
            continue;
        }
        if let Some(why) = facts.unanswered(request) {
            tally.excuse(format!("cookie {:#x}: {why}", request.cookie));
            continue;
        }
        let message = format!(
            "task {} exited without an answer to its last cookie {:#x}",
            task.tid, request.cookie
        );
        let instruction = facts.instruction(request.event);
        tally.violated(message, [request.event.index, exit], instruction);
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn a_stack_behind_the_exit_record_holds() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.exit(0, 1001);
        kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(holds("X1", &kit).0, 1);
    }

    #[test]
    fn none_or_an_empty_one_does_not() {
        let mut kit = Kit::new(1);
        let asked = kit.nmi(0, 1001, C);
        let exit = kit.exit(0, 1001);
        assert_eq!(violations("X1", &kit)[0].events, [asked, exit]);
        let empty = kit.deferred(0, 1001, C, &[]);
        assert_eq!(violations("X1", &kit)[0].events, [asked, exit, empty]);
    }

    #[test]
    fn an_exit_with_nothing_pending_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.exit(0, 1001);
        not_exercised("X1", &kit);
    }
}
