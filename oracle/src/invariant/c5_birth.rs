//! C5: a cookie names the CPU on which it was born.

use super::facts::{Facts, before};
use super::verdict::Verdict;
use super::{Check, Invariant, lab};
use crate::trace::Trace;

/// C5. The low word less one is the CPU of the first S(c): `get_cookie` writes
/// `smp_processor_id() + 1` with interrupts off (kernel/unwind/deferred.c, 7.2), and perf writes
/// the sample on that CPU with preemption off.
///
/// The first S(c) in the trace is the first there was only if no sample was lost before it: the
/// request is made while the sample is prepared, before space for it is found. A loss before it
/// excuses (XA). Where two CPUs' clocks do not tell which S(c) was first, nothing is judged.
#[derive(Debug)]
pub struct Birth;

impl Invariant for Birth {
    fn id(&self) -> &'static str {
        "C5"
    }

    fn title(&self) -> &'static str {
        "a cookie names the CPU of its first request"
    }

    fn check(&self, trace: &Trace) -> Check {
        let facts = Facts::new(trace);
        let mut verdict = Verdict::new(self.id());
        let given = lab::cookies::given(trace);
        for (cookie, exchange) in facts
            .cookies()
            .filter(|(cookie, _)| !given.contains(cookie))
        {
            let Some(first) = exchange.birth() else {
                continue;
            };
            let cpu = u64::from(first.event.cpu);
            if (cookie & u64::from(u32::MAX)) == cpu + 1 {
                verdict.holds();
                continue;
            }
            // A request before the first one can only have been made since the task's previous
            // record with another cookie.
            let since = first.task.and_then(|task| {
                let earlier = facts.records.get(&task)?;
                let at = earlier.partition_point(|e| e.index < first.event.index);
                let mut earlier = earlier.get(..at)?.iter().rev();
                earlier
                    .find(|e| e.deferred_sample().is_some() && before(e, first.event))?
                    .time
            });
            if let Some(why) = facts.losses.between(since, first.event.time) {
                verdict.excuse(format!("cookie {cookie:#x}: {why}"));
                continue;
            }
            let message = format!("cookie {cookie:#x} was first requested on CPU {cpu}");
            let instruction = facts.instruction(first.event);
            verdict.violated(message, [first.event.index], instruction);
        }
        lab::judge(trace, &mut verdict, lab::cookies::birth);
        verdict.finish("no cookies")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, not_exercised, violations};
    use super::*;

    #[test]
    fn born_here_and_used_there_holds() {
        let mut kit = Kit::new(2);
        kit.nmi(1, 1001, 3 << 32 | 2);
        kit.nmi(0, 1001, 3 << 32 | 2);
        assert_eq!(holds(&Birth, &kit).0, 1);
    }

    #[test]
    fn born_elsewhere_does_not() {
        let mut kit = Kit::new(2);
        let at = kit.nmi(1, 1001, 3 << 32 | 1);
        assert_eq!(violations(&Birth, &kit)[0].events, [at]);
    }

    #[test]
    fn a_lost_sample_may_have_been_the_first() {
        let mut kit = Kit::new(2);
        kit.lost(0, 1);
        kit.nmi(1, 1001, 3 << 32 | 1);
        assert!(not_exercised(&Birth, &kit).contains("XA"));
    }

    #[test]
    fn a_trace_without_cookies_does_not_exercise_it() {
        not_exercised(&Birth, &Kit::new(1));
    }
}
