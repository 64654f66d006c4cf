//! P6: a task that is unwound again and again gets on.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::{Answer, Evidence, Facts};
use crate::trace::Event;
use crate::trace::recording::ThreadProgress;

/// Unwinds of a thread after which user mode must have got on. An iteration of a workload makes
/// [`SYSCALLS_BATCH`] system calls at most, a small part of these; in each, several interrupts may come before the next
/// user instruction.
///
/// [`SYSCALLS_BATCH`]: unwindlab_abi::plan::SYSCALLS_BATCH
const UNWINDS: usize = 256;

/// P6. Over 256 unwinds of a workload thread in a row, user mode retires an instruction. It did, if
/// two of them show different instructions as frame 0, or if a proof of user mode lies between the
/// first and the last (as for C2). It did not, if all of them show one instruction, the thread's
/// progress counter stands still meanwhile (from the first injection to the end, or from the very
/// beginning), and no NMI of ours hit user mode for one of them: a workload does not come to one
/// instruction 256 times within one iteration, except for the counting loop of `spin`.
///
/// Where the witness saw all of the row, it decides instead of the counter: without a return to user
/// mode in the row none of its instructions retired. A return that is noted has no interrupt pending
/// that would come first, so more of them than those of NMIs are proof ([`Facts::separated`]).
///
/// Evidence is such a row with proof that user mode got on: a kernel that makes a task unwind
/// without end shows one instruction and no user mode between. A row without a proof in which the
/// counter moved is undecided: it may have moved before or after.
///
/// This holds of a trial that was cut short too: what is there is enough.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let mut of: BTreeMap<u32, Vec<&Answer<'_>>> = BTreeMap::new();
    for answer in &facts.answers {
        let Some(tid) = answer.event.tid else {
            continue;
        };
        let answers = of.entry(tid).or_default();
        let copy = answers.last().is_some_and(|last| {
            last.event.event != answer.event.event && last.chain.cookie == answer.chain.cookie
        });
        if !copy {
            answers.push(answer);
        }
    }
    for thread in trace.threads.iter().filter(|thread| thread.tid != 0) {
        let answers = of.get(&thread.tid).map_or(&[][..], Vec::as_slice);
        let progress = trace.progress.iter().find(|p| p.thread == thread.thread);
        let from = progress.and_then(|progress| stands_from(facts, progress));
        for row in answers.chunks_exact(UNWINDS) {
            let (Some(first), Some(last)) = (row.first(), row.last()) else {
                continue;
            };
            let ip = first.chain.ips.first();
            if row.iter().any(|answer| answer.chain.ips.first() != ip)
                || facts.separated(first.event, last.event).is_some()
            {
                tally.holds();
            } else if !stands(facts, first, last, from)
                || row.iter().any(|answer| hit_user_mode(facts, answer))
            {
                tally.undecided("nothing shows whether user mode got on");
            } else {
                let message = format!(
                    "thread {} (tid {}) was unwound {UNWINDS} times at {:#x} and never got on",
                    thread.thread,
                    thread.tid,
                    ip.copied().unwrap_or_default()
                );
                tally.violated(message, [first.event.index, last.event.index], None);
                break;
            }
        }
    }
}

/// Whether a thread retired no instruction of user mode between two answers, if no NMI hit it there:
/// the witness saw no return, or, where it does not tell, the counter stands `from` before.
fn stands(facts: &Facts<'_>, first: &Answer<'_>, last: &Answer<'_>, from: Option<usize>) -> bool {
    match [first, last].map(|it| facts.returns.before(it.event)) {
        [Some(before), Some(then)] => before == then,
        _ => from.is_some_and(|from| first.event.index >= from),
    }
}

/// The first event from which on a thread's progress counter stood still to the end.
fn stands_from(facts: &Facts<'_>, progress: &ThreadProgress) -> Option<usize> {
    if progress.at_end == 0 {
        return Some(0);
    }
    let injected = |event: &&Event| facts.injection(event).is_some();
    let first = facts.trace.events.iter().find(injected)?;
    (progress.at_end == progress.at_first_injection).then_some(first.index)
}

