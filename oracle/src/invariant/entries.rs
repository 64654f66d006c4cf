//! What the trace proves about kernel entries. A cookie alone is never the proof.
//!
//! A trace has no record of the return to user mode. That user instructions ran between two
//! records of a task, or that none did, is proved by one of these:
//!
//! * The `raw_syscalls` markers. `sys_enter` is written once near the start of a system call,
//!   `sys_exit` once after its body and before the exit work (include/linux/entry-common.h,
//!   `syscall_exit_work`). Between a `sys_exit` and the next `sys_enter` of a task, or between
//!   two `sys_enter`, a `syscall` instruction was executed in user mode. Between a `sys_enter`
//!   and the `sys_exit` that follows it none was.
//! * The injection log (see [`super::matching`]). A workload thread begins an iteration in user
//!   mode. And two injections of one line of the scenario in one iteration of a thread are made
//!   at one arrival at one kernel instruction: the handler of the first returned to it, and it
//!   had not been executed when the second came. (A D of the task between them shows that it was
//!   executed after all; then nothing is proved.)
//! * The answer. It is written on the way out of the entry that it was asked for in (that it is,
//!   M1 and S4 check), so between S(c) and D(c) the task did not leave, and other requests
//!   meanwhile are of that entry. An S(c) in user mode, or behind the exit path's reset, is
//!   followed by the self-IPI's entry at once, which has the same cookie.
//!
//! The window after the exit path's reset, in which a request may get a new cookie, lies behind
//! `sys_exit`, so no bracket of markers holds it; and no reset is done while an answer is
//! pending. An arrival may lie in it, but then all its requests are made in the same state.

use std::collections::BTreeMap;

use super::excuse::Losses;
use super::facts::{Facts, NESTING, Request, Role, before, role};
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
pub(super) struct Bracket {
    pub task: Task,
    pub enter: usize,
    pub exit: usize,
}

/// The system calls of every task.
#[derive(Debug, Default)]
pub(super) struct Entries {
    markers: BTreeMap<Task, Vec<Marker>>,
    brackets: BTreeMap<Task, Vec<Bracket>>,
}

/// Why two records of a task are known to be of different entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Separation {
    /// For the message.
    pub why: String,
    /// The marker records that show it.
    pub events: Vec<usize>,
}

/// Records that are known to be of one entry.
#[derive(Debug)]
pub(super) struct OneEntry<'t> {
    pub requests: Vec<Request<'t>>,
    /// For the message.
    pub why: String,
    /// The marker records that show it.
    pub events: Vec<usize>,
}

impl Entries {
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

    /// Whether a record is such a marker.
    pub fn is_marker(trace: &Trace, event: &Event) -> bool {
        matches!(role(trace, event), Role::SyscallEnter | Role::SyscallExit)
    }

    /// Whether the last marker of `task` before `event` is a `sys_enter`, and no marker follows:
    /// as far as the trace goes, the task is still in that system call.
    pub fn in_last_syscall(&self, task: Task, event: &Event) -> bool {
        let last = self.markers.get(&task).and_then(|list| list.last());
        last.is_some_and(|marker| marker.enter && marker.index < event.index)
    }

