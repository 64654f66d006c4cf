//! Checks that the guest's own driver handled the injected overflows.

use unwindlab_abi::{InterruptCounts, Observation};

use unwindlab_engine::plan::ActionPlan;
use unwindlab_engine::plan::TrialPlan;
use unwindlab_oracle::trace::Trace;

/// Why it did not, in a line each. The kernel counts the NMIs in which its driver found an overflow
/// (row PMI of `/proc/interrupts`, `inc_perf_irq_stat` in arch/x86/events/core.c): there must be
/// exactly one for each overflow.
pub(super) fn unhandled(plan: &TrialPlan, trace: &Trace) -> Vec<String> {
    let is_overflow = |spec: u32| {
        let planned = plan.injections.get(spec as usize);
        planned.is_some_and(|it| it.action == ActionPlan::PmuOverflow)
    };
    let raised = trace.injections.iter().filter(|it| is_overflow(it.spec));
    let raised = raised.count() as u64;
    let counted = trace.observations.iter().find_map(|seen| match seen {
        Observation::Interrupts { before, after } => Some((before, after)),
        _ => None,
    });
    missing(raised, counted)
}

fn missing(raised: u64, counted: Option<(&InterruptCounts, &InterruptCounts)>) -> Vec<String> {
    if raised == 0 {
        return Vec::new();
    }
    let Some((before, after)) = counted else {
        return vec![format!(
            "{raised} overflows were injected, and the guest did not count its interrupts"
        )];
    };
    let pmi = after.pmi.wrapping_sub(before.pmi);
    let nmi = after.nmi.wrapping_sub(before.nmi);
    let mut reasons = Vec::new();
    if pmi != raised {
        reasons.push(format!(
            "the guest's driver handled {pmi} overflows (PMI in /proc/interrupts), {raised} were \
             injected"
        ));
    }
    if nmi < raised {
        reasons.push(format!(
            "the guest took {nmi} NMIs (/proc/interrupts) for {raised} overflows"
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: InterruptCounts = InterruptCounts { nmi: 5, pmi: 2 };

    fn after(nmi: u64, pmi: u64) -> Vec<String> {
        let after = InterruptCounts { nmi, pmi };
        missing(3, Some((&BEFORE, &after)))
    }

    #[test]
    fn the_driver_finds_every_overflow_and_no_other() {
        assert!(after(8, 5).is_empty());
        assert!(after(20, 5).is_empty(), "NMIs of another kind");
        assert_eq!(after(8, 4).len(), 1);
        assert_eq!(after(8, 6).len(), 1);
        assert_eq!(after(7, 2).len(), 2);
        assert_eq!(after(0, 0).len(), 1, "a count that goes back");
        assert_eq!(missing(3, None).len(), 1);
        assert!(missing(0, None).is_empty());
    }
}
