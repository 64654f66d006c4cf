//! C5: a cookie names the CPU on which it was born.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, before};

/// C5. The low word less one is the CPU of the first S(c): `get_cookie` takes it from
/// `smp_processor_id()` with interrupts off (kernel/unwind/deferred.c, 7.2), and perf writes the
/// sample on that CPU with preemption off.
///
/// The first S(c) in the trace is the true first only if no sample was lost before it: perf makes
/// the request while it prepares the sample, before it finds space. A loss before the first S(c)
/// excuses (XA). Evidence are births on several CPUs: of one CPU alone a kernel that always names that
/// one shows the same, so those are undecided. Where the clocks of two CPUs do not tell which S(c) was first, nothing is judged.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    let mut right = Vec::new();
    for (cookie, exchange) in facts
        .cookies()
        .filter(|&(cookie, _)| !evidence.given(cookie))
    {
        let Some(first) = exchange.birth() else {
            continue;
        };
        let cpu = u64::from(first.event.cpu);
        if (cookie & u64::from(u32::MAX)) == cpu + 1 {
            right.push(cpu);
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
            tally.excuse(format!("cookie {cookie:#x}: {why}"));
            continue;
        }
        if let Some(why) = facts.others_may_ask() {
            tally.undecided(why);
            continue;
        }
        let message = format!("cookie {cookie:#x} was first requested on CPU {cpu}");
        let instruction = facts.instruction(first.event);
        tally.violated(message, [first.event.index], instruction);
    }
    tell_apart(tally, &right);
}

/// Tells of the births that are right, by the CPU of each.
pub fn tell_apart(tally: &mut Tally, cpus: &[u64]) {
    if cpus.iter().any(|cpu| Some(cpu) != cpus.first()) {
        return tally.holds_on(cpus.len());
    }
    for _ in cpus {
        tally.undecided("all cookies were born on one CPU");
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, undecided, violations};

    #[test]
    fn born_here_and_used_there_holds() {
        let mut kit = Kit::new(2);
        kit.nmi(1, 1001, 3 << 32 | 2);
        kit.nmi(0, 1001, 3 << 32 | 2);
        assert_eq!(undecided("C5", &kit), 1, "one that always names CPU 1");
        kit.nmi(0, 1002, 3 << 32 | 1);
        assert_eq!(holds("C5", &kit).0, 2);
    }

    #[test]
    fn born_elsewhere_does_not() {
        let mut kit = Kit::new(2);
        let at = kit.nmi(1, 1001, 3 << 32 | 1);
        assert_eq!(violations("C5", &kit)[0].events, [at]);
    }

    #[test]
    fn a_lost_sample_may_have_been_the_first() {
        let mut kit = Kit::new(2);
        kit.lost(0, 1);
        kit.nmi(1, 1001, 3 << 32 | 1);
        assert!(not_exercised("C5", &kit).contains("XA"));
    }

    #[test]
    fn a_trace_without_cookies_does_not_exercise_it() {
        not_exercised("C5", &Kit::new(1));
    }

    /// The cookie was asked for since the task's last request with another one.
    #[test]
    fn only_a_loss_since_the_request_before_is_an_excuse() {
        let judged = |lost_at: usize| {
            let mut kit = Kit::new(2);
            for at in 0..2 {
                if lost_at == at {
                    kit.lost(1, 1);
                }
                match at {
                    0 => kit.nmi(0, 1001, 3 << 32 | 1),
                    _ => kit.sys_enter(0, 1001),
                };
            }
            kit.nmi(0, 1001, 5 << 32 | 2);
            kit
        };
        violations("C5", &judged(0));
        assert!(not_exercised("C5", &judged(1)).contains("XA"));
    }
}