    /// The two markers of `task` between two of its records that prove user instructions.
    fn markers_between(
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

impl<'t> Facts<'t> {
    /// The proof that a user instruction of their task retired between two records.
    ///
    /// Both must be of one task and in this order. Two NMIs that hit user mode at different
    /// instructions count: between them the task executed at least the first of the two, or an
    /// entry of its own (the self-IPI's) has ended and changed the instruction pointer. So does a
    /// walk between them that began at another user instruction than the second hit.
    pub fn separated(&self, first: &Event, second: &Event) -> Option<Separation> {
        let task = self.tasks.of(first)?;
        if self.tasks.of(second)? != task || !before(first, second) {
            return None;
        }
        if let Some(events) = self
            .entries
            .markers_between(self.trace, task, first, second)
        {
            return Some(Separation {
                why: "the task made a system call in between".into(),
                events: events.to_vec(),
            });
        }
        if let Some(proof) = self.left_with_answer(task, first, second) {
            return Some(proof);
        }
        let (a, b) = (self.injection(first)?, self.injection(second)?);
        let why = match (a.thread, a.iteration, b.thread, b.iteration) {
            (Some(s), Some(i), Some(t), Some(j)) if s == t && i != j => {
                format!("injected in iterations {i} and {j} of thread {t}")
            }
            _ if a.cpl == 3 && b.cpl == 3 && a.rip != b.rip => {
                format!("user mode went from {:#x} to {:#x}", a.rip, b.rip)
            }
            _ => return None,
        };
        let events = Vec::new();
        Some(Separation { why, events })
    }

    /// An answer between the two, which is written on the way to the user instruction that is its
    /// frame 0, and the second in user mode at another one.
    fn left_with_answer(&self, task: Task, first: &Event, second: &Event) -> Option<Separation> {
        let b = self.injection(second).filter(|b| b.cpl == 3)?;
        let from = self
            .answers
            .partition_point(|it| it.event.index <= first.index);
        let mut later = self.answers.get(from..)?.iter();
        let (answer, frame0) = later
            .by_ref()
            .take_while(|it| it.event.index < second.index)
            .filter(|it| it.task == Some(task) && before(first, it.event))
            .filter(|it| before(it.event, second))
            .find_map(|it| Some((it, *it.chain.ips.first()?)))?;
        (frame0 != b.rip).then(|| Separation {
            why: format!(
                "user mode went from {frame0:#x}, where a walk found it, to {:#x}",
                b.rip
            ),
            events: vec![answer.event.index],
        })
    }

    /// The proof that two of `requests`, all of one task and in order, are of different entries.
    /// Cheaper than asking for every pair, and as good: a proof by markers is strongest for the
    /// outermost pair, one by injections joins neighbours.
    pub fn separated_among(
        &self,
        requests: &[Request<'t>],
    ) -> Option<(Request<'t>, Request<'t>, Separation)> {
        let (first, last) = (*requests.first()?, *requests.last()?);
        if let Some(proof) = self.separated(first.event, last.event) {
            return Some((first, last, proof));
        }
        // Values of injections are compared with the previous one that has them: requests
        // without an injection in between must not hide a change.
        let mut known: Option<Request<'t>> = None;
        let mut in_user: Option<Request<'t>> = None;
        for &request in requests {
            let Some(injection) = self.injection(request.event) else {
                continue;
            };
            for earlier in [known, in_user].into_iter().flatten() {
                if let Some(proof) = self.separated(earlier.event, request.event) {
                    return Some((earlier, request, proof));
                }
            }
            if injection.iteration.is_some() {
                known = Some(request);
            }
            if injection.cpl == 3 {
                in_user = Some(request);
            }
        }
        None
    }

    /// The requests that are known to be of one entry, at least two in each group.
    pub fn one_entry(&self) -> Vec<OneEntry<'t>> {
        let mut of_task: BTreeMap<Task, Vec<Request<'t>>> = BTreeMap::new();
        for request in &self.requests {
            if let Some(task) = request.task {
                of_task.entry(task).or_default().push(*request);
            }
        }
        let mut groups = self.by_bracket(&of_task);
        groups.extend(self.by_arrival());
        groups.extend(self.by_answer(&of_task));
        groups
    }

    fn by_answer(&self, of_task: &BTreeMap<Task, Vec<Request<'t>>>) -> Vec<OneEntry<'t>> {
        let mut groups = Vec::new();
        for (cookie, exchange) in self.cookies() {
            let (Some(first), Some(answer)) = (exchange.birth(), exchange.answers.first()) else {
                continue;
            };
            let Some(list) = first.task.and_then(|task| of_task.get(&task)) else {
                continue;
            };
            // Another task's answer ends nothing, and one that is proved to be of another entry
            // is M1's and S4's.
            if answer.task != first.task || self.separated(first.event, answer.event).is_some() {
                continue;
            }
            let from = list.partition_point(|r| r.event.index < first.event.index);
            let requests: Vec<Request<'t>> = list
                .get(from..)
                .unwrap_or_default()
                .iter()
                .take_while(|r| before(r.event, answer.event))
                .copied()
                .collect();
            if requests.len() > 1 {
                groups.push(OneEntry {
                    requests,
                    why: format!("before the record 22 of {cookie:#x} was written"),
                    events: vec![answer.event.index],
                });
            }
        }
        groups
    }

    fn by_bracket(&self, of_task: &BTreeMap<Task, Vec<Request<'t>>>) -> Vec<OneEntry<'t>> {
        let mut groups = Vec::new();
        for bracket in self.entries.brackets() {
            let (Some(list), Some(enter), Some(exit)) = (
                of_task.get(&bracket.task),
                self.trace.events.get(bracket.enter),
                self.trace.events.get(bracket.exit),
            ) else {
                continue;
            };
            // As in `Facts::after`: start a little early and let `before` decide.
            let from = list.partition_point(|r| r.event.index < bracket.enter);
            let requests: Vec<Request<'t>> = list
                .get(from.saturating_sub(NESTING)..)
                .unwrap_or_default()
                .iter()
                .take_while(|r| !before(exit, r.event))
                .filter(|r| before(enter, r.event) && before(r.event, exit))
                .copied()
                .collect();
            if requests.len() > 1 {
                groups.push(OneEntry {
                    requests,
                    why: "between one sys_enter and its sys_exit".into(),
                    events: vec![bracket.enter, bracket.exit],
                });
            }
        }
        groups
    }

    fn by_arrival(&self) -> Vec<OneEntry<'t>> {
        let mut arrivals: BTreeMap<_, Vec<Request<'t>>> = BTreeMap::new();
        for &request in &self.requests {
            let (Some(injection), Some(task)) = (self.injection(request.event), request.task)
            else {
                continue;
            };
            let (Some(thread), Some(iteration), 0) =
                (injection.thread, injection.iteration, injection.cpl)
            else {
                continue;
            };
            let place = (injection.spec, injection.vcpu, injection.rip);
            let key = (task, thread, iteration, place);
            arrivals.entry(key).or_default().push(request);
        }
        let mut groups = Vec::new();
        for ((task, thread, iteration, (_, _, rip)), requests) in arrivals {
            for requests in self.unanswered_runs(task, requests) {
                groups.push(OneEntry {
                    requests,
                    why: format!(
                        "injected at one arrival at {rip:#x}, iteration {iteration} of thread {thread}"
                    ),
                    events: Vec::new(),
                });
            }
        }
        groups
    }

    /// Cuts a list of requests of a task where it was answered anything in between; runs of one
    /// are left out.
    fn unanswered_runs(&self, task: Task, requests: Vec<Request<'t>>) -> Vec<Vec<Request<'t>>> {
        let mut runs: Vec<Vec<Request<'t>>> = Vec::new();
        for request in requests {
            let run = runs.last_mut().filter(|run| {
                let answered = |from: &Request<'t>| {
                    let later = self.after(task, from.event);
                    { later }
                        .take_while(|e| e.index < request.event.index)
                        .any(|e| e.deferred_chain().is_some())
                };
                run.last().is_some_and(|last| !answered(last))
            });
            match run {
                Some(run) => run.push(request),
                None => runs.push(vec![request]),
            }
        }
        runs.retain(|run| run.len() > 1);
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, kernel, user};
    use super::*;

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn one_marker_between_proves_nothing() {
        let mut kit = Kit::new(1);
        let a = kit.nmi(0, 1001, C);
        // An NMI in the entry stub comes before the sys_enter of its own entry.
        kit.sys_enter(0, 1001);
        let b = kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        kit.sys_enter(0, 1001);
        let c = kit.nmi(0, 1001, C);
        let trace = kit.trace();
        let facts = Facts::new(&trace);
        let separated = |x: usize, y: usize| {
            facts
                .separated(&trace.events[x], &trace.events[y])
                .is_some()
        };
        assert!(!separated(a, b));
        assert!(separated(b, c));
        assert!(separated(a, c));
        assert!(!separated(c, a));
    }

    #[test]
    fn injections_separate_by_iteration_and_by_user_ip() {
        let mut kit = Kit::new(1);
        let a = kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000).iteration(1, 7));
        let b = kit.inject(0, 1001, C, kernel(0xffff_ffff_8100_0000).iteration(1, 8));
        let c = kit.inject(0, 1001, C, user(0x1000));
        let d = kit.inject(0, 1001, C, user(0x1000));
        let e = kit.inject(0, 1001, C, user(0x1004));
        let trace = kit.trace();
        let facts = Facts::new(&trace);
        let separated = |x: usize, y: usize| {
            facts
                .separated(&trace.events[x], &trace.events[y])
                .is_some()
        };
        assert!(separated(a, b));
        assert!(!separated(b, c));
        assert!(!separated(c, d));
        assert!(separated(d, e));
    }

    #[test]
    fn a_walk_and_another_user_instruction_separate() {
        const C: u64 = 3 << 32 | 1;
        for (walked, hit, is_proof) in [
            (0x1000, user(0x1004), true),
            (0x1000, user(0x1000), false),
            (0x1000, kernel(0x1004), false),
        ] {
            let mut kit = Kit::new(1);
            let first = kit.inject(0, 1001, C, kernel(0x9000));
            kit.deferred(0, 1001, C, &[walked, 0x2000]);
            let second = kit.inject(0, 1001, C, hit);
            let trace = kit.trace();
            let facts = Facts::new(&trace);
            let proof = facts.separated(&trace.events[first], &trace.events[second]);
            assert_eq!(proof.is_some(), is_proof, "{proof:?}");
        }
    }

    #[test]
    fn a_bracket_with_a_loss_in_it_is_none() {
        let mut kit = Kit::new(1);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        assert_eq!(Facts::new(&kit.trace()).one_entry().len(), 1);

        let mut kit = Kit::new(2);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C);
        kit.lost(1, 2);
        kit.nmi(0, 1001, C);
        kit.sys_exit(0, 1001);
        assert_eq!(Facts::new(&kit.trace()).one_entry().len(), 0);
    }

