//! A8: a chain says of each of its addresses which context it is of.

use unwindlab_abi::attr::flag;
use unwindlab_abi::plan::{EventSource, EventSpec};

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, context_limit, spec};
use crate::trace::EventKind;
use crate::trace::model::{
    CONTEXT_KERNEL, CONTEXT_MAX, CONTEXT_USER, CONTEXT_USER_DEFERRED, MISC_CPUMODE, MISC_KERNEL,
    MISC_USER,
};

/// A8. The chain of a sample begins with a context, such as `PERF_CONTEXT_KERNEL`. The kernel's comes once, and before the
/// user's, which comes once too (`get_perf_callchain`, kernel/events/callchain.c, 7.2; `perf_callchain` asks it for marks).
/// What the event excludes (`exclude_callchain_kernel`, `exclude_callchain_user`) is not there, and no cookie of it either.
/// A sample that a tracepoint or a probe takes in the kernel has the kernel's context, and one in user mode has not. There
/// are no more contexts than `perf_event_max_contexts_per_stack` allows (Documentation/admin-guide/sysctl/kernel.rst).
/// Where the deferred marker stands is A1's.
///
/// Evidence is a chain with an entry: a missing or doubled mark is visible in it. A context that the harness does not know makes it
/// undecided.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let limit = context_limit(trace).flatten();
    for event in &trace.events {
        let EventKind::Sample(sample) = &event.kind else {
            continue;
        };
        let chain = sample.chain.as_deref().unwrap_or_default();
        let Some(first) = chain.first() else { continue };
        let contexts: Vec<u64> = chain
            .iter()
            .copied()
            .filter(|&ip| ip >= CONTEXT_MAX)
            .collect();
        let wrong = if *first < CONTEXT_MAX {
            Some(format!("the chain begins with {first:#x}, of no context"))
        } else {
            let spec = spec(trace, event);
            out_of_place(&contexts)
                .or_else(|| excluded(&contexts, spec?))
                .or_else(|| of_other_mode(&contexts, event.misc, spec?))
                .or_else(|| too_many(contexts.len(), limit?))
        };
        if let Some(message) = wrong {
            tally.violated(message, [event.index], facts.instruction(event));
        } else if contexts.iter().any(|it| name(*it).is_none()) {
            tally.undecided("what a context is of");
        } else {
            tally.holds();
        }
    }
}

/// What is wrong with the order of contexts.
fn out_of_place(contexts: &[u64]) -> Option<String> {
    let mut known = [CONTEXT_KERNEL, CONTEXT_USER].into_iter();
    let count = |context| contexts.iter().filter(|it| **it == context).count();
    if let Some(name) = known.find(|it| count(*it) > 1).and_then(name) {
        return Some(format!("{name} comes twice in a chain"));
    }
    let at = |context| contexts.iter().position(|it| *it == context);
    let is_before = at(CONTEXT_USER)? < at(CONTEXT_KERNEL)?;
    is_before.then(|| "PERF_CONTEXT_USER comes before PERF_CONTEXT_KERNEL".to_owned())
}

/// What is there though the event excludes it.
fn excluded(contexts: &[u64], spec: &EventSpec) -> Option<String> {
    let excludes_kernel = spec.details.set & flag::EXCLUDE_CALLCHAIN_KERNEL != 0;
    let is_excluded = |it: &&u64| match **it {
        CONTEXT_KERNEL => excludes_kernel,
        CONTEXT_USER | CONTEXT_USER_DEFERRED => spec.exclude_callchain_user,
        _ => false,
    };
    let name = name(*contexts.iter().find(is_excluded)?)?;
    Some(format!(
        "{name} is in the chain of an event that excludes it"
    ))
}

/// What is wrong with the number of contexts, by the limit that was set.
fn too_many(contexts: usize, limit: usize) -> Option<String> {
    (contexts > limit).then(|| {
        format!("a chain has {contexts} contexts, and perf_event_max_contexts_per_stack is {limit}")
    })
}

/// What is wrong with the kernel's context, by the mode in the record's header. It is stored first, so no limit takes it away
/// and leaves another one. A PMU may take the header from other registers than the chain ("always use iregs for the unwinder",
/// arch/x86/events/intel/ds.c), so only tracepoints and probes are judged.
fn of_other_mode(contexts: &[u64], misc: u16, spec: &EventSpec) -> Option<String> {
    let same_registers = matches!(
        spec.source,
        EventSource::Tracepoint { .. }
            | EventSource::Kprobe { .. }
            | EventSource::Fprobe { .. }
            | EventSource::Uprobe { .. }
    );
    if !same_registers {
        return None;
    }
    let is_there = contexts.contains(&CONTEXT_KERNEL);
    let excluded = spec.details.set & flag::EXCLUDE_CALLCHAIN_KERNEL != 0;
    match misc & MISC_CPUMODE {
        MISC_KERNEL if !is_there && !excluded => {
            Some("a chain from the kernel is without PERF_CONTEXT_KERNEL".to_owned())
        }
        MISC_USER if is_there => Some("a chain from user mode has PERF_CONTEXT_KERNEL".to_owned()),
        _ => None,
    }
}

