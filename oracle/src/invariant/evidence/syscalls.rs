//! The system calls of every task, by their markers.

use std::collections::BTreeMap;

use super::losses::Losses;
use super::order::{NESTING, before};
use super::role::{Role, role, spec_number};
use super::tasks::{Task, Tasks};
use crate::invariant::limit::step;
use crate::trace::model::Sample;
use crate::trace::{Event, EventKind, Trace};
use unwindlab_abi::plan::LEAF_CALLS;

/// A record at a known place in a system call.
#[derive(Debug, Clone, Copy)]
struct Marker {
    index: usize,
    enter: bool,
}

/// A `sys_enter` and the `sys_exit` that followed it, with nothing lost between.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bracket {
    pub task: Task,
    pub enter: usize,
    pub exit: usize,
}

/// The system calls of every task.
#[derive(Debug, Default)]
pub(crate) struct Syscalls {
    markers: BTreeMap<Task, Vec<Marker>>,
    brackets: BTreeMap<Task, Vec<Bracket>>,
}

impl Syscalls {
    pub fn new(trace: &Trace, tasks: &Tasks, losses: &Losses) -> Self {
        let mut markers: BTreeMap<Task, Vec<Marker>> = BTreeMap::new();
        // By task: the events that have shown the marker at hand, each the same on every CPU.
        let mut shown: BTreeMap<Task, (bool, Vec<Option<u32>>)> = BTreeMap::new();
        for event in &trace.events {
            let enter = match role(trace, event) {
                Role::SyscallEnter => true,
                Role::SyscallExit => false,
                _ => continue,
            };
            // A record without a time has no place among those of other rings. In a recording, markers of other
            // CPUs may be missing before all were on, and after.
            let placed = event
                .time
                .is_some_and(|time| trace.recorded.is_none_or(|it| it.is_whole(time)));
            let Some(task) = tasks.of(event).filter(|_| placed) else {
                continue;
            };
            // Several events at a tracepoint show one system call several times.
            let (of_enter, by) = shown.entry(task).or_default();
            let spec = spec_number(trace, event);
            if *of_enter == enter && !by.is_empty() && !by.contains(&spec) {
                by.push(spec);
                continue;
            }
            (*of_enter, *by) = (enter, vec![spec]);
            let index = event.index;
            markers
                .entry(task)
                .or_default()
                .push(Marker { index, enter });
        }
        let brackets = brackets(trace, losses, &markers);
        Self { markers, brackets }
    }

    /// The system calls of which both ends are known, by task and in order.
    pub fn brackets(&self) -> impl Iterator<Item = &Bracket> {
        self.brackets.values().flatten()
    }

    /// The system call in which a record of `task` was certainly written.
    pub fn around(&self, trace: &Trace, task: Task, event: &Event) -> Option<Bracket> {
        step();
        let list = self.brackets.get(&task)?;
        let next = list.partition_point(|b| b.enter < event.index);
        // The record may nest in the writing of the marker and be just before it in time.
        let near = list.get(next.saturating_sub(1)..)?.iter().take(2);
        near.copied().find(|bracket| {
            let ends = (
                trace.events.get(bracket.enter),
                trace.events.get(bracket.exit),
            );
            matches!(ends, (Some(a), Some(b)) if before(a, event) && before(event, b))
        })
    }

    /// How many system calls of `task` begin between two records.
    pub fn begun_between(&self, task: Task, first: &Event, second: &Event) -> usize {
        let list = self.markers.get(&task).map_or(&[][..], Vec::as_slice);
        let [from, to] = [first, second].map(|it| list.partition_point(|m| m.index <= it.index));
        let between = list.get(from..to).unwrap_or_default().iter();
        between.filter(|it| it.enter).count()
    }

    /// Whether a system call is the one that the leaf of a thread's stack is known by. Some leaves
    /// make others before and after it, which return elsewhere.
    pub fn is_of_leaf(trace: &Trace, bracket: Bracket) -> bool {
        // The fields of every tracepoint come first, then the number
        // (`raw_syscalls/sys_enter/format`).
        const NUMBER: std::ops::Range<usize> = 8..16;
        let enter = trace.events.get(bracket.enter).map(|it| &it.kind);
        let Some(EventKind::Sample(Sample { raw: Some(raw), .. })) = enter else {
            return false;
        };
        let number = raw.get(NUMBER).and_then(|it| it.try_into().ok());
        number.is_some_and(|it| LEAF_CALLS.contains(&u64::from_le_bytes(it)))
    }

    /// Whether the last marker of `task` is a `sys_enter` before `event`: as far as the trace
    /// shows, the task is still in that system call.
    pub fn in_last_syscall(&self, task: Task, event: &Event) -> bool {
        let last = self.markers.get(&task).and_then(|list| list.last());
        last.is_some_and(|marker| marker.enter && marker.index < event.index)
    }

