//! W2: every NMI is taken once, on its vCPU, at the instruction that was meant.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::{
    Evidence, Role, announced_spec, kernel_limit, loses, spec, spec_role,
};
use crate::trace::recording::Injection;
use crate::trace::{Event, EventKind, Trace};

/// W2. On each CPU `nmi:nmi_handler` was sampled once for each NMI that was injected there. The
/// kernel part of the k-th sample has the very instruction before which the k-th NMI was injected,
/// right after the return address into the NMI's entry code. This is judged where that is an
/// instruction of the kernel at which the vCPU stood for it, outside of another NMI's handler.
///
/// The unwinder steps over the NMI's own frame and shows the interrupted address as the CPU saved
/// it (arch/x86/kernel/unwind_orc.c, ORC_TYPE_REGS). Most of the samples tell which address is the
/// entry code's.
///
/// Code of a seccomp filter is generated, and no symbol covers it: the unwinder takes such an address
/// for none of the kernel's (`kernel_text_address`, kernel/extable.c; a filter has no entry in
/// `bpf_tree`), and the chain ends. That is undecided.
///
/// This is not part of the kernel's contract: it shows that the harness did what the scenario says.
/// Nothing is judged with the lab client, whose own NMIs and handler fire the tracepoint too.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    if trace.lab.is_some() {
        return tally.lacks("the lab client fires the tracepoint too");
    }
    let mut of_cpu: BTreeMap<u32, Vec<&Injection>> = BTreeMap::new();
    for injection in &trace.injections {
        of_cpu.entry(injection.vcpu).or_default().push(injection);
    }
    let mut pairs = Vec::new();
    for (cpu, injections) in of_cpu {
        for samples in nmi_samples(trace, cpu) {
            if samples.len() == injections.len() {
                pairs.extend(samples.into_iter().zip(injections.iter().copied()));
            } else if samples.is_empty() || samples.len() % injections.len() != 0 {
                // A multiple would come from several handlers.
                let (have, want) = (samples.len(), injections.len());
                let message = format!("CPU {cpu} has {have} NMI samples for {want} injected NMIs");
                tally.violated(message, samples.last().map(|it| it.index), None);
            }
        }
    }
    let exact = pairs.iter().filter(|(_, injection)| injection.exact);
    let shown: Vec<_> = { exact }
        .filter(|(event, _)| is_whole(trace, event))
        .collect();
    let entry = entry(shown.iter().map(|(event, injection)| (*event, *injection)));
    for (event, injection) in shown {
        let chain = event.kernel_chain();
        let at = chain.iter().position(|ip| Some(*ip) == entry);
        let hit = at.and_then(|at| chain.get(at + 1)).copied();
        if hit == Some(injection.rip) {
            tally.holds();
            continue;
        }
        if hit.is_none() && evidence.is_in_no_function(injection.rip) {
            tally.undecided("the NMI hit generated code, which no kernel chain shows");
            continue;
        }
        let went = hit.map_or_else(|| "nowhere".into(), |ip| format!("{ip:#x}"));
        let message = format!(
            "the NMI before {:#x} on vCPU {} was taken at {went}",
            injection.rip, injection.vcpu
        );
        tally.violated(message, [event.index], Some(injection.rip));
    }
}

/// The samples of each NMI event of a CPU, in the order in which they were written. Leaves out
/// rings that lost records.
fn nmi_samples(trace: &Trace, cpu: u32) -> Vec<Vec<&Event>> {
    let mut all = Vec::new();
    for (open_index, open) in trace.session.iter().enumerate() {
        let nmi = announced_spec(trace, open).is_some_and(|it| spec_role(it) == Role::Nmi);
        if !nmi || open.cpu != cpu {
            continue;
        }
        if trace.events.iter().any(|e| e.ring == open.ring && loses(e)) {
            continue;
        }
        let samples = trace.events.iter();
        let mut samples: Vec<&Event> = samples
            .filter(|e| e.event == Some(open_index) && matches!(e.kind, EventKind::Sample(_)))
            .collect();
        samples.sort_by_key(|e| e.position);
        all.push(samples);
    }
    all
}

/// Whether the kernel part of the chain is there and was not cut.
fn is_whole(trace: &Trace, event: &Event) -> bool {
    let limit = spec(trace, event).map_or(0, |spec| kernel_limit(trace, spec));
    (1..limit).contains(&event.kernel_chain().len())
}

/// The address that most samples have right before the instruction.
fn entry<'t>(pairs: impl Iterator<Item = (&'t Event, &'t Injection)>) -> Option<u64> {
    let mut said: BTreeMap<u64, usize> = BTreeMap::new();
    for (event, injection) in pairs {
        let chain = event.kernel_chain();
        let at = chain.iter().position(|&ip| ip == injection.rip);
        if let Some(&before) = at.and_then(|at| chain.get(at.checked_sub(1)?)) {
            *said.entry(before).or_default() += 1;
        }
    }
    { said.into_iter() }
        .max_by_key(|&(_, times)| times)
        .map(|(address, _)| address)
}

