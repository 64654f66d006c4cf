//! Which task an event speaks of.
//!
//! A tid is not a task: the kernel reuses it after an exit, and a thread that is not the leader
//! takes over the leader's tid when it calls exec (fs/exec.c, `de_thread`). Fork and exit records
//! tell one life of a tid from the next. Where they do not suffice, the event has no task, and
//! invariants about tasks skip it.

use std::collections::BTreeMap;

use super::role::{Role, role, spec_number};
use crate::trace::{Event, EventKind, Trace};

/// One life of a tid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Task {
    /// Thread id as the events' pid namespace has it.
    pub tid: u32,
    /// How many forks into this tid the trace shows before.
    pub life: u32,
}

/// tid 0 is the idle task of every CPU at once. perf writes -1 for a task that has already left the
/// pid hash (kernel/events/core.c, `perf_event_pid_type`).
const NOBODY: [u32; 2] = [0, u32::MAX];

/// The lives of all tids in a trace.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    /// By tid: the event from which a life lasts; the life is `None` where it is not known.
    lives: BTreeMap<u32, Vec<(usize, Option<u32>)>>,
    /// Some records have a time. The others have no place among them.
    timed: bool,
    /// Exit records by task, in order: one of each event that asked for them.
    exits: BTreeMap<Task, Vec<usize>>,
}

#[derive(Debug, Clone, Copy)]
enum Mark {
    /// By the event of this spec: each event that asked for them writes one.
    Forked(Option<u32>),
    /// By the event of this spec: each event that asked for them writes one.
    Exited(Option<u32>),
    /// A record that no task writes after its own exit record.
    Alive,
}

impl Tasks {
    pub fn new(trace: &Trace) -> Self {
        let mut marks: BTreeMap<u32, Vec<(usize, Mark)>> = BTreeMap::new();
        let timed = trace.events.iter().any(|event| event.time.is_some());
        // A record without a time has no place among those of other rings (perf_event_open(2):
        // without `sample_id_all` or `PERF_SAMPLE_TIME` it says none).
        for event in trace.events.iter().filter(|it| it.time.is_some() || !timed) {
            if let Some((tid, mark)) = mark_of(trace, event) {
                marks.entry(tid).or_default().push((event.index, mark));
            }
        }
        let mut tasks = Self {
            timed,
            ..Self::default()
        };
        for (tid, list) in marks {
            tasks.live(tid, &list);
        }
        tasks
    }

    fn live(&mut self, tid: u32, marks: &[(usize, Mark)]) {
        let mut spans = vec![(0, Some(0))];
        let mut life = 0;
        let mut forks: BTreeMap<Option<u32>, u32> = BTreeMap::new();
        let mut exited: Option<(usize, Option<u32>)> = None;
        for &(index, mark) in marks {
            match (mark, exited) {
                (Mark::Forked(by), _) => {
                    let forks = forks.entry(by).or_insert(0);
                    *forks += 1;
                    // The same fork, as another event wrote it.
                    if *forks <= life {
                        continue;
                    }
                    life += 1;
                    exited = None;
                    spans.push((index, Some(life)));
                }
                (Mark::Exited(by), None) => {
                    exited = Some((index, by));
                    self.exits.insert(Task { tid, life }, vec![index]);
                }
                // The same exit, as another event wrote it.
                (Mark::Exited(by), Some((_, first))) if by != first => {
                    let copies = self.exits.entry(Task { tid, life }).or_default();
                    copies.push(index);
                }
                // The tid lives on after its exit without a fork: an exec took it over at some
                // moment after the exit record. Nothing tells the owners apart from there on. The
                // exit record remains the end of the first owner.
                (Mark::Exited(_) | Mark::Alive, Some((exit, _))) => {
                    if spans.last() != Some(&(exit + 1, None)) {
                        spans.push((exit + 1, None));
                    }
                }
                (Mark::Alive, None) => {}
            }
        }
        self.lives.insert(tid, spans);
    }