    /// What lies between two records of `task` for certain, the first being earlier.
    pub fn between(&self, trace: &Trace, task: Task, first: &Event, second: &Event) -> Passed {
        let mut passed = Passed::default();
        let Some(list) = self.markers.get(&task) else {
            return passed;
        };
        let from = list.partition_point(|marker| marker.index <= first.index);
        let mut seen: Option<Marker> = None;
        for marker in list.get(from.saturating_sub(NESTING)..).unwrap_or_default() {
            if marker.index > second.index.saturating_add(NESTING) {
                break;
            }
            let event = trace.events.get(marker.index);
            if !event.is_some_and(|event| before(first, event) && before(event, second)) {
                continue;
            }
            let of_kind = if marker.enter {
                &mut passed.enter
            } else {
                &mut passed.exit
            };
            of_kind.get_or_insert(marker.index);
            match seen {
                None => seen = Some(*marker),
                // Between the two, or before a `sys_exit` and after the one before, the task
                // executed `syscall`.
                Some(first) if marker.enter || !first.enter || passed.calls => {
                    passed.apart = Some([first.index, marker.index]);
                    break;
                }
                Some(_) => passed.calls = true,
            }
        }
        passed
    }
}

/// The markers between two records of a task.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// Two that prove user instructions.
    pub apart: Option<[usize; 2]>,
    /// A `sys_enter`.
    pub enter: Option<usize>,
    /// A `sys_exit`.
    pub exit: Option<usize>,
    /// A `sys_enter` and then its `sys_exit`.
    calls: bool,
}

fn brackets(
    trace: &Trace,
    losses: &Losses,
    markers: &BTreeMap<Task, Vec<Marker>>,
) -> BTreeMap<Task, Vec<Bracket>> {
    let mut found: BTreeMap<Task, Vec<Bracket>> = BTreeMap::new();
    for (&task, list) in markers {
        for pair in list.windows(2) {
            let [a, b] = pair else { continue };
            let (Some(enter), Some(exit)) = (trace.events.get(a.index), trace.events.get(b.index))
            else {
                continue;
            };
            let whole = a.enter && !b.enter && before(enter, exit);
            if whole && losses.between(enter.time, exit.time).is_none() {
                found.entry(task).or_default().push(Bracket {
                    task,
                    enter: a.index,
                    exit: b.index,
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use unwindlab_abi::plan::EventSpec;

    use crate::invariant::evidence::Facts;
    use crate::invariant::testkit::{Kit, spec, tracepoint};

    const C: u64 = 3 << 32 | 1;

    /// A tracer at `sys_enter` that receives record 22 too: only its samples are markers.
    #[test]
    fn a_record_22_of_an_event_at_a_tracepoint_is_no_marker() {
        let mut kit = Kit::new(1);
        let session = kit.open(EventSpec {
            sample_period: 1,
            defer_callchain: true,
            defer_output: true,
            ..spec("session", tracepoint("raw_syscalls", "sys_enter"))
        });
        kit.sys_enter(0, 1001);
        let asked = kit.asks_in(session, 0, 1001, C, &[]);
        kit.sys_exit(0, 1001);
        kit.deferred_to(session, 0, 1001, C, &[0x40]);
        let answered = kit.deferred(0, 1001, C, &[0x40]);
        kit.sys_enter(0, 1001);
        let trace = kit.trace();
        let facts = Facts::new(&trace, None);
        let (asked, answered) = (&trace.events[asked], &trace.events[answered]);
        assert!(facts.separated(asked, answered).is_none());
    }

    /// Two tracers at `sys_enter`: the second one's record is no second system call.
    #[test]
    fn two_events_at_a_tracepoint_are_one_marker() {
        let mut kit = Kit::new(1);
        let twin = kit.open(EventSpec {
            sample_period: 1,
            ..spec("twin", tracepoint("raw_syscalls", "sys_enter"))
        });
        let first = kit.nmi(0, 1001, C);
        kit.sys_enter(0, 1001);
        kit.sample(0, 1001, twin, Vec::new());
        let second = kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        kit.sys_enter(0, 1001);
        let third = kit.nmi(0, 1001, C);
        let trace = kit.trace();
        let facts = Facts::new(&trace, None);
        let apart = |a: usize, b: usize| {
            facts
                .separated(&trace.events[a], &trace.events[b])
                .is_some()
        };
        assert!(!apart(first, second));
        assert!(apart(second, third));
    }

    /// One event on two CPUs shows two system calls, not one twice.
    #[test]
    fn the_same_marker_on_another_cpu_is_no_copy() {
        let mut kit = Kit::new(2);
        let asked = kit.nmi(0, 1001, C);
        kit.sys_enter(0, 1001);
        kit.sys_enter(1, 1001);
        let answered = kit.deferred(1, 1001, C, &[0x40]);
        let trace = kit.trace();
        let facts = Facts::new(&trace, None);
        let (asked, answered) = (&trace.events[asked], &trace.events[answered]);
        assert!(facts.separated(asked, answered).is_some());
    }
}
