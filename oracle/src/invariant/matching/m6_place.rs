//! M6: the answer is written on the CPU on which the task leaves.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, loses, spec};
use crate::trace::{Event, EventKind, Trace};

/// Whether the event that wrote a record is one of all tasks of a CPU. One of some tasks writes
/// nothing when others come.
fn is_of_cpu(trace: &Trace, event: &Event) -> bool {
    spec(trace, event).is_none_or(|spec| {
        spec.details.target == unwindlab_abi::EventTarget::Usual && !spec.inherit
    })
}

/// Who runs on a CPU according to an event.
#[derive(Clone, Copy)]
struct Current {
    switch: usize,
    tid: u32,
}

/// M6. The callback runs in the task on its way out, and `perf_iterate_sb_cpu`
/// (kernel/events/core.c, 7.2) writes to the events of the CPU it runs on. So the D is in the ring
/// of the CPU on which the task runs at that moment: the last switch record before it in that ring
/// must have put this very task on the CPU. This needs `context_switch` on the event that receives: it
/// must have written the switch record itself. Another one of the same ring may have been turned
/// off since, and then writes nothing (perf_event_open(2), `PERF_EVENT_IOC_DISABLE`).
/// A loss between the two records leaves it open, and so does an exec that changed the tid.
///
/// A7 judges whether the event is one of that CPU's.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let mut rings: BTreeMap<u32, Vec<&Event>> = BTreeMap::new();
    for event in &trace.events {
        rings.entry(event.ring).or_default().push(event);
    }
    for ring in rings.values_mut() {
        ring.sort_by_key(|e| e.position);
        let mut current: BTreeMap<Option<usize>, Current> = BTreeMap::new();
        for event in ring.iter() {
            match &event.kind {
                EventKind::Switch { .. } if !is_of_cpu(trace, event) => {}
                EventKind::Switch { .. } => match switched(event) {
                    Some(runs) => drop(current.insert(event.event, runs)),
                    None => drop(current.remove(&event.event)),
                },
                _ if loses(event) => current.clear(),
                EventKind::CallchainDeferred(chain) => {
                    let (Some(runs), Some(tid)) = (current.get(&event.event), event.tid) else {
                        continue;
                    };
                    let switch = trace.events.get(runs.switch);
                    if runs.tid == tid {
                        tally.holds();
                        continue;
                    }
                    if switch.is_some_and(|switch| facts.exec_between(switch, event)) {
                        continue;
                    }
                    let message = format!(
                        "record 22 with cookie {:#x} of task {tid} was written on CPU {} while task {} ran there",
                        chain.cookie, event.cpu, runs.tid
                    );
                    let asked = facts.exchanges.get(&chain.cookie);
                    let asked = asked.and_then(|x| x.requests.last());
                    let instruction = asked.and_then(|r| facts.instruction(r.event));
                    tally.violated(message, [runs.switch, event.index], instruction);
                }
                _ => {}
            }
        }
    }
}

/// The task that a switch record leaves on the CPU. perf writes the outgoing record in the old
/// task before the switch and the incoming one in the new task after it; a CPU-wide outgoing
/// record names the next task.
fn switched(event: &Event) -> Option<Current> {
    let tid = match event.kind {
        EventKind::Switch { out: false, .. } => event.tid?,
        EventKind::Switch { other, .. } => other?.1,
        _ => return None,
    };
    Some(Current {
        switch: event.index,
        tid,
    })
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::plan::EventSource;

    use crate::invariant::testkit::{Kit, holds, not_exercised, spec, violations};
    use crate::trace::EventKind;

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn on_the_cpu_that_it_moved_to_holds() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, C);
        kit.switch_out(0, 1001);
        kit.switch_in(1, 1001);
        kit.deferred(1, 1001, C, &[0x40]);
        assert_eq!(holds("M6", &kit).0, 1);
    }

    #[test]
    fn where_another_task_runs_does_not() {
        let mut kit = Kit::new(2);
        let switch = kit.switch_in(0, 1002);
        let wrong = kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(violations("M6", &kit)[0].events, [switch, wrong]);
    }

    /// The event that wrote the switch records may have been turned off since.
    #[test]
    fn switch_records_of_another_event_do_not_say_who_runs() {
        let mut kit = Kit::new(1);
        let other = kit.open(spec("other", EventSource::Dummy));
        kit.switch_in(0, 1002);
        kit.deferred_to(other, 0, 1001, C, &[0x40]);
        not_exercised("M6", &kit);
    }

    #[test]
    fn an_event_of_some_tasks_does_not_say_who_runs() {
        let mut kit = Kit::new(1);
        kit.spec("track", |spec| spec.inherit = true);
        kit.switch_in(0, 1002);
        kit.deferred(0, 1001, C, &[0x40]);
        not_exercised("M6", &kit);
    }

    #[test]
    fn without_a_switch_record_or_behind_a_loss_it_is_not_exercised() {
        let mut kit = Kit::new(2);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.switch_in(1, 1002);
        kit.lost(1, 1);
        kit.deferred(1, 1001, C, &[0x40]);
        kit.switch_out(0, 1001);
        kit.deferred(0, 1001, C, &[0x40]);
        not_exercised("M6", &kit);
    }

    /// A record that is written for the whole CPU, of a task that goes, names the one that comes.
    #[test]
    fn a_cpu_wide_switch_names_the_next_task() {
        let answered_by = |tid| {
            let mut kit = Kit::new(1);
            kit.nmi(0, tid, C);
            let switch = EventKind::Switch {
                out: true,
                preempt: false,
                other: Some((1000, 1001)),
            };
            kit.push(0, 1003, 0, switch);
            kit.deferred(0, tid, C, &[0x40]);
            kit
        };
        assert_eq!(holds("M6", &answered_by(1001)).0, 1);
        violations("M6", &answered_by(1002));
    }
}