    /// The task that `event` speaks of (the parent of a fork record).
    pub fn of(&self, event: &Event) -> Option<Task> {
        match self.timed && event.time.is_none() {
            true => self.without_time(event.tid?),
            false => self.at(event.tid?, event.index),
        }
    }

    /// The only life of a tid, if it has just one.
    fn without_time(&self, tid: u32) -> Option<Task> {
        if NOBODY.contains(&tid) {
            return None;
        }
        let first = Task { tid, life: 0 };
        match self.lives.get(&tid).map(Vec::as_slice) {
            None | Some([_]) => Some(first),
            // It began with a fork, unless an earlier task of the tid exited.
            Some([_, (_, Some(1))]) if self.exit(first).is_none() => Some(Task { tid, life: 1 }),
            _ => None,
        }
    }

    fn at(&self, tid: u32, index: usize) -> Option<Task> {
        if NOBODY.contains(&tid) {
            return None;
        }
        let life = match self.lives.get(&tid) {
            None => Some(0),
            Some(spans) => {
                let next = spans.partition_point(|&(from, _)| from <= index);
                spans.get(next.checked_sub(1)?)?.1
            }
        };
        life.map(|life| Task { tid, life })
    }

    /// The task that a fork record creates.
    pub fn child(&self, event: &Event) -> Option<Task> {
        match event.kind {
            EventKind::Fork { tid, .. } => self.at(tid, event.index),
            _ => None,
        }
    }

    /// Index of the task's exit record, the first of several copies.
    pub fn exit(&self, task: Task) -> Option<usize> {
        self.exits(task).first().copied()
    }

    /// Indexes of the exit records of all lives of a tid.
    pub fn exits_of(&self, tid: u32) -> impl Iterator<Item = usize> {
        let lives = Task { tid, life: 0 }..=Task {
            tid,
            life: u32::MAX,
        };
        let lives = self.exits.range(lives);
        lives.flat_map(|(_, exits)| exits.iter().copied())
    }

    /// Indexes of all copies of the task's exit record. perf writes them one after the other
    /// (`perf_event_task`, kernel/events/core.c), so each of them tells what comes behind the exit.
    pub fn exits(&self, task: Task) -> &[usize] {
        self.exits.get(&task).map_or(&[], Vec::as_slice)
    }
}

