//! A3: record 22 goes to every event that asked for it, and to no other.

use std::collections::{BTreeMap, BTreeSet};

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, announced_spec, asks_of_cpu, asks_of_process, spec};
use crate::trace::Trace;
use unwindlab_abi::message::EventAnnounce;

/// A3. The callback writes to every enabled event with `defer_output` of the CPU it runs on
/// (`perf_iterate_sb_cpu`, kernel/events/core.c, 7.2): k events get k copies, all on that CPU. No
/// other event gets one.
///
/// An event with `defer_output` and no other side-band bit gets its copy too. The kernel's own rule
/// for new records says so: "For new callers; ensure that account_pmu_sb_event() includes your
/// event, otherwise it might not get delivered" (`perf_iterate_sb`); the commit that brought the
/// record says on which event tools are expected to set the bit (c69993ecdd4d), not that another one
/// is to get nothing, and nothing refuses it. A loss around a missing copy excuses it (XA).
///
/// An event with `inherit_thread` gets those of the agent's threads, not those of a process that is
/// forked (`asks_of_process`); the CPU is then looked at as if it had no such event.
///
/// Evidence is a D of which two or more events of the CPU got their copy, or which a side-band
/// event of the CPU did not get that does not ask for it. Where a single event asks and no other
/// could get the D, there is no D to look at unless that event got it: it is undecided.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let mut of_cpu: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
    for (at, open) in askers(trace) {
        of_cpu.entry(open.cpu).or_default().insert(at);
    }
    for answer in &facts.answers {
        if spec(trace, answer.event).is_some_and(|spec| !spec.defer_output) {
            let cookie = answer.chain.cookie;
            let message = format!("an event that did not ask for it got record 22 of {cookie:#x}");
            tally.violated(message, [answer.event.index], None);
        }
    }
    for (cookie, exchange) in facts.cookies() {
        let mut got: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for answer in &exchange.answers {
            got.entry(answer.event.cpu).or_default().push(answer);
        }
        for (cpu, answers) in got {
            // Without the event of each copy nothing can be said.
            let all: Option<BTreeSet<usize>> = answers.iter().map(|a| a.event.event).collect();
            let (Some(all), Some(first)) = (all, answers.first()) else {
                continue;
            };
            let pid = answers.iter().find_map(|answer| answer.event.pid);
            let wanted = of_cpu.get(&cpu).into_iter().flatten().copied();
            let wanted: Vec<usize> = wanted.filter(|&at| gets(trace, at, pid)).collect();
            let missing = wanted.iter().filter(|at| !all.contains(at));
            let missing: Vec<usize> = missing.copied().collect();
            if missing.is_empty() {
                if wanted.len() > 1 || has_bystander(trace, cpu) {
                    tally.holds();
                } else {
                    tally.undecided("the CPU has one event that could get record 22");
                }
                continue;
            }
            let time = first.event.time;
            if let Some(why) = facts.losses.between(time, time) {
                tally.excuse(format!("cookie {cookie:#x}: {why}"));
                continue;
            }
            for at in missing {
                let id = trace.session.get(at).map_or(0, |open| open.id);
                let message =
                    format!("record 22 of {cookie:#x} did not go to event {id} on CPU {cpu}");
                tally.missing_copy(message, answers.iter().map(|a| a.event.index), at);
            }
        }
    }
}

/// Open events of a CPU that ask for record 22.
fn askers(trace: &Trace) -> impl Iterator<Item = (usize, &EventAnnounce)> {
    let open = trace.session.iter().enumerate();
    open.filter(|(_, open)| announced_spec(trace, open).is_some_and(asks_of_cpu))
}

/// Whether an open event asks for the records 22 of a process.
fn gets(trace: &Trace, at: usize, pid: Option<u32>) -> bool {
    let open = trace.session.get(at);
    let spec = open.and_then(|open| announced_spec(trace, open));
    spec.is_some_and(|spec| asks_of_process(trace, spec, pid))
}