    #[test]
    fn an_arrival_is_one_entry_and_two_are_not() {
        let at = kernel(0xffff_ffff_8100_0000);
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, at.iteration(1, 7));
        kit.inject(0, 1001, C, at.iteration(1, 7));
        kit.inject(0, 1001, C, at.iteration(1, 8));
        let trace = kit.trace();
        let groups = Facts::new(&trace).one_entry();
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].requests.len(), 2);
    }

    #[test]
    fn an_answer_between_two_arrivals_takes_the_proof_away() {
        let at = kernel(0xffff_ffff_8100_0000).iteration(1, 7);
        let mut kit = Kit::new(1);
        kit.inject(0, 1001, C, at);
        kit.deferred(0, 1001, C, &[0x40]);
        kit.inject(0, 1001, C + (2 << 32), at);
        assert_eq!(Facts::new(&kit.trace()).one_entry().len(), 0);
    }

    #[test]
    fn what_comes_before_the_answer_is_of_its_entry() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, C);
        kit.nmi(0, 1002, C + (2 << 32));
        kit.nmi(1, 1001, C + (4 << 32));
        kit.deferred(1, 1001, C, &[0x40]);
        kit.nmi(1, 1001, C);
        let trace = kit.trace();
        let groups = Facts::new(&trace).one_entry();
        assert_eq!(groups.len(), 1);
        let of: Vec<usize> = groups[0].requests.iter().map(|r| r.event.index).collect();
        assert_eq!(of, [0, 2]);

        // An answer after the next system call ends nothing.
        let mut kit = Kit::new(1);
        kit.nmi(0, 1001, C);
        kit.sys_enter(0, 1001);
        kit.sys_enter(0, 1001);
        kit.nmi(0, 1001, C + (2 << 32));
        kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(Facts::new(&kit.trace()).one_entry().len(), 0);
    }
}
