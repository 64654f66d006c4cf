//! S4: no user instruction of the task retires between a request and its answer.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Relation};

/// S4. For an S(c) and the first D(c) after it, either of these proves that one did:
///
/// * the two are of different entries ([`Relation::Different`]);
/// * the NMI hit user mode and frame 0 of the D is another instruction: the task has gone on.
///
/// Evidence is a pair that is proved to be of one entry ([`Relation::Same`]). A kernel that answers
/// late has a return to user mode in between, and writes the D outside of the system call's
/// markers, so no such pair is late. Any other pair is undecided: that no marker lies between, or
/// that frame 0 is the instruction that the NMI hit, is so after a loop of user mode too.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for (cookie, exchange) in facts.cookies() {
        for request in &exchange.requests {
            let Some(answer) = exchange.answer_after(request.event) else {
                continue;
            };
            let mut events = vec![request.event.index, answer.event.index];
            let ip = facts.user_ip(request.event);
            let frame0 = answer.chain.ips.first().copied();
            let why = match (facts.relation(request.event, answer.event), ip, frame0) {
                (Relation::Different(apart), ..) => {
                    events.extend(apart.events);
                    apart.why.to_string()
                }
                (_, Some(ip), Some(frame0)) if ip != frame0 => {
                    format!("user mode went from {ip:#x} to {frame0:#x}")
                }
                (Relation::Same(_), ..) => {
                    tally.holds();
                    continue;
                }
                (Relation::Helped, ..) => {
                    tally.undecided(Relation::HELPED);
                    continue;
                }
                (Relation::Unknown, ..) => {
                    tally.undecided(Relation::UNDECIDED);
                    continue;
                }
            };
            let message =
                format!("user code ran between request and answer of cookie {cookie:#x}: {why}");
            tally.violated(message, events, facts.instruction(request.event));
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
    fn answered_at_the_interrupted_instruction_or_on_the_way_out_holds() {
        let mut kit = Kit::new(1);
        kit.witness();
        kit.thread(0, 1001);
        kit.inject(0, 1001, C, user(0x1004));
        kit.returns(0, 1001);
        kit.deferred(0, 1001, C, &[0x1004]);
        assert_eq!(holds("S4", &kit).0, 1);

        let mut kit = Kit::new(1);
        kit.witness();
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &[0x1080]);
        assert_eq!(holds("S4", &kit).0, 1);
    }

    #[test]
    fn markers_around_a_pair_and_frame_0_alone_are_no_evidence() {
        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        kit.deferred(0, 1001, C, &[0x1080]);
        kit.sys_enter(0, 1001);
        assert_eq!(undecided("S4", &kit), 1);

        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1004));
        kit.deferred(0, 1001, C, &[0x1004]);
        assert_eq!(undecided("S4", &kit), 1);
    }

    #[test]
    fn answered_later_does_not() {
        let mut kit = Kit::new(1);
        let a = kit.inject(0, 1001, C, user(0x1004));
        let b = kit.deferred(0, 1001, C, &[0x1008]);
        let found = violations("S4", &kit);
        assert_eq!(found[0].events, [a, b]);
        assert_eq!(found[0].instruction, Some(0x1004));

        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        kit.sys_enter(0, 1001);
        kit.deferred(0, 1001, C, &[0x1080]);
        violations("S4", &kit);
    }

    #[test]
    fn a_pair_on_which_nothing_would_show_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000));
        kit.deferred(0, 1001, C, &[0x1004]);
        not_exercised("S4", &kit);
    }
}
