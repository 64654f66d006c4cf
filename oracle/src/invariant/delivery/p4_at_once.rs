//! P4: a request from an NMI in user mode is answered before the next user instruction.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Relation};

/// P4. Such an NMI returns without exit work. A self-IPI is pending when it returns and brings the
/// task into the kernel before another user instruction (`TWA_NMI_CURRENT`, kernel/task_work.c; the
/// bug it fixed: commit a38a64712e74). So the first D(c) after it has the interrupted instruction
/// as frame 0.
///
/// Evidence is such a D that is proved to have come before the next user instruction
/// ([`Relation::Same`]): with frame 0 alone, the task may have come back to the instruction in a
/// loop, and with the returns to user mode alone, it may have gone on and been interrupted later.
/// Where nothing tells, it is undecided, and so is an answer where an interrupt was pending at the
/// NMI ([`Relation::Helped`]): that one brings the task into the kernel without a self-IPI, too.
///
/// Nothing else moves the user instruction pointer first: signals are set up after the task work
/// (`get_signal` runs it), and an interrupt or fault that KVM had to deliver before the NMI still
/// returns to the instruction at which the vCPU stood. M1 judges whether the D comes at all.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for (cookie, exchange) in facts.cookies() {
        for request in &exchange.requests {
            let Some(ip) = facts.user_ip(request.event) else {
                continue;
            };
            let Some(answer) = exchange.answer_after(request.event) else {
                continue;
            };
            let frame0 = answer.chain.ips.first().copied();
            let went = match (facts.relation(request.event, answer.event), frame0) {
                (_, None) => "nowhere".to_owned(),
                (_, Some(to)) if to != ip => format!("{to:#x}"),
                (Relation::Different(apart), _) => format!("the same, but {}", apart.why),
                (Relation::Same(_), _) => {
                    tally.holds();
                    continue;
                }
                (Relation::Helped, _) => {
                    tally.undecided(Relation::HELPED);
                    continue;
                }
                (Relation::Unknown, _) => {
                    tally.undecided(Relation::UNDECIDED);
                    continue;
                }
            };
            let message = format!(
                "the NMI of cookie {cookie:#x} hit user mode at {ip:#x} and was answered at {went}"
            );
            let events = [request.event.index, answer.event.index];
            tally.violated(message, events, Some(ip));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{
        Kit, holds, kernel, not_exercised, undecided, user, violations,
    };

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn answered_at_the_interrupted_instruction_holds() {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.thread(0, 1001);
        for _ in 0..2 {
            kit.inject(0, 1001, C, user(0x1004));
            kit.returns(0, 1001);
        }
        kit.deferred(0, 1001, C, &[0x1004]);
        assert_eq!(holds("P4", &kit).0, 2);
    }

    #[test]
    fn a_loop_back_to_the_instruction_is_no_evidence() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1004));
        kit.deferred(0, 1001, C, &[0x1004]);
        assert_eq!(undecided("P4", &kit), 1);
        // The witness knows that the task had been in the kernel and did not answer there.
        let mut kit = Kit::new(1);
        kit.witness();
        let a = kit.inject(0, 1001, C, user(0x1004));
        for _ in 0..2 {
            kit.returns(0, 1001);
        }
        let b = kit.deferred(0, 1001, C, &[0x1004]);
        assert_eq!(violations("P4", &kit)[0].events, [a, b]);
    }

    #[test]
    fn a_pending_interrupt_answers_without_a_self_ipi() {
        for id in ["P4", "S4", "M1", "M3", "M5"] {
            let mut kit = Kit::new(1);
            kit.witness();
            kit.thread(0, 1001);
            kit.inject(0, 1001, C, user(0x1004).interrupt_waits());
            kit.returns(0, 1001);
            kit.deferred(0, 1001, C, &[0x1004]);
            assert_eq!(undecided(id, &kit), 1, "{id}");
        }
    }

    #[test]
    fn answered_further_on_does_not() {
        let mut kit = Kit::new(1);
        let a = kit.inject(0, 1001, C, user(0x1004));
        let b = kit.deferred(0, 1001, C, &[0x1010]);
        let found = violations("P4", &kit);
        assert_eq!(found[0].events, [a, b]);
        assert_eq!(found[0].instruction, Some(0x1004));

        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1004));
        kit.deferred(0, 1001, C, &[]);
        violations("P4", &kit);
    }

    #[test]
    fn kernel_mode_and_unmatched_injections_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000));
        kit.deferred(0, 1001, C, &[0x1010]);
        not_exercised("P4", &kit);

        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1004));
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x1010]);
        assert!(not_exercised("P4", &kit).contains("not matched"));
    }
}