/// Whether a side-band event of the CPU does not ask for record 22.
fn has_bystander(trace: &Trace, cpu: u32) -> bool {
    let mut open = trace.session.iter().filter(|open| open.cpu == cpu);
    open.any(|open| {
        announced_spec(trace, open).is_some_and(|spec| {
            let side_band = spec.task || spec.comm || spec.mmap || spec.context_switch;
            side_band && !spec.defer_output
        })
    })
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::attr::flag;
    use unwindlab_abi::plan::EventSource;

    use crate::invariant::testkit::{Kit, holds, not_exercised, spec, violated, violations};

    const C: u64 = 3 << 32 | 1;

    fn second() -> unwindlab_abi::plan::EventSpec {
        unwindlab_abi::plan::EventSpec {
            defer_output: true,
            task: true,
            ..spec("second", EventSource::Dummy)
        }
    }

    #[test]
    fn a_copy_for_each_holds() {
        let mut kit = Kit::new(1);
        let at = kit.open(second());
        kit.deferred(0, 1001, C, &[0x40]);
        kit.deferred_to(at, 0, 1001, C, &[0x40]);
        assert_eq!(holds("A3", &kit).0, 1);
    }

    #[test]
    fn a_missing_copy_does_not() {
        let mut kit = Kit::new(2);
        let at = kit.open(second());
        kit.deferred(0, 1001, C, &[0x40]);
        kit.deferred_to(at, 1, 1001, C, &[0x40]);
        assert_eq!(violations("A3", &kit).len(), 2);
    }

    #[test]
    fn a_copy_for_another_event_does_not() {
        let mut kit = Kit::new(1);
        kit.deferred(0, 1001, C, &[0x40]);
        let at = kit.deferred_to(1, 0, 1001, C, &[0x40]);
        assert_eq!(violations("A3", &kit)[0].events, [at]);
    }

    #[test]
    fn an_event_without_another_side_band_bit_gets_its_copy_too() {
        let mut kit = Kit::new(1);
        let spec = unwindlab_abi::plan::EventSpec {
            task: false,
            ..second()
        };
        let at = kit.open(spec);
        kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(violations("A3", &kit)[0].receiver, usize::try_from(at).ok());
        kit.deferred_to(at, 0, 1001, C, &[0x40]);
        assert_eq!(holds("A3", &kit).0, 1);
    }

    /// The copy of a thread, and of a process that it forks, if the second event has the flag or not.
    #[test]
    fn an_event_of_threads_gets_nothing_of_a_forked_process() {
        for (set, tid, fails) in [
            (0, 1001, true),
            (0, 2001, true),
            (flag::INHERIT_THREAD, 1001, true),
            (flag::INHERIT_THREAD, 2001, false),
        ] {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            let mut spec = second();
            spec.inherit = true;
            spec.details.set |= set;
            let at = kit.open(spec);
            kit.deferred(0, tid, C, &[0x40]);
            let missing = violated("A3", &kit.trace());
            assert_eq!(!missing.is_empty(), fails, "{set:#x} {tid}");
            kit.deferred_to(at, 0, tid, C, &[0x40]);
            assert!(violated("A3", &kit.trace()).is_empty());
        }
    }

    /// A kernel that writes to the first event only, or to all that it can, shows this too.
    #[test]
    fn a_single_event_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.deferred(0, 1001, C, &[0x40]);
        assert!(not_exercised("A3", &kit).contains("1 undecided"));
    }

    #[test]
    fn a_loss_where_the_copy_should_be_excuses() {
        let mut kit = Kit::new(1);
        kit.open(second());
        kit.deferred(0, 1001, C, &[0x40]);
        kit.lost(0, 1);
        assert!(not_exercised("A3", &kit).contains("XA"));
    }

    /// A kernel that writes each record 22 to all of them would have written it there.
    #[test]
    fn a_side_band_event_that_does_not_ask_and_gets_nothing_is_evidence() {
        type Change = fn(&mut unwindlab_abi::plan::EventSpec);
        let beside = |change: Change, closed: Option<u32>| {
            let mut kit = Kit::new(2);
            kit.open(spec("beside", EventSource::Dummy));
            kit.spec("beside", change);
            if let Some(cpu) = closed {
                kit.close(cpu, "beside");
            }
            kit.nmi(0, 1001, C);
            kit.deferred(0, 1001, C, &[0x40]);
            kit
        };
        let changes: [Change; 4] = [
            |spec| spec.task = true,
            |spec| spec.comm = true,
            |spec| spec.mmap = true,
            |spec| spec.context_switch = true,
        ];
        for change in changes {
            assert_eq!(holds("A3", &beside(change, None)).0, 1);
            assert_eq!(holds("A3", &beside(change, Some(1))).0, 1);
            not_exercised("A3", &beside(change, Some(0)));
        }
        not_exercised("A3", &beside(|_| (), None));
    }
}
