//! Which injection raised which sample.
//!
//! The k-th NMI injected into a vCPU is the k-th sample of `nmi:nmi_handler` on that CPU, if the
//! kernel has one NMI handler registered (a stock kernel without a PMU driver: the "arch_bt"
//! one), if no other NMI came, and if nothing was lost. Nothing of this is assumed: the numbers
//! must agree, every sample must be of the thread that the injection names, and the kernel chain
//! of the sample must contain the instruction at which an injection into kernel mode was made.
//! Where one injection of a CPU does not fit, none of that CPU's is used.
//!
//! Where no `nmi:nmi_handler` is open, the same holds for a counter of the CPU, of which each
//! injected overflow gives a sample.
//!
//! One kind of injection need not show its instruction: one made at a rate may find the vCPU in
//! the handler of the previous NMI. NMIs are masked there, so the CPU takes it when that handler
//! returns, and it interrupts the instruction of its predecessor. Most of them must show their
//! instruction all the same: if one sample were missing and one too many, hardly any would.

use std::collections::{BTreeMap, BTreeSet};

use super::losses::loses;
use super::role::{Role, announced_spec, kernel_limit, spec, spec_role};
use crate::trace::recording::Injection;
use crate::trace::{Event, EventKind, Trace};

/// Injections by the event that they raised.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    /// Index into `Trace::injections` by index into `Trace::events`.
    injections: BTreeMap<usize, usize>,
    /// vCPUs whose injections all have a sample.
    matched: BTreeSet<u32>,
    /// vCPUs with injections that could not be matched, and why.
    unmatched: BTreeMap<u32, Unmatched>,
    /// The return address that comes right before the interrupted instruction in the chain of an
    /// NMI that hit the kernel: into the entry code, learned from the matched samples.
    nmi_entry: Option<u64>,
}

/// Why the injections into a vCPU do not fit its samples.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Unmatched {
    #[error("the ring of CPU {cpu} lost records")]
    LossyRing { cpu: u32 },
    #[error("CPU {cpu} has {samples} NMI samples for {injections} injections")]
    Number {
        cpu: u32,
        samples: usize,
        injections: usize,
    },
    #[error("event {event} {misfit} of injection {injection}")]
    Sample {
        event: usize,
        misfit: Misfit,
        injection: usize,
    },
    #[error("CPU {cpu} shows the instruction of {shown} of {total} injections only")]
    Instructions {
        cpu: u32,
        shown: usize,
        total: usize,
    },
}

/// Why a sample cannot be of an injection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Misfit {
    #[error("is not of the thread")]
    Thread,
    #[error("is not of the process")]
    Process,
    #[error("has another interrupted instruction than that")]
    Instruction,
}

impl Matching {
    pub fn new(trace: &Trace) -> Self {
        let mut of_cpu: BTreeMap<u32, Vec<(usize, &Injection)>> = BTreeMap::new();
        for (index, injection) in trace.injections.iter().enumerate() {
            let list = of_cpu.entry(injection.vcpu).or_default();
            list.push((index, injection));
        }
        let mut matching = Self::default();
        let forked = forked(trace);
        for (cpu, injections) in of_cpu {
            if let Err(why) = matching.match_cpu(trace, &forked, cpu, &injections) {
                matching.unmatched.insert(cpu, why);
            }
        }
        matching.learn(trace);
        matching
    }

    fn match_cpu(
        &mut self,
        trace: &Trace,
        forked: &BTreeSet<(u32, u32)>,
        cpu: u32,
        injections: &[(usize, &Injection)],
    ) -> Result<(), Unmatched> {
        let mut found = Vec::new();
        let role_of = |open| announced_spec(trace, open).map_or(Role::Other, spec_role);
        let raised = match trace.session.iter().any(|open| role_of(open) == Role::Nmi) {
            true => Role::Nmi,
            false => Role::Overflow,
        };
        for (open_index, open) in trace.session.iter().enumerate() {
            if role_of(open) != raised || open.cpu != cpu {
                continue;
            }
            let mut samples: Vec<&Event> = trace
                .events
                .iter()
                .filter(|e| e.event == Some(open_index) && matches!(e.kind, EventKind::Sample(_)))
                .collect();
            samples.sort_by_key(|e| e.position);
            if trace.events.iter().any(|e| e.ring == open.ring && loses(e)) {
                return Err(Unmatched::LossyRing { cpu });
            }
            if samples.len() != injections.len() {
                return Err(Unmatched::Number {
                    cpu,
                    samples: samples.len(),
                    injections: injections.len(),
                });
            }
            let mut shown = Shown::default();
            for (sample, &(index, injection)) in samples.into_iter().zip(injections) {
                let event = sample.index;
                let fits = shown.check(trace, forked, sample, injection);
                fits.map_err(|misfit| Unmatched::Sample {
                    event,
                    misfit,
                    injection: index,
                })?;
                found.push((event, index));
            }
            if shown.no > shown.yes {
                return Err(Unmatched::Instructions {
                    cpu,
                    shown: shown.yes,
                    total: shown.no + shown.yes,
                });
            }
        }
        if !found.is_empty() {
            self.matched.insert(cpu);
        }
        self.injections.extend(found);
        Ok(())
    }

