//! P2: an entry ends, however many requests are made in it.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts, Relation, Request};

/// P2. A workload thread that was interrupted in the kernel gets back to user mode. A sweep makes
/// requests at *every* instruction of the path; each of its trials is judged by this.
///
/// Evidence is that the thread left the entry of its last such request: the witness noted a return
/// after it, the thread's last record is proved to be of another entry ([`Relation::Different`]), or
/// its progress counter moved after the last injection. A thread that hangs in an entry shows none
/// of these after the request that was made there. If the counter has not moved since the first
/// injection either, that is a violation; otherwise it is undecided, because the thread may have
/// ended its work.
///
/// A thread that writes its exit record has left its last entry too, so a counter that stands still
/// is not held against it. Threads that announce no tid cannot be told apart.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let in_kernel = |r: &&Request<'_>| {
        facts
            .injection(r.event)
            .is_some_and(|injection| injection.cpl == 0)
    };
    let of_tids = facts.requests.iter().filter(in_kernel);
    // The last one of each tid stays.
    let last_of: BTreeMap<Option<u32>, &Request<'_>> = of_tids
        .map(|request| (request.event.tid, request))
        .collect();
    for thread in trace.threads.iter().filter(|t| t.tid != 0) {
        let Some(last) = last_of.get(&Some(thread.tid)).copied() else {
            continue;
        };
        let progress = trace.progress.iter().find(|p| p.thread == thread.thread);
        if left(facts, last) || progress.is_some_and(|it| it.at_end > it.at_last_injection) {
            tally.holds();
            continue;
        }
        let exited = last.task.is_some_and(|it| facts.tasks.exit(it).is_some());
        let Some(progress) = progress.filter(|_| !exited) else {
            continue;
        };
        if progress.at_end > progress.at_first_injection {
            tally.undecided("nothing shows what became of the thread after the last injection");
            continue;
        }
        let message = format!(
            "thread {} (tid {}) stood at {} from the first injection to the end",
            thread.thread, thread.tid, progress.at_end
        );
        let instruction = facts.instruction(last.event);
        tally.violated(message, [last.event.index], instruction);
    }
}

/// Whether a task is proved to have left the entry of a request.
fn left(facts: &Facts<'_>, request: &Request<'_>) -> bool {
    let last = request
        .task
        .and_then(|task| facts.records.get(&task)?.last());
    let elsewhere = |last| matches!(facts.relation(request.event, last), Relation::Different(_));
    facts.returns.is_followed(request.event) || last.is_some_and(|last| elsewhere(last))
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, check, holds, kernel, not_exercised, user, violations};

    const C: u64 = 3 << 32 | 1;
    const RIP: u64 = 0xffff_ffff_8100_1234;

    fn hit() -> Kit {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.inject(0, 1001, C, kernel(RIP));
        kit
    }

    #[test]
    fn a_counter_that_moves_holds() {
        let mut kit = hit();
        kit.progress(0, 5, 5, 6);
        assert_eq!(holds("P2", &kit).0, 1);
    }

    #[test]
    fn one_that_moved_before_the_last_injection_only_is_no_evidence() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.witness();
        kit.inject(0, 1001, C, kernel(RIP));
        kit.progress(0, 5, 7, 7);
        let check = check("P2", &kit.trace());
        assert!(
            matches!(check, Check::NotExercised { undecided: 1, .. }),
            "{check:?}"
        );
        kit.returns(0, 1001);
        assert_eq!(holds("P2", &kit).0, 1);
    }

    #[test]
    fn one_that_stands_does_not() {
        let mut kit = hit();
        kit.progress(0, 5, 5, 5);
        assert_eq!(violations("P2", &kit)[0].instruction, Some(RIP));
    }

    #[test]
    fn a_thread_that_exited_or_was_hit_in_user_mode_does_not_exercise_it() {
        let mut kit = hit();
        kit.progress(0, 5, 5, 5);
        kit.exit(0, 1001);
        not_exercised("P2", &kit);

        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.inject(0, 1001, C, user(0x1004));
        kit.progress(0, 5, 5, 5);
        not_exercised("P2", &kit);
    }
}