fn mark_of(trace: &Trace, event: &Event) -> Option<(u32, Mark)> {
    let by = || spec_number(trace, event);
    match &event.kind {
        EventKind::Fork { tid, .. } => Some((*tid, Mark::Forked(by()))),
        EventKind::Exit { tid, .. } => Some((*tid, Mark::Exited(by()))),
        EventKind::Comm { .. } => Some((event.tid?, Mark::Alive)),
        EventKind::Sample(_) => match role(trace, event) {
            Role::SyscallEnter | Role::SyscallExit => Some((event.tid?, Mark::Alive)),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::{Kit, spec};
    use unwindlab_abi::plan::EventSource;

    #[test]
    fn a_fork_starts_a_new_life() {
        let mut kit = Kit::new(1);
        let first = kit.nmi(0, 1001, 0x3_0000_0001);
        kit.exit(0, 1001);
        let flushed = kit.deferred(0, 1001, 0x3_0000_0001, &[0x40]);
        kit.fork(0, 1000, 1001);
        let second = kit.nmi(0, 1001, 0x5_0000_0001);
        let trace = kit.trace();
        let tasks = Tasks::new(&trace);
        let of = |index: usize| tasks.of(&trace.events[index]);
        assert_eq!(of(first), of(flushed));
        assert_eq!(of(first), Some(Task { tid: 1001, life: 0 }));
        assert_eq!(of(second), Some(Task { tid: 1001, life: 1 }));
    }

    #[test]
    fn a_tid_taken_over_by_exec_has_no_task() {
        let mut kit = Kit::new(1);
        let first = kit.nmi(0, 1000, 0x3_0000_0001);
        kit.exit(0, 1000);
        let second = kit.nmi(0, 1000, 0x5_0000_0001);
        kit.sys_exit(0, 1000);
        let trace = kit.trace();
        let tasks = Tasks::new(&trace);
        assert!(tasks.of(&trace.events[first]).is_some());
        assert_eq!(tasks.of(&trace.events[second]), None);
    }

    #[test]
    fn two_copies_of_an_exit_record_are_one_exit() {
        let mut kit = Kit::new(1);
        let first = kit.exit(0, 1001);
        let copy = kit.trace().events[first].kind.clone();
        kit.push(0, 1001, 1, copy.clone());
        let flushed = kit.deferred(0, 1001, 0x3_0000_0001, &[0x40]);
        let trace = kit.trace();
        let tasks = Tasks::new(&trace);
        let task = tasks.of(&trace.events[flushed]);
        assert_eq!(task.and_then(|task| tasks.exit(task)), Some(first));

        // The same event writes a second one only for a second owner.
        kit.push(0, 1001, 0, copy);
        let trace = kit.trace();
        assert_eq!(Tasks::new(&trace).of(&trace.events[flushed]), None);
    }

    #[test]
    fn idle_and_the_unhashed_are_nobody() {
        let mut kit = Kit::new(1);
        let idle = kit.nmi(0, 0, 1);
        let gone = kit.nmi(0, u32::MAX, 1);
        let trace = kit.trace();
        let tasks = Tasks::new(&trace);
        assert_eq!(tasks.of(&trace.events[idle]), None);
        assert_eq!(tasks.of(&trace.events[gone]), None);
    }

    fn lives(trace: &Trace) -> Vec<Option<u32>> {
        let tasks = Tasks::new(trace);
        { trace.events.iter() }
            .map(|event| tasks.of(event).map(|task| task.life))
            .collect()
    }

    /// As an exec takes the tid over at some moment behind the exit record.
    #[test]
    fn behind_an_exit_that_a_tid_lives_through_nobody_is_known() {
        let mut kit = Kit::new(1);
        kit.kernel_only(0, 1001);
        kit.kernel_only(0, 1001);
        kit.exit(0, 1001);
        kit.kernel_only(0, 1001);
        kit.exec(0, 1001);
        kit.kernel_only(0, 1001);
        let known = Some(0);
        assert_eq!(lives(&kit.trace()), [known, known, known, None, None, None]);
    }

    #[test]
    fn a_fork_that_two_events_wrote_is_one() {
        let mut kit = Kit::new(1);
        let copy = kit.open(spec("copy", EventSource::Dummy));
        for _ in 0..2 {
            kit.fork(0, 1000, 1001);
            let fork = kit.trace().events.last().unwrap().kind.clone();
            kit.push(0, 1000, copy, fork);
            kit.kernel_only(0, 1001);
        }
        let found = lives(&kit.trace());
        assert_eq!((found[2], found[5]), (Some(1), Some(2)));
    }

    /// It has no place among the forks and exits.
    #[test]
    fn a_record_without_a_time_is_of_the_only_life_of_its_tid() {
        let of = |marks: &[fn(&mut Kit)]| {
            let mut kit = Kit::new(1);
            kit.kernel_only(0, 1002);
            marks.iter().for_each(|mark| mark(&mut kit));
            let at = kit.kernel_only(0, 1001);
            let mut trace = kit.trace();
            trace.events[at].time = None;
            lives(&trace)[at]
        };
        let fork: fn(&mut Kit) = |kit| {
            kit.fork(0, 1000, 1001);
        };
        let exit: fn(&mut Kit) = |kit| {
            kit.exit(0, 1001);
        };
        assert_eq!(of(&[]), Some(0));
        assert_eq!(of(&[exit]), Some(0));
        assert_eq!(of(&[fork]), Some(1));
        assert_eq!(of(&[fork, exit]), Some(1));
        assert_eq!(of(&[exit, fork]), None);
        assert_eq!(of(&[fork, exit, fork]), None);
    }
}