    /// Learns the address of the NMI entry. Almost every matched sample shows the same one; an
    /// injection made inside the NMI handler, at what happens to be a return address, shows
    /// another.
    fn learn(&mut self, trace: &Trace) {
        let mut said: BTreeMap<u64, usize> = BTreeMap::new();
        for (&event, &injection) in &self.injections {
            let (Some(event), Some(injection)) =
                (trace.events.get(event), trace.injections.get(injection))
            else {
                continue;
            };
            if injection.cpl != 0 {
                continue;
            }
            let chain = event.kernel_chain();
            let at = chain.iter().position(|&ip| ip == injection.rip);
            if let Some(&entry) = at.and_then(|at| chain.get(at.checked_sub(1)?)) {
                *said.entry(entry).or_default() += 1;
            }
        }
        let total: usize = said.values().sum();
        let most = said.into_iter().max_by_key(|&(_, times)| times);
        self.nmi_entry = most
            .filter(|&(_, times)| 2 * times > total)
            .map(|(entry, _)| entry);
    }

    /// Index of the injection that raised the NMI in which the event was written.
    pub fn injection(&self, event: usize) -> Option<usize> {
        self.injections.get(&event).copied()
    }

    /// Whether each NMI that was injected into user mode left a sample: it is matched, or its CPU
    /// samples every NMI and nothing was lost.
    pub fn all_user_nmis(&self, trace: &Trace) -> bool {
        let of_nmis =
            |open| announced_spec(trace, open).is_some_and(|it| spec_role(it) == Role::Nmi);
        let lossless = trace.corrupt.is_empty() && !trace.events.iter().any(loses);
        let sampled = |cpu: u32| {
            let unmatched = self.unmatched.contains_key(&cpu);
            let open = trace.session.iter().any(|it| it.cpu == cpu && of_nmis(it));
            !unmatched && self.matched.contains(&cpu) || open && lossless
        };
        let user = trace.injections.iter().filter(|it| it.cpl == 3);
        { user }.all(|it| sampled(it.vcpu))
    }

    /// The kernel instruction that the NMI of a sample interrupted: the address after the NMI
    /// entry in its chain, where matched samples have shown which that is.
    pub fn interrupted(&self, event: &Event) -> Option<u64> {
        let entry = self.nmi_entry?;
        let mut chain = event.kernel_chain().iter();
        chain.find(|&&ip| ip == entry)?;
        chain.next().copied()
    }

    /// The reason that goes with "not exercised" of an invariant that needs matched injections.
    pub fn why_none(&self, trace: &Trace) -> String {
        if trace.injections.is_empty() {
            return "no injections".into();
        }
        let reasons: Vec<String> = self.unmatched.values().map(Unmatched::to_string).collect();
        if reasons.is_empty() {
            return "no injection of the kind it needs".into();
        }
        format!("injections not matched: {}", reasons.join(", "))
    }
}

/// Processes, each with the one that forked it.
fn forked(trace: &Trace) -> BTreeSet<(u32, u32)> {
    let forks = trace.events.iter().filter_map(|event| match event.kind {
        EventKind::Fork { pid, ppid, .. } if pid != ppid => Some((pid, ppid)),
        _ => None,
    });
    forks.collect()
}

/// Whether the injections of a CPU at a rate into the kernel show their instruction.
#[derive(Debug, Default)]
struct Shown {
    yes: usize,
    no: usize,
}

