//! X1: an entry that ends in exit is answered before the mm goes, with a real stack.

use super::facts::{Facts, before};
use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// X1. What is still pending when a task exits is answered in `do_exit`, by
/// `unwind_deferred_task_exit` right before `exit_mm` (kernel/exit.c, 7.2; commit b3b9cb11aa03):
/// after the exit record, which `perf_event_exit_task` writes just before. Answered later, by
/// `exit_task_work`, there is no mm to walk, and the D is empty.
///
/// Judged are the D behind the exit record of their task: each must have at least the user
/// instruction pointer; and the last cookie of a task that exited: it must have a D, unless data
/// was lost (XA). Evidence is the first kind only: an earlier D may be of an earlier entry.
#[derive(Debug)]
pub struct ExitAnswered;

impl Invariant for ExitAnswered {
    fn id(&self) -> &'static str {
        "X1"
    }

    fn title(&self) -> &'static str {
        "an entry that ends in exit is answered, with a real stack"
    }

    fn check(&self, trace: &Trace) -> Check {
        let facts = Facts::new(trace);
        let mut verdict = Verdict::new(self.id());
        for answer in &facts.answers {
            let exit = answer.task.and_then(|task| facts.tasks.exit(task));
            let Some(exit) = exit.and_then(|at| trace.events.get(at)) else {
                continue;
            };
            if !before(exit, answer.event) {
                continue;
            }
            if !answer.chain.ips.is_empty() {
                verdict.holds();
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
            verdict.violated(message, events, instruction);
        }
        unanswered(&facts, &mut verdict);
        lab::judge(trace, &mut verdict, lab::life::exit_answered);
        verdict.finish("no record 22 behind the exit record of its task")
    }
}

/// The last request of every task that exited.
fn unanswered(facts: &Facts<'_>, verdict: &mut Verdict) {
    let mut last = std::collections::BTreeMap::new();
    for request in &facts.requests {
        if let Some(task) = request.task {
            last.insert(task, request);
        }
    }
    for (task, request) in last {
        let answered = facts.exchanges.get(&request.cookie);
        let answered = answered.is_some_and(|x| !x.answers.is_empty());
        let Some(exit) = facts.tasks.exit(task) else {
            continue;
        };
        if answered || request.cookie == 0 {
            continue;
        }
        if let Some(why) = facts.unanswered(request) {
            verdict.excuse(format!("cookie {:#x}: {why}", request.cookie));
            continue;
        }
        let message = format!(
            "task {} exited without an answer to its last cookie {:#x}",
            task.tid, request.cookie
        );
        let instruction = facts.instruction(request.event);
        verdict.violated(message, [request.event.index, exit], instruction);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, not_exercised, violations};
    use super::*;

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn a_stack_behind_the_exit_record_holds() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.exit(0, 1001);
        kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(holds(&ExitAnswered, &kit).0, 1);
    }

    #[test]
    fn none_or_an_empty_one_does_not() {
        let mut kit = Kit::new(1);
        let asked = kit.nmi(0, 1001, C);
        let exit = kit.exit(0, 1001);
        assert_eq!(violations(&ExitAnswered, &kit)[0].events, [asked, exit]);
        let empty = kit.deferred(0, 1001, C, &[]);
        assert_eq!(
            violations(&ExitAnswered, &kit)[0].events,
            [asked, exit, empty]
        );
    }

    #[test]
    fn an_exit_with_nothing_pending_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.exit(0, 1001);
        not_exercised(&ExitAnswered, &kit);
    }
}
