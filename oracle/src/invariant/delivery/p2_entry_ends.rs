//! P2: an entry ends, however many requests are made in it.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Request};

/// P2. A workload thread that was interrupted in the kernel gets back to user mode: its progress
/// counter moves between the first injection and the end of the trial. A sweep makes requests at
/// *every* instruction of the path; each of its trials is judged by this.
///
/// A thread that writes its exit record has left its last entry too, so a counter that stands still
/// is not held against it. Threads that announce no tid cannot be told apart.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    for thread in trace.threads.iter().filter(|t| t.tid != 0) {
        let progress = trace.progress.iter().find(|p| p.thread == thread.thread);
        let Some(progress) = progress else { continue };
        let in_kernel = |r: &&Request<'_>| {
            r.event.tid == Some(thread.tid) && facts.injection(r.event).is_some_and(|i| i.cpl == 0)
        };
        let Some(last) = facts.requests.iter().rev().find(in_kernel) else {
            continue;
        };
        if progress.at_end > progress.at_first_injection {
            tally.holds();
            continue;
        }
        if last
            .task
            .is_some_and(|task| facts.tasks.exit(task).is_some())
        {
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

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, kernel, not_exercised, user, violations};

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