impl Shown {
    /// Whether a sample can be of this injection.
    fn check(
        &mut self,
        trace: &Trace,
        forked: &BTreeSet<(u32, u32)>,
        event: &Event,
        injection: &Injection,
    ) -> Result<(), Misfit> {
        let announced = injection
            .thread
            .and_then(|thread| trace.threads.iter().find(|t| t.thread == thread));
        if let Some(thread) = announced {
            // Threads that are made anew every iteration have no tid to compare.
            if thread.tid != 0 && event.tid.is_some_and(|tid| tid != thread.tid) {
                return Err(Misfit::Thread);
            }
            // Nor are processes that are made so the one that was announced: they are its children.
            let child = |pid| thread.tid == 0 && forked.contains(&(pid, thread.pid));
            if { event.pid }.is_some_and(|pid| pid != thread.pid && !child(pid)) {
                return Err(Misfit::Process);
            }
        }
        // The unwinder steps over the NMI's own frame and shows the interrupted address exactly
        // (arch/x86/kernel/unwind_orc.c, ORC_TYPE_REGS). It is missing where the chain was cut.
        let chain = event.kernel_chain();
        let limit = spec(trace, event).map_or(0, |spec| kernel_limit(trace, spec));
        let whole = !chain.is_empty() && chain.len() < limit;
        if injection.cpl != 0 || !whole {
            return Ok(());
        }
        match (chain.contains(&injection.rip), injection.thread) {
            (true, _) => self.yes += 1,
            (false, None) => self.no += 1,
            (false, Some(_)) => return Err(Misfit::Instruction),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::plan::EventSource;

    use super::*;
    use crate::invariant::testkit::{Kit, NMI_FRAMES, kernel, user};

    const C: u64 = 3 << 32 | 1;
    const RIP: u64 = 0xffff_ffff_8100_1234;

    #[test]
    fn in_order_per_cpu() {
        let mut kit = Kit::new(2);
        let a = kit.inject(0, 1001, C, user(0x1000));
        let b = kit.inject(1, 1002, C + 1, kernel(RIP));
        let c = kit.inject(0, 1001, C, user(0x1004));
        let matching = Matching::new(&kit.trace());
        assert_eq!(matching.injection(a), Some(0));
        assert_eq!(matching.injection(b), Some(1));
        assert_eq!(matching.injection(c), Some(2));
    }

    #[test]
    fn an_injection_into_a_process_of_an_iteration() {
        for (announced, forks, matches) in [(0, true, true), (0, false, false), (1001, true, false)]
        {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            if forks {
                kit.fork(0, 1001, 2002);
            }
            let at = kit.inject(0, 2002, C, user(0x1000).iteration(0, 1));
            let mut trace = kit.trace();
            trace.threads[0].tid = announced;
            let found = Matching::new(&trace).injection(at);
            assert_eq!(found.is_some(), matches, "{announced} {forks}");
        }
    }

    #[test]
    fn a_wrong_number_matches_nothing_on_that_cpu_only() {
        let mut kit = Kit::new(2);
        let a = kit.inject(0, 1001, C, user(0x1000));
        kit.nmi(0, 1001, C);
        let b = kit.inject(1, 1002, C + 1, user(0x1000));
        let trace = kit.trace();
        let matching = Matching::new(&trace);
        assert_eq!(matching.injection(a), None);
        assert_eq!(matching.injection(b), Some(1));
        assert!(matching.why_none(&trace).contains("2 NMI samples for 1"));
    }

    #[test]
    fn overflows_are_matched_where_no_sample_is_of_every_nmi() {
        let mut kit = Kit::new(1);
        kit.spec("nmi", |spec| spec.source = EventSource::Hardware(0));
        let a = kit.inject(0, 1001, C, user(0x1000));
        let b = kit.inject(0, 1001, C, kernel(RIP));
        let matching = Matching::new(&kit.trace());
        assert_eq!(matching.injection(a), Some(0));
        assert_eq!(matching.injection(b), Some(1));
        kit.nmi(0, 1001, C);
        let trace = kit.trace();
        assert_eq!(Matching::new(&trace).injection(a), None, "one too many");
    }

    #[test]
    fn a_lossy_ring_matches_nothing() {
        let mut kit = Kit::new(1);
        let a = kit.inject(0, 1001, C, user(0x1000));
        kit.lost(0, 1);
        assert_eq!(Matching::new(&kit.trace()).injection(a), None);
    }

    #[test]
    fn another_thread_or_instruction_matches_nothing() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        let a = kit.inject(0, 1002, C, user(0x1000).iteration(0, 1));
        assert_eq!(Matching::new(&kit.trace()).injection(a), None);

        let mut kit = Kit::new(1);
        let a = kit.inject(0, 1001, C, kernel(RIP).iteration(0, 1));
        let mut trace = kit.trace();
        trace.injections[0].rip += 1;
        assert_eq!(Matching::new(&trace).injection(a), None);
    }

    #[test]
    fn injections_into_the_handler_need_not_show_their_instruction_but_most_must() {
        let mut kit = Kit::new(1);
        let a = kit.inject(0, 1001, C, kernel(RIP));
        let b = kit.inject(0, 1001, C, kernel(RIP));
        let mut trace = kit.trace();
        trace.injections[1].rip = NMI_FRAMES[1];
        let matching = Matching::new(&trace);
        assert_eq!(matching.injection(b), Some(1));
        assert_eq!(matching.interrupted(&trace.events[b]), None, "a tie");

        trace.injections[1].rip = RIP + 1;
        let matching = Matching::new(&trace);
        assert_eq!(matching.injection(b), Some(1));
        assert_eq!(matching.interrupted(&trace.events[b]), Some(RIP));

        trace.injections[0].rip = RIP + 1;
        assert_eq!(Matching::new(&trace).injection(a), None);
    }

    #[test]
    fn the_nmi_entry_is_learned_from_matched_samples() {
        let mut kit = Kit::new(2);
        kit.inject(0, 1001, C, kernel(RIP));
        // Two samples for one injection: CPU 1 stays unmatched.
        let stray = kit.inject(1, 1002, C + 1, kernel(RIP + 8));
        kit.nmi(1, 1002, C + 1);
        let trace = kit.trace();
        let matching = Matching::new(&trace);
        assert_eq!(matching.injection(stray), None);
        assert_eq!(matching.interrupted(&trace.events[stray]), Some(RIP + 8));
    }
}
