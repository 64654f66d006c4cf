//! The system calls of every task, by their markers.

use std::collections::BTreeMap;

use super::losses::Losses;
use super::order::before;
use super::role::{Role, role};
use super::tasks::{Task, Tasks};
use crate::trace::{Event, Trace};

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
        for event in &trace.events {
            let enter = match role(trace, event) {
                Role::SyscallEnter => true,
                Role::SyscallExit => false,
                _ => continue,
            };
            if let Some(task) = tasks.of(event) {
                let index = event.index;
                markers
                    .entry(task)
                    .or_default()
                    .push(Marker { index, enter });
            }
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

    /// Whether the task has markers at all, so that a separation would show.
    pub fn has_markers(&self, task: Task) -> bool {
        self.markers.contains_key(&task)
    }

    /// Whether the last marker of `task` is a `sys_enter` before `event`: as far as the trace
    /// shows, the task is still in that system call.
    pub fn in_last_syscall(&self, task: Task, event: &Event) -> bool {
        let last = self.markers.get(&task).and_then(|list| list.last());
        last.is_some_and(|marker| marker.enter && marker.index < event.index)
    }

    /// The two markers of `task` between two of its records that prove user instructions.
    pub fn markers_between(
        &self,
        trace: &Trace,
        task: Task,
        first: &Event,
        second: &Event,
    ) -> Option<[usize; 2]> {
        let list = self.markers.get(&task)?;
        let from = list.partition_point(|marker| marker.index <= first.index);
        let mut inside = list.get(from..)?.iter().filter(|marker| {
            let event = trace.events.get(marker.index);
            event.is_some_and(|event| before(first, event))
        });
        let a = inside.next()?;
        let b = inside.find(|marker| marker.enter)?;
        let last = trace.events.get(b.index)?;
        before(last, second).then_some([a.index, b.index])
    }
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
