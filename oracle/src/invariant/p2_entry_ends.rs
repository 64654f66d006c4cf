//! P2: an entry ends, however many requests are made in it.

use super::facts::Facts;
use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// P2. A workload thread that was interrupted in the kernel gets back to user mode: its progress
/// counter moves on between the first injection and the end of the trial. Requests at *every*
/// instruction of the path are a sweep's; this is what each of its trials is judged by.
///
/// A thread that writes its exit record has left its last entry too, and is not held against
/// P2 if its counter stands still. Threads that announce no tid cannot be told from each other.
#[derive(Debug)]
pub struct EntryEnds;

impl Invariant for EntryEnds {
    fn id(&self) -> &'static str {
        "P2"
    }

    fn title(&self) -> &'static str {
        "a thread interrupted in the kernel gets back to user mode"
    }

    fn check(&self, trace: &Trace) -> Check {
        let facts = Facts::new(trace);
        let mut verdict = Verdict::new(self.id());
        for thread in trace.threads.iter().filter(|t| t.tid != 0) {
            let progress = trace.progress.iter().find(|p| p.thread == thread.thread);
            let Some(progress) = progress else { continue };
            let in_kernel = |r: &&super::facts::Request<'_>| {
                r.event.tid == Some(thread.tid)
                    && facts.injection(r.event).is_some_and(|i| i.cpl == 0)
            };
            let Some(last) = facts.requests.iter().rev().find(in_kernel) else {
                continue;
            };
            if progress.at_end > progress.at_first_injection {
                verdict.holds();
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
            verdict.violated(message, [last.event.index], instruction);
        }
        lab::judge(trace, &mut verdict, lab::matching::ends);
        let nothing = format!(
            "no workload thread with a known NMI in the kernel and a progress counter ({})",
            facts.matching.why_none(trace)
        );
        verdict.finish(&nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, kernel, not_exercised, user, violations};
    use super::*;

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
        assert_eq!(holds(&EntryEnds, &kit).0, 1);
    }

    #[test]
    fn one_that_stands_does_not() {
        let mut kit = hit();
        kit.progress(0, 5, 5, 5);
        assert_eq!(violations(&EntryEnds, &kit)[0].instruction, Some(RIP));
    }

    #[test]
    fn a_thread_that_exited_or_was_hit_in_user_mode_does_not_exercise_it() {
        let mut kit = hit();
        kit.progress(0, 5, 5, 5);
        kit.exit(0, 1001);
        not_exercised(&EntryEnds, &kit);

        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.inject(0, 1001, C, user(0x1004));
        kit.progress(0, 5, 5, 5);
        not_exercised(&EntryEnds, &kit);
    }
}
