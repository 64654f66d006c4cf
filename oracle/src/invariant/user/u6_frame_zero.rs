//! U6: frame 0 is always the user instruction pointer.

use std::collections::{BTreeMap, BTreeSet};

use super::registers::registers;
use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Exchange};

/// The vsyscall page, the one part of the kernel half that user mode can execute in.
const VSYSCALL: std::ops::Range<u64> = 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000;

/// U6. Every D has a frame 0, and it is an address at which user mode can be: `unwind_user_start`
/// takes it from the user registers (kernel/unwind/user.c, 7.2). Where the instruction itself is
/// known (an NMI into user mode, or a sample that shows it), frame 0 is that instruction. A D is empty only where the task has
/// no mm any more (X1) or the kernel has no memory for the cache (`unwind_user_faultable`); neither
/// is right.
///
/// Evidence is a D whose frame 0 is the instruction that an NMI into user mode is known to have
/// interrupted, or the instruction pointer among the user registers that a sample of its request
/// holds: perf takes them from the task by other code; or the one to which the witness saw the task return next. Any other user address may be a wrong one,
/// so it is undecided. So is one that differs from those registers or from that return, because a system call may have
/// changed them (`rt_sigreturn`, `execve`); U7 judges that in user mode.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    // Derived once for each cookie, because an endless entry has very many requests and answers.
    let mut sampled: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    let mut is_sampled = |exchange: &Exchange<'_>, cookie, ip| {
        let known = sampled.entry(cookie);
        let ips = known.or_insert_with(|| sampled_in(evidence, exchange));
        ips.contains(&ip)
    };
    for answer in &facts.answers {
        let cookie = answer.chain.cookie;
        let exchange = facts.exchanges.get(&cookie);
        let known = exchange.and_then(|x| facts.entry_ip(x));
        let wrong = match (answer.chain.ips.first(), known) {
            (None, _) => "is empty".into(),
            (Some(&ip), _) if ip.cast_signed() < 0 && !VSYSCALL.contains(&ip) => {
                format!("starts at {ip:#x}, which is no user address")
            }
            (Some(&ip), Some((wanted, _))) if ip != wanted => {
                format!("starts at {ip:#x}, but user mode was at {wanted:#x}")
            }
            (_, Some(_)) => {
                tally.holds();
                continue;
            }
            (Some(&ip), None)
                if exchange.is_some_and(|it| is_sampled(it, cookie, ip))
                    || facts.returns.to(answer.event) == Some(ip) =>
            {
                tally.holds();
                continue;
            }
            (_, None) => {
                tally.undecided("the user instruction is not known");
                continue;
            }
        };
        let message = format!("record 22 of cookie {cookie:#x} {wrong}");
        let asked = exchange.and_then(|x| x.requests.last());
        let events = asked.map(|r| r.event.index);
        let events = events.into_iter().chain([answer.event.index]);
        let instruction = asked.and_then(|r| facts.instruction(r.event));
        tally.violated(message, events, instruction);
    }
}

/// The user instructions that the requests of this exchange sampled.
fn sampled_in(evidence: &Evidence<'_>, exchange: &Exchange<'_>) -> BTreeSet<u64> {
    let sampled = { exchange.requests.iter() }.filter_map(|it| registers(evidence, it.event));
    sampled.map(|it| it.ip).collect()
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::check;
    use crate::invariant::testkit::{Kit, holds, not_exercised, user, violations};
    use crate::trace::EventKind;
    use crate::trace::model::CONTEXT_USER;

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn the_interrupted_instruction_holds() {
        for ip in [0x7fff_ffff_f000, 0xffff_ffff_ff60_0400] {
            let mut kit = Kit::new(1);
            kit.inject(0, 1001, C, user(ip));
            kit.deferred(0, 1001, C, &[ip]);
            assert_eq!(holds("U6", &kit).0, 1);
        }
    }

    #[test]
    fn the_sampled_instruction_pointer_holds_and_another_decides_nothing() {
        for (sampled, undecided) in [(0x40, 0), (0x44, 1)] {
            let mut kit = Kit::new(1);
            kit.spec("nmi", |spec| {
                spec.details.regs_user = 1 << 6 | 1 << 7 | 1 << 8
            });
            let at = kit.nmi(0, 1001, C);
            kit.deferred(0, 1001, C, &[0x40]);
            let mut trace = kit.trace();
            if let EventKind::Sample(sample) = &mut trace.events[at].kind {
                sample.regs_user = Some(vec![0, 0, sampled]);
            }
            match check("U6", &trace) {
                Check::Holds { evidence: 1, .. } => assert_eq!(undecided, 0),
                Check::NotExercised { undecided: n, .. } => assert_eq!(undecided, n),
                other => panic!("{other:?}"),
            }
        }
    }

    /// A kernel that shows the address of any other instruction shows this too.
    #[test]
    fn a_user_address_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x7fff_ffff_f000]);
        assert!(not_exercised("U6", &kit).contains("1 undecided"));
    }

    #[test]
    fn the_instruction_to_which_the_task_returns_next_exercises_it() {
        let kit = |to: u64| {
            let mut kit = Kit::new(1);
            kit.witness();
            kit.nmi(0, 1001, C);
            kit.deferred(0, 1001, C, &[0x1004]);
            kit.returns_to(0, 1001, to);
            kit
        };
        assert_eq!(holds("U6", &kit(0x1004)).0, 1);
        assert!(not_exercised("U6", &kit(0x1008)).contains("1 undecided"));
    }

    #[test]
    fn none_a_marker_and_a_kernel_address_do_not() {
        for bad in [&[][..], &[CONTEXT_USER, 0x40], &[0xffff_ffff_8100_0000]] {
            let mut kit = Kit::new(1);
            let asked = kit.nmi(0, 1001, C);
            let at = kit.deferred(0, 1001, C, bad);
            assert_eq!(violations("U6", &kit)[0].events, [asked, at]);
        }
    }

    #[test]
    fn another_address_than_the_interrupted_one_does_not() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1004));
        kit.deferred(0, 1001, C, &[0x1008]);
        violations("U6", &kit);
    }

    #[test]
    fn a_trace_without_answers_does_not_exercise_it() {
        not_exercised("U6", &Kit::new(1));
    }

    #[test]
    fn an_address_of_zero_is_none_of_the_kernels() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0]);
        not_exercised("U6", &kit);
    }
}