#[cfg(test)]
mod tests {
    use super::{EventKind, Evidence, Tally};
    use crate::invariant::Check;
    use crate::invariant::testkit::check;
    use crate::invariant::testkit::{Kit, holds, kernel, not_exercised, user, violations};

    const C: u64 = 3 << 32 | 1;
    const RIP: u64 = 0xffff_ffff_8100_1234;

    fn hit(rip: u64) -> crate::invariant::testkit::Hit {
        kernel(rip).iteration(0, 1)
    }

    #[test]
    fn an_nmi_where_it_was_meant_holds() {
        let mut kit = Kit::new(2);
        kit.inject(0, 1001, C, hit(RIP));
        kit.inject(1, 1002, C, hit(RIP + 4));
        kit.inject(0, 1001, C, user(0x1000));
        assert_eq!(holds("W2", &kit).0, 2);
    }

    #[test]
    fn one_an_instruction_further_does_not() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, hit(RIP));
        kit.inject(0, 1001, C, hit(RIP));
        kit.inject(0, 1001, C, hit(RIP));
        let mut trace = kit.trace();
        trace.injections[1].rip += 3;
        let Check::Violated(found) = check("W2", &trace) else {
            panic!("not noticed");
        };
        assert_eq!((found.len(), found[0].instruction), (1, Some(RIP + 3)));
    }

    #[test]
    fn one_that_the_chain_does_not_show_is_undecided_in_generated_code_only() {
        let mut kit = Kit::new(1);
        for _ in 0..3 {
            kit.inject(0, 1001, C, hit(RIP));
        }
        let mut trace = kit.trace();
        trace.injections[1].rip = 0xffff_ffff_c000_0658;
        let Some(EventKind::Sample(sample)) = trace.events.get_mut(1).map(|it| &mut it.kind) else {
            panic!("no sample");
        };
        let chain = sample.chain.as_mut().unwrap();
        let hit = chain.iter().position(|&ip| ip == RIP).unwrap();
        let is_marker = |ip: &u64| *ip > u64::MAX - 4096;
        let rest = chain.iter().skip(hit).position(is_marker).unwrap();
        chain.drain(hit..hit + rest);
        for (is_generated, undecided) in [(false, 0), (true, 1)] {
            let resolve = |ip| (!is_generated || ip == RIP).then(|| ("f".to_owned(), 0));
            let known = Evidence::new(&trace).named(&resolve);
            let mut tally = Tally::new("W2", "");
            super::judge(&known, &mut tally);
            match tally.finish() {
                Check::Violated(_) => assert!(!is_generated),
                Check::Holds { undecided: n, .. } => assert_eq!(n, undecided),
                Check::NotExercised { .. } => panic!("nothing was judged"),
            }
        }
    }

    #[test]
    fn one_too_few_or_too_many_does_not() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, hit(RIP));
        kit.inject(0, 1001, C, hit(RIP));
        kit.nmi(0, 1001, C);
        let found = violations("W2", &kit);
        assert_eq!(
            found[0].message,
            "CPU 0 has 3 NMI samples for 2 injected NMIs"
        );
    }

    #[test]
    fn what_came_at_any_time_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, kernel(RIP));
        not_exercised("W2", &kit);
    }

    #[test]
    fn samples_of_several_handlers_are_a_multiple() {
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, hit(RIP));
        kit.nmi(0, 1001, C);
        not_exercised("W2", &kit);
    }

    #[test]
    fn a_ring_that_lost_records_and_a_chain_that_was_cut_show_nothing() {
        let lossy = |ring| {
            let mut kit = Kit::new(2);
            kit.inject(0, 1001, C, hit(RIP));
            kit.inject(0, 1001, C, hit(RIP));
            kit.nmi(0, 1001, C);
            kit.lost(ring, 1);
            kit
        };
        not_exercised("W2", &lossy(0));
        violations("W2", &lossy(1));

        let limited = |limit| {
            let mut kit = Kit::new(1);
            kit.spec("nmi", |spec| spec.max_stack = limit);
            kit.inject(0, 1001, C, hit(RIP));
            kit
        };
        not_exercised("W2", &limited(4));
        assert_eq!(holds("W2", &limited(5)).0, 1);
    }

    /// As where an NMI hit the handler of another, at what happens to be a return address.
    #[test]
    fn the_entry_is_what_most_chains_show() {
        let mut kit = Kit::new(1);
        for _ in 0..3 {
            kit.inject(0, 1001, C, hit(RIP));
        }
        let mut trace = kit.trace();
        for other in [0xffff_ffff_8200_0090, 0xffff_ffff_8100_0090] {
            let EventKind::Sample(sample) = &mut trace.events[1].kind else {
                panic!("no sample");
            };
            let chain = sample.chain.as_mut().unwrap();
            let at = chain.iter().position(|&ip| ip == RIP).unwrap();
            chain[at - 1] = other;
            let Check::Violated(found) = check("W2", &trace) else {
                panic!("not noticed");
            };
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].events, [1]);
        }
    }
}