fn hit_user_mode(facts: &Facts<'_>, answer: &Answer<'_>) -> bool {
    let exchange = facts.exchanges.get(&answer.chain.cookie);
    let entry = exchange.and_then(|it| facts.entry_ip(it));
    let sample = entry.and_then(|(_, at)| facts.trace.events.get(at));
    sample.is_some_and(|it| facts.user_ip(it).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::{Kit, holds, kernel, not_exercised, user, violations};

    fn cookie(number: usize) -> u64 {
        (2 * number as u64 + 3) << 32 | 1
    }

    fn unwound(times: usize, at_end: u64, ip: impl Fn(usize) -> u64) -> Kit {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.progress(0, 0, at_end, at_end);
        for number in 0..times {
            kit.nmi(0, 1001, cookie(number));
            kit.deferred(0, 1001, cookie(number), &[ip(number)]);
        }
        kit
    }

    #[test]
    fn other_instructions_or_system_calls_between_hold() {
        assert_eq!(
            holds("P6", &unwound(600, 0, |n| 0x1000 + n as u64 % 2)).0,
            2
        );
        let mut kit = unwound(2, 0, |_| 0x1080);
        kit.sys_enter(0, 1001);
        kit.sys_exit(0, 1001);
        for number in 2..UNWINDS {
            kit.sys_enter(0, 1001);
            kit.nmi(0, 1001, cookie(number));
            kit.deferred(0, 1001, cookie(number), &[0x1080]);
        }
        assert_eq!(holds("P6", &kit).0, 1);
    }

    #[test]
    fn one_instruction_without_end_does_not() {
        assert_eq!(violations("P6", &unwound(600, 0, |_| 0x1080)).len(), 1);
        // One cookie.
        let mut kit = unwound(1, 0, |_| 0x1080);
        for _ in 1..UNWINDS {
            kit.deferred(0, 1001, cookie(0), &[0x1080]);
        }
        violations("P6", &kit);
    }

    #[test]
    fn a_counter_that_stands_from_the_first_injection_on_does_not() {
        for (at_first, violated) in [(7, true), (6, false)] {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            kit.progress(0, at_first, 7, 7);
            kit.inject(
                0,
                1001,
                cookie(0),
                kernel(0xffff_ffff_8100_1234).iteration(0, 7),
            );
            for _ in 0..UNWINDS {
                kit.deferred(0, 1001, cookie(0), &[0x1080]);
            }
            if violated {
                violations("P6", &kit);
            } else {
                not_exercised("P6", &kit);
            }
        }
    }

    #[test]
    fn the_witness_decides_where_the_counter_does_not() {
        // The counter moved. No return lies in the row, or one after each answer.
        for (every, expected) in [(usize::MAX, "violated"), (1, "holds")] {
            let mut kit = Kit::new(1);
            kit.witness();
            kit.thread(0, 1001);
            kit.progress(0, 0, 7, 7);
            for number in 0..UNWINDS {
                kit.nmi(0, 1001, cookie(number));
                kit.deferred(0, 1001, cookie(number), &[0x1080]);
                if (number + 1) % every == 0 {
                    kit.returns(0, 1001);
                }
            }
            match expected {
                "holds" => assert_eq!(holds("P6", &kit).0, 1),
                _ => assert_eq!(violations("P6", &kit).len(), 1),
            }
        }
    }

    #[test]
    fn few_unwinds_and_those_that_nothing_decides_do_not_exercise_it() {
        not_exercised("P6", &unwound(UNWINDS - 1, 0, |_| 0x1080));
        not_exercised("P6", &unwound(UNWINDS, 7, |_| 0x1080));
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.progress(0, 0, 0, 0);
        for number in 0..UNWINDS {
            kit.inject(0, 1001, cookie(number), user(0x1010));
            kit.deferred(0, 1001, cookie(number), &[0x1010]);
        }
        not_exercised("P6", &kit);
    }
}
