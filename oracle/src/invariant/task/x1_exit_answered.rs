//! X1: an entry that ends in exit is answered before the mm goes, with a real stack.

use crate::invariant::Tally;
use crate::invariant::evidence::{Answer, Evidence, Exchange, Request, before, flaw_of};

/// Functions that do not return: who is in one leaves no more for user mode (kernel/exit.c, 7.2).
const NO_RETURN: [&str; 6] = [
    "do_exit",
    "do_group_exit",
    "__x64_sys_exit",
    "__x64_sys_exit_group",
    "__ia32_sys_exit",
    "__ia32_sys_exit_group",
];

/// X1. When a task exits, `unwind_deferred_task_exit` in `do_exit` answers what is still pending,
/// before `exit_mm` (kernel/exit.c, 7.2; commit b3b9cb11aa03). If `exit_task_work` answered it
/// later, there would be no mm to walk, and the D would be empty.
///
/// Judges the D of an entry that ends in exit: one after the exit record of its task, and one to an
/// S whose kernel chain is in a function that does not return. (7.2 answers after the exit record,
/// which `perf_event_exit_task` writes just before; a kernel may answer before it.) Each must have
/// at least the user instruction pointer. Judges the last cookie of a task that exited too: it must
/// have a D, unless data was lost (XA).
///
/// An instance of tracefs that is cancelled and registered anew is another client each time. Where its last request may have been
/// made too late for an answer, as of M1, that is undecided.
///
/// Evidence is such a D that shows a whole stack which is known by construction: a walk without the
/// task's mm cannot show it. Other frames may be made up, and are undecided. Any other D before the
/// exit record is no evidence: it may be of an earlier entry.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for answer in &facts.answers {
        let Some(exit) = answer.task.and_then(|task| facts.exit(task)) else {
            continue;
        };
        if facts.behind_exit(answer.event).is_none() && !asked_in_exit(evidence, answer) {
            continue;
        }
        if let Some(&frame0) = answer.chain.ips.first() {
            let stacks = facts.stacks_at_leaf(answer);
            let mut stacks = stacks.into_iter();
            if stacks.any(|stack| flaw_of(answer.chain, stack, frame0).is_none()) {
                tally.holds();
            } else {
                tally.undecided("a stack at exit that is not known by construction");
            }
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
    unanswered(evidence, tally);
}

/// Whether a request that this answers was made in a function that does not return.
fn asked_in_exit(evidence: &Evidence<'_>, answer: &Answer<'_>) -> bool {
    let exchange = evidence.facts().exchanges.get(&answer.chain.cookie);
    let requests = exchange.map_or(&[][..], |exchange| exchange.requests.as_slice());
    requests
        .iter()
        .filter(|request| request.task == answer.task && before(request.event, answer.event))
        .flat_map(|request| request.event.kernel_chain())
        .filter_map(|&address| evidence.place(address))
        .any(|(function, _)| NO_RETURN.contains(&function.as_str()))
}

/// The last request of every task that exited.
fn unanswered(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for (task, requests) in facts.by_task() {
        let Some(request) = requests.last() else {
            continue;
        };
        let exchange = facts.exchanges.get(&request.cookie);
        let answered = exchange.is_some_and(|it| is_answered(evidence, it, request));
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
        if let Some(why) = facts.answer_may_be_elsewhere(request) {
            tally.undecided(why);
            continue;
        }
        if evidence.may_be_cancelled(request) {
            tally.undecided(Evidence::MAY_BE_CANCELLED);
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

/// Whether the client of a request has an answer.
fn is_answered<'t>(
    evidence: &Evidence<'t>,
    exchange: &Exchange<'t>,
    request: &Request<'t>,
) -> bool {
    let parts = evidence.by_registration(exchange);
    let is_it = |it: &Request<'t>| it.event.index == request.event.index;
    { parts.iter() }.any(|part| !part.answers.is_empty() && part.requests.iter().any(is_it))
}

#[cfg(test)]
mod tests {
    use super::Evidence;
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};
    use crate::invariant::{Check, INVARIANTS};

    const C: u64 = 3 << 32 | 1;

    fn exiting(frames: &[u64]) -> Kit {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.nmi(0, 1001, C);
        kit.exit(0, 1001);
        kit.deferred(0, 1001, C, frames);
        kit
    }

    #[test]
    fn the_whole_stack_behind_the_exit_record_holds() {
        let kit = exiting(&[0x1080, 0x2000, 0x2000, 0x3000]);
        assert_eq!(holds("X1", &kit).0, 1);
    }

    /// A kernel that walks something else than the stack shows this too.
    #[test]
    fn any_frame_does_not_exercise_it() {
        for frames in [&[0x40][..], &[0x1080], &[0x1080, 0x2000, 0x2000, 0x2000]] {
            assert!(not_exercised("X1", &exiting(frames)).contains("1 undecided"));
        }
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

    /// A kernel that answers before the exit record: [`crate::invariant::testkit`] asks at
    /// `SOMEWHERE`.
    #[test]
    fn an_answer_before_the_exit_record_holds_if_it_was_asked_for_in_exit() {
        let check = |frames: &[u64], function: &'static str| {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            kit.nmi(0, 1001, C);
            kit.deferred(0, 1001, C, frames);
            kit.exit(0, 1001);
            let trace = kit.trace();
            let resolve = |_: u64| Some((function.to_owned(), 0));
            let row = INVARIANTS.iter().find(|row| row.id == "X1").unwrap();
            row.check(&Evidence::new(&trace).named(&resolve))
        };
        let whole = [0x1080, 0x2000, 0x2000, 0x3000];
        assert!(matches!(
            check(&whole, "do_exit"),
            Check::Holds { evidence: 1, .. }
        ));
        assert!(matches!(check(&[], "do_exit"), Check::Violated(_)));
        assert!(matches!(
            check(&[0x40], "do_exit"),
            Check::NotExercised { undecided: 1, .. }
        ));
        // Of whatever entry.
        assert!(matches!(
            check(&whole, "ksys_read"),
            Check::NotExercised { undecided: 0, .. }
        ));
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