fn name(context: u64) -> Option<&'static str> {
    match context {
        CONTEXT_KERNEL => Some("PERF_CONTEXT_KERNEL"),
        CONTEXT_USER => Some("PERF_CONTEXT_USER"),
        CONTEXT_USER_DEFERRED => Some("PERF_CONTEXT_USER_DEFERRED"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit::{Kit, SOMEWHERE, check, holds, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;
    const K: u64 = CONTEXT_KERNEL;
    const U: u64 = CONTEXT_USER;
    const D: u64 = CONTEXT_USER_DEFERRED;

    #[test]
    fn each_once_and_in_order_holds() {
        let good = [
            &[K, SOMEWHERE][..],
            &[U, 0x40],
            &[D, C],
            &[K, SOMEWHERE, U, 0x40],
            &[K, SOMEWHERE, D, C],
            // What limits of the kernel leave.
            &[K],
        ];
        for chain in good {
            let mut kit = Kit::new(1);
            kit.sample(0, 1001, 1, chain.to_vec());
            assert_eq!(holds("A8", &kit).0, 1, "{chain:x?}");
        }
    }

    #[test]
    fn none_twice_and_the_wrong_order_do_not() {
        let bad = [
            &[SOMEWHERE][..],
            &[SOMEWHERE, K],
            &[C, D, C],
            &[K, K, SOMEWHERE],
            &[U, 0x40, K, SOMEWHERE],
            &[K, SOMEWHERE, U, 0x40, U, 0x40],
            &[K, SOMEWHERE, U, 0x40, K],
        ];
        for chain in bad {
            let mut kit = Kit::new(1);
            let at = kit.sample(0, 1001, 1, chain.to_vec());
            assert_eq!(violations("A8", &kit)[0].events, [at], "{chain:x?}");
        }
    }

    #[test]
    fn what_is_excluded_is_not_there() {
        let with = |chain: &[u64], change: fn(&mut EventSpec)| {
            let mut kit = Kit::new(1);
            kit.spec("nmi", change);
            kit.sample(0, 1001, 1, chain.to_vec());
            kit
        };
        let no_kernel: fn(&mut EventSpec) =
            |spec| spec.details.set |= flag::EXCLUDE_CALLCHAIN_KERNEL;
        let no_user: fn(&mut EventSpec) = |spec| spec.exclude_callchain_user = true;
        violations("A8", &with(&[K, SOMEWHERE, D, C], no_kernel));
        violations("A8", &with(&[K, SOMEWHERE, D, C], no_user));
        violations("A8", &with(&[K, SOMEWHERE, U, 0x40], no_user));
        holds("A8", &with(&[D, C], no_kernel));
        holds("A8", &with(&[K, SOMEWHERE], no_user));
    }

    #[test]
    fn the_kernels_context_is_there_in_the_kernel_only() {
        let judged = |misc: u16, chain: &[u64], change: fn(&mut EventSpec)| {
            let mut kit = Kit::new(1);
            kit.spec("nmi", change);
            let at = kit.sample(0, 1001, 1, chain.to_vec());
            let mut trace = kit.trace();
            trace.events[at].misc = misc;
            check("A8", &trace)
        };
        let no_kernel: fn(&mut EventSpec) =
            |spec| spec.details.set |= flag::EXCLUDE_CALLCHAIN_KERNEL;
        // Other bits of `misc` do not matter.
        let bad = [
            (1, &[U, 0x40][..]),
            (0x4001, &[D, C]),
            (2, &[K, 0x40, D, C]),
        ];
        for (misc, chain) in bad {
            let found = judged(misc, chain, |_| ());
            assert!(matches!(found, Check::Violated(_)), "{found:?}");
        }
        for found in [
            judged(1, &[K, SOMEWHERE], |_| ()),
            judged(1, &[D, C], no_kernel),
            judged(0x4002, &[U, 0x40], |_| ()),
            judged(2, &[K, SOMEWHERE], |spec| {
                spec.source = EventSource::Hardware(0);
            }),
        ] {
            assert!(matches!(found, Check::Holds { .. }), "{found:?}");
        }
    }

    #[test]
    fn more_than_the_limit_do_not() {
        for (limit, holds) in [("1", false), ("2", true)] {
            let mut kit = Kit::new(1);
            kit.sample(0, 1001, 1, vec![K, SOMEWHERE, D, C]);
            let mut trace = kit.trace();
            let name = "perf_event_max_contexts_per_stack".to_owned();
            trace.sysctls.push((name, limit.to_owned()));
            let found = check("A8", &trace);
            assert_eq!(matches!(found, Check::Holds { .. }), holds, "{found:?}");
        }
    }

    #[test]
    fn an_unknown_context_and_an_empty_chain_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.sample(
            0,
            1001,
            1,
            vec![K, SOMEWHERE, (-2048_i64).cast_unsigned(), 0x40],
        );
        kit.sample(0, 1001, 1, Vec::new());
        assert!(not_exercised("A8", &kit).contains("1 undecided"));
    }
}
