//! A5: what is missing is counted as lost.

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts, Role, announced_spec, loses, spec_role};
use crate::trace::EventKind;

/// A5. Every NMI gives at least one sample of each `nmi:nmi_handler` event of its CPU, or the ring
/// says that something was lost, or the event was throttled.
///
/// Only injections that a workload thread armed are counted. They are made one at a time, each
/// after the handler of the previous one has returned, so the hardware merges none of them.
/// Injections at a rate may be merged: the CPU latches one NMI while another is handled, and a
/// further one is lost (Intel SDM vol. 3A, 6.7.1 and AMD APM vol. 2, 8.2.3). More samples than
/// injections are no violation: the rest may be of NMIs that no log contains. A missing D is M1's.
///
/// Evidence is such an injection into the kernel whose sample shows its instruction, on a CPU where
/// all samples are matched with all injections: a stray NMI does not show that instruction, unless
/// it hit the very same. Of any other injection one NMI too many may hide that it is missing, so it
/// is undecided.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    for (at, open) in trace.session.iter().enumerate() {
        if announced_spec(trace, open).is_none_or(|spec| spec_role(spec) != Role::Nmi) {
            continue;
        }
        let armed = trace.injections.iter();
        let armed = armed.filter(|i| i.vcpu == open.cpu && i.thread.is_some());
        let armed = armed.count();
        let samples = trace.events.iter();
        let samples = samples
            .filter(|e| e.event == Some(at) && matches!(e.kind, EventKind::Sample(_)))
            .count();
        if armed == 0 {
            continue;
        }
        if samples >= armed {
            let shown = shown(facts, at).min(armed);
            tally.holds_on(shown);
            for _ in shown..armed {
                tally.undecided("an NMI without a sample that shows its instruction");
            }
            continue;
        }
        let lost = trace
            .events
            .iter()
            .find(|e| e.ring == open.ring && loses(e));
        if let Some(lost) = lost {
            tally.excuse(format!(
                "XA event {} counts what CPU {} lost",
                lost.index, open.cpu
            ));
            continue;
        }
        let message = format!(
            "CPU {} has {samples} samples for {armed} NMIs, and none is counted as lost",
            open.cpu
        );
        tally.violated(message, [], None);
    }
}

/// Samples of an open event that show the instruction of an injection which a thread armed.
fn shown(facts: &Facts<'_>, at: usize) -> usize {
    let events = facts.trace.events.iter().filter(|e| e.event == Some(at));
    { events }
        .filter(|event| {
            facts.injection(event).is_some_and(|injection| {
                let armed = injection.thread.is_some() && injection.cpl == 0;
                armed && event.kernel_chain().contains(&injection.rip)
            })
        })
        .count()
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, kernel, not_exercised, user, violations};

    const C: u64 = 3 << 32 | 1;

    fn two(kit: &mut Kit) {
        let hit = kernel(0xffff_ffff_8100_0000).iteration(0, 1);
        kit.inject(0, 1001, C, hit);
        kit.inject(0, 1001, C, hit);
    }

    #[test]
    fn a_sample_for_each_holds() {
        let mut kit = Kit::new(2);
        two(&mut kit);
        assert_eq!(holds("A5", &kit).0, 2);
    }

    #[test]
    fn a_stray_one_in_place_of_a_missing_one_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        two(&mut kit);
        kit.drop_last();
        kit.sample(0, 1001, 1, vec![crate::trace::model::CONTEXT_KERNEL, 0x40]);
        assert!(not_exercised("A5", &kit).contains("2 undecided"));
    }

    #[test]
    fn one_too_few_does_not() {
        let mut kit = Kit::new(1);
        two(&mut kit);
        kit.drop_last();
        violations("A5", &kit);
    }

    #[test]
    fn a_counted_loss_excuses() {
        let mut kit = Kit::new(1);
        two(&mut kit);
        kit.drop_last();
        kit.lost(0, 1);
        assert!(not_exercised("A5", &kit).contains("XA"));
    }

    #[test]
    fn injections_at_a_rate_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1004));
        kit.drop_last();
        not_exercised("A5", &kit);
    }

    #[test]
    fn only_nmis_that_a_thread_armed_on_the_cpu_are_counted() {
        let at = kernel(0xffff_ffff_8100_1000);
        let mut kit = Kit::new(2);
        kit.inject(0, 1001, C, at.iteration(0, 1));
        for iteration in 1..4 {
            kit.inject(1, 1002, C, at.iteration(1, iteration));
        }
        assert_eq!(holds("A5", &kit).0, 4);

        // A sample of another injection shows nothing of the one that was armed for user mode.
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, user(0x1000).iteration(0, 1));
        kit.inject(0, 1001, C, at);
        assert!(not_exercised("A5", &kit).contains("1 undecided"));
    }
}
