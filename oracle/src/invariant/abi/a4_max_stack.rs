//! A4: `max_stack` limits only the kernel part.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, kernel_limit, spec};

/// A4. The kernel part of a deferred sample has at most `sample_max_stack` addresses (127 by
/// default), and the limit does not cut the D that answers the sample.
///
/// Evidence of the first half is a deferred sample whose kernel part was cut: it has as many
/// addresses as the limit, and lacks the kernel instruction that its NMI interrupted. A kernel that
/// ignores the limit shows that instruction, and one that counts marker and cookie shows fewer
/// addresses. Evidence of the second half is a D longer than the limit of the event that asked. A
/// sample that shows neither is undecided: its stacks may be shorter than the limit. S1 shows that
/// a D cut there is wrong, on a stack known by construction.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let mut full = 0;
    let mut beyond = 0;
    for request in &facts.requests {
        let Some(spec) = spec(trace, request.event).filter(|spec| spec.max_stack > 0) else {
            continue;
        };
        let (limit, found) = (
            kernel_limit(trace, spec),
            request.sample.kernel_chain().len(),
        );
        if found > limit {
            let message = format!(
                "the sample with cookie {:#x} has {found} kernel addresses, max_stack is {limit}",
                request.cookie
            );
            let instruction = facts.instruction(request.event);
            tally.violated(message, [request.event.index], instruction);
            continue;
        }
        let missing = facts.injection(request.event).is_some_and(|injection| {
            injection.cpl == 0 && !request.event.kernel_chain().contains(&injection.rip)
        });
        let cut = found == limit && missing;
        let answer = facts.exchanges.get(&request.cookie);
        let answer = answer.and_then(|exchange| exchange.answers.first());
        let longer = answer.is_some_and(|answer| answer.chain.ips.len() > limit);
        full += usize::from(cut);
        beyond += usize::from(longer);
        if cut || longer {
            tally.holds();
        } else {
            tally.undecided("stacks that may be shorter than max_stack");
        }
        let Some(answer) = answer else { continue };
        let depth = facts.stacks_at_leaf(answer);
        let depth = depth.iter().map(|stack| stack.depth()).min();
        let frames = answer.chain.ips.len();
        if frames == limit && depth.is_some_and(|depth| depth > limit as u64) {
            let message = format!(
                "record 22 of cookie {:#x} is cut at max_stack {limit}",
                request.cookie
            );
            let events = [request.event.index, answer.event.index];
            tally.violated(message, events, facts.instruction(request.event));
        }
    }
    tally.note(full, "kernel parts cut at max_stack");
    tally.note(beyond, "records 22 longer than max_stack");
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, NMI_FRAMES, holds, kernel, not_exercised, violations};
    use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER_DEFERRED};

    const C: u64 = 3 << 32 | 1;

    fn limited(to: u16) -> Kit {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.spec("nmi", |spec| spec.max_stack = to);
        kit.nmi(0, 1001, C);
        kit
    }

    /// An NMI into the kernel by a sampler with max_stack 2, which sees its own handler only.
    fn cut(shown: &[u64]) -> Kit {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.spec("nmi", |spec| spec.max_stack = 2);
        kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0800).iteration(0, 1));
        kit.drop_last();
        let mut chain = vec![CONTEXT_KERNEL];
        chain.extend(shown);
        chain.extend([CONTEXT_USER_DEFERRED, C]);
        kit.sample(0, 1001, 1, chain);
        kit
    }

    #[test]
    fn a_cut_kernel_part_and_a_longer_answer_hold() {
        let mut kit = cut(&NMI_FRAMES);
        assert_eq!(holds("A4", &kit).0, 1);
        kit.deferred(0, 1001, C, &[0x40; 5]);
        let (evidence, notes) = holds("A4", &kit);
        assert_eq!((evidence, notes.len()), (1, 2));
    }

    /// A kernel without any limit shows these too.
    #[test]
    fn stacks_that_may_be_shorter_do_not_exercise_it() {
        let mut kit = limited(4);
        kit.deferred(0, 1001, C, &[0x40; 4]);
        assert!(not_exercised("A4", &kit).contains("1 undecided"));
        not_exercised("A4", &limited(100));
        not_exercised("A4", &cut(&NMI_FRAMES[..1]));
    }

    #[test]
    fn a_kernel_part_beyond_the_limit_does_not() {
        violations("A4", &limited(3));
    }

    #[test]
    fn an_answer_cut_at_the_limit_does_not() {
        let mut kit = limited(4);
        kit.deep_thread(1, 1002, 9);
        kit.nmi(0, 1002, C + (2 << 32));
        kit.deferred(0, 1002, C + (2 << 32), &[0x1004, 0x2000, 0x2000, 0x2000]);
        violations("A4", &kit);
    }

    #[test]
    fn events_without_a_limit_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        not_exercised("A4", &kit);
    }

    #[test]
    fn what_was_cut_and_what_was_longer_is_counted() {
        let mut kit = cut(&NMI_FRAMES);
        kit.deferred(0, 1001, C, &[0x40; 5]);
        let notes = [
            "1 kernel parts cut at max_stack",
            "1 records 22 longer than max_stack",
        ];
        assert_eq!(holds("A4", &kit).1, notes);
    }

    /// The instruction is there, in as many addresses as the limit: nothing need have been cut.
    #[test]
    fn a_kernel_part_of_the_limits_length_does_not_exercise_it() {
        let whole = cut(&[NMI_FRAMES[1], 0xffff_ffff_8100_0800]);
        assert!(not_exercised("A4", &whole).contains("1 undecided"));
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        assert!(!not_exercised("A4", &kit).contains("undecided"), "no limit");
    }

    #[test]
    fn a_stack_of_the_limits_length_is_not_cut() {
        let mut kit = limited(4);
        kit.deferred(0, 1001, C, &[0x1004, 0x2000, 0x2000, 0x3000]);
        not_exercised("A4", &kit);
    }
}
