//! P5: an unwind that blocks on a page blocks only that task.

use std::collections::BTreeSet;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts};
use crate::trace::recording::Block;
use crate::trace::{Event, Trace};

/// P5. While the walk of one task waits for a page (`get_user` in `unwind_user_next_common`,
/// kernel/unwind/user.c, may sleep: the deferred walk holds no lock but SRCU's read side), every
/// other thread of the workload makes progress. Where another task asks in several entries, by its cookies, at least one is
/// answered. The last one of a task may still last.
///
/// Evidence are waits that userfaultfd showed to have begun between a thread's two marks, where its
/// own code does not touch the stack, and that the host ended: the progress of each other thread, and each answer to
/// another task, between begin and end. Where the release has a delay, progress counts from the end of that
/// delay: a thread that is held up may have made progress before it asked.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let ended = |it: &&Block| it.in_kernel && !it.records_after.is_empty();
    for block in trace.blocks.iter().filter(ended) {
        check_progress(trace, block, tally);
        check_answers(facts, block, tally);
    }
}

fn check_progress(trace: &Trace, block: &Block, tally: &mut Tally) {
    let counters = block.progress_before.iter().zip(&block.progress_after);
    for (thread, (before, after)) in trace.threads.iter().zip(counters) {
        let thread = thread.thread;
        let made = after.saturating_sub(*before);
        match (thread == block.thread, made) {
            (false, 0) => {
                let message = format!(
                    "thread {thread} made no progress while the walk of thread {} waited",
                    block.thread
                );
                tally.violated(message, [], None);
            }
            (false, _) => tally.holds(),
            (true, 0) => {}
            (true, _) => {
                let message = format!(
                    "thread {thread} made progress although its walk was said to wait for a page"
                );
                tally.violated(message, [], None);
            }
        }
    }
}

fn check_answers(facts: &Facts<'_>, block: &Block, tally: &mut Tally) {
    let blocked = { facts.trace.threads.iter() }
        .find(|it| it.thread == block.thread)
        .map(|it| it.tid);
    let meanwhile = |event: &Event| {
        let ring = facts
            .trace
            .rings
            .iter()
            .position(|it| it.ring == event.ring);
        let span =
            ring.and_then(|at| Some(*block.records_before.get(at)?..*block.records_after.get(at)?));
        span.is_some_and(|span| span.contains(&event.position)) && event.tid != blocked
    };
    for (task, requests) in facts.by_task() {
        let asked = requests.iter().filter(|it| meanwhile(it.event));
        let (asked, cookies): (Vec<usize>, BTreeSet<u64>) =
            asked.map(|it| (it.event.index, it.cookie)).unzip();
        if cookies.len() < 2 || { facts.answers_of(task).iter() }.any(|it| meanwhile(it.event)) {
            continue;
        }
        if facts.losses.between(None, None).is_some() {
            tally.undecided("the answers of other tasks may be lost");
            continue;
        }
        let message = format!(
            "{} requests of task {} in several entries, and none was answered while the walk of thread {} waited",
            asked.len(),
            task.tid,
            block.thread
        );
        tally.violated(message, asked, None);
    }
    let answers = { facts.answers.iter() }.filter(|it| meanwhile(it.event));
    tally.holds_on(answers.count());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit::Kit;
    use crate::invariant::testkit::check;
    use crate::trace::EventKind;
    use crate::trace::model::Sample;

    const C: u64 = 3 << 32 | 1;

    /// Two threads; the walk of the first waits while the second makes `made` iterations, asks
    /// twice, and is answered so often.
    fn trace(made: u64, answered: usize) -> Trace {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.thread(1, 1002);
        kit.nmi(0, 1001, C);
        for n in 0..2 {
            kit.nmi(0, 1002, C + ((2 + 2 * n) << 32));
        }
        for n in 0..answered {
            kit.deferred(0, 1002, C + ((2 + 2 * (n as u64)) << 32), &[0x40]);
        }
        let mut trace = kit.trace();
        trace.blocks.push(Block {
            thread: 0,
            in_kernel: true,
            progress_before: vec![5, 5],
            progress_after: vec![5, 5 + made],
            records_before: vec![1],
            records_after: vec![99],
        });
        trace
    }

    #[test]
    fn the_others_go_on() {
        let check = check("P5", &trace(3, 2));
        assert!(
            matches!(check, Check::Holds { evidence: 3, .. }),
            "{check:?}"
        );
    }

    #[test]
    fn one_that_stands_still_or_is_not_answered_does_not_hold() {
        for (trace, says) in [
            (trace(0, 2), "thread 1 made no progress"),
            (trace(3, 0), "2 requests of task 1002 in several entries"),
        ] {
            let Check::Violated(found) = check("P5", &trace) else {
                panic!("not noticed: {says}");
            };
            assert!(found[0].message.starts_with(says), "{}", found[0].message);
        }
    }

    #[test]
    fn a_wait_of_user_mode_or_without_end_does_not_exercise_it() {
        let mut user = trace(0, 0);
        user.blocks[0].in_kernel = false;
        let mut endless = trace(0, 0);
        endless.blocks[0].records_after.clear();
        for trace in [user, endless] {
            let check = check("P5", &trace);
            assert!(matches!(check, Check::NotExercised { .. }));
        }
    }

    #[test]
    fn answers_that_may_be_lost_decide_nothing() {
        let mut trace = trace(3, 0);
        let mut kit = Kit::new(1);
        kit.lost(0, 1);
        let mut lost = kit.trace().events;
        lost[0].index = trace.events.len();
        trace.events.append(&mut lost);
        let found = check("P5", &trace);
        assert!(
            matches!(
                found,
                Check::Holds {
                    evidence: 1,
                    undecided: 1,
                    ..
                }
            ),
            "{found:?}"
        );
    }

    /// Each is of an entry that may still last.
    #[test]
    fn requests_of_two_tasks_need_no_answer_yet() {
        let mut trace = trace(3, 0);
        let last = trace.events.last_mut().unwrap();
        last.tid = Some(1003);
        let found = check("P5", &trace);
        assert!(
            matches!(found, Check::Holds { evidence: 1, .. }),
            "{found:?}"
        );
    }

    /// Both are of an entry that may still last.
    #[test]
    fn two_requests_with_one_cookie_need_no_answer_yet() {
        let mut trace = trace(3, 0);
        let last = trace.events.last_mut().unwrap();
        let EventKind::Sample(Sample {
            chain: Some(chain), ..
        }) = &mut last.kind
        else {
            panic!("a sample");
        };
        *chain.last_mut().unwrap() = C + (2 << 32);
        let found = check("P5", &trace);
        assert!(
            matches!(found, Check::Holds { evidence: 1, .. }),
            "{found:?}"
        );
    }
}
