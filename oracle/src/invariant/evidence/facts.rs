//! What invariants need to know of the records of perf: which are requests (S) and answers (D),
//! which cookie joins them, and which context they interrupted.

use std::collections::{BTreeMap, BTreeSet};

use super::contexts::CutChains;
use super::entries::EntryCode;
use super::injections::Matching;
use super::losses::Losses;
use super::order::{NESTING, before, later};
use super::returns::Returns;
use super::sampled;
use super::syscalls::Syscalls;
use super::tasks::{Task, Tasks};
use crate::trace::model::{CallchainDeferred, Sample};
use crate::trace::recording::Injection;
use crate::trace::{Event, EventKind, LabKind, Trace};

/// S(c).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'t> {
    pub event: &'t Event,
    pub sample: &'t Sample,
    pub cookie: u64,
    pub task: Option<Task>,
}

/// D(c).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer<'t> {
    pub event: &'t Event,
    pub chain: &'t CallchainDeferred,
    pub task: Option<Task>,
}

/// Everything that carries one cookie, in trace order.
#[derive(Debug, Default, Clone)]
pub(crate) struct Exchange<'t> {
    pub requests: Vec<Request<'t>>,
    pub answers: Vec<Answer<'t>>,
    /// The first request may be one whose sample had no room for the cookie.
    pub birth_is_hidden: bool,
}

impl<'t> Exchange<'t> {
    /// The first answer that is certainly later than a request.
    pub fn answer_after(&self, request: &Event) -> Option<&Answer<'t>> {
        later(&self.answers, request, |it| it.event).next()
    }

    /// The first request, if it is certain which one that is: every other one is later for sure, or
    /// in the same ring, and no answer is earlier.
    pub fn birth(&self) -> Option<Request<'t>> {
        if self.birth_is_hidden {
            return None;
        }
        let first = *self.requests.first()?;
        // What was answered was asked for before: where, no record says.
        if self.answers.iter().any(|it| before(it.event, first.event)) {
            return None;
        }
        let certain = self
            .requests
            .iter()
            .all(|r| r.event.ring == first.event.ring || before(first.event, r.event));
        certain.then_some(first)
    }
}

/// A trace, and what follows from it.
#[derive(Debug)]
pub(crate) struct Facts<'t> {
    pub trace: &'t Trace,
    pub tasks: Tasks,
    /// All records of every task, in trace order.
    pub records: BTreeMap<Task, Vec<&'t Event>>,
    /// All S, in trace order.
    pub requests: Vec<Request<'t>>,
    /// The same of every task.
    requests_of: BTreeMap<Task, Vec<Request<'t>>>,
    /// All D, in trace order.
    pub answers: Vec<Answer<'t>>,
    /// The same of every task.
    answers_of: BTreeMap<Task, Vec<Answer<'t>>>,
    /// S and D by cookie, 0 included.
    pub exchanges: BTreeMap<u64, Exchange<'t>>,
    pub syscalls: Syscalls,
    pub matching: Matching,
    pub losses: Losses,
    pub returns: Returns<'t>,
    /// The entry code of the kernel, if it is known.
    pub code: Option<&'t EntryCode<'t>>,
    /// Every NMI that hit user mode left a sample.
    pub nmis_are_sampled: bool,
    /// By task: the returns to user mode, by number, before which another client asked behind the exit work.
    pub kept_back: BTreeMap<Task, BTreeSet<usize>>,
    /// The same of all that may be without exit work, in order: these, and those of NMIs that hit user mode.
    pub free: BTreeMap<Task, Vec<usize>>,
    /// By tid, in order: when that was.
    pub kept_back_at: BTreeMap<u32, Vec<u64>>,
    /// By cookie: the first user instruction that an NMI of its requests hit, or that a sample of them shows, and the
    /// index of the sample. Derived once, because an endless entry has very many requests and answers.
    entry_ips: BTreeMap<u64, (u64, usize)>,
    /// By process: comm records of exec, in trace order.
    execs: BTreeMap<u32, Vec<&'t Event>>,
    /// Samples whose chain had no room for the cookie, or no buffer.
    pub(super) cut: CutChains,
    /// By process: the other one that forked it during the session.
    forked_by: BTreeMap<u32, u32>,
}

impl<'t> Facts<'t> {
    pub fn new(trace: &'t Trace, code: Option<&'t EntryCode<'t>>) -> Self {
        let tasks = Tasks::new(trace);
        let losses = Losses::new(trace);
        let mut facts = Self {
            trace,
            records: BTreeMap::new(),
            requests: Vec::new(),
            requests_of: BTreeMap::new(),
            answers: Vec::new(),
            answers_of: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            syscalls: Syscalls::new(trace, &tasks, &losses),
            matching: Matching::new(trace),
            tasks,
            losses,
            returns: Returns::new(trace),
            code,
            nmis_are_sampled: false,
            kept_back: BTreeMap::new(),
            free: BTreeMap::new(),
            kept_back_at: BTreeMap::new(),
            entry_ips: BTreeMap::new(),
            execs: BTreeMap::new(),
            cut: CutChains::default(),
            forked_by: BTreeMap::new(),
        };
        facts.nmis_are_sampled = trace.recorded.is_none() && facts.matching.all_user_nmis(trace);
        for event in &trace.events {
            facts.add(event);
        }
        facts.add_lab();
        facts.hides_births();
        facts
    }

    /// Sorts in what the lab client asked behind the exit work: it keeps the kernel from the reset,
    /// so that requests of perf share a cookie over that return.
    fn add_lab(&mut self) {
        let log = self.trace.lab.iter().flat_map(|lab| &lab.events);
        let requests = log.filter(|it| matches!(it.kind, LabKind::Request { .. }));
        for late in requests.filter(|it| super::lab::is_late(it)) {
            let times = self.kept_back_at.entry(late.tid).or_default();
            times.push(late.time);
            let Some(number) = self.returns.before_slot(late) else {
                continue;
            };
            let first = Task {
                tid: late.tid,
                life: 0,
            };
            let lives = self.records.range(first..).map(|(&task, _)| task);
            for task in lives.take_while(|it| it.tid == late.tid) {
                self.kept_back.entry(task).or_default().insert(number);
            }
        }
        for (&task, numbers) in &self.kept_back {
            self.free.entry(task).or_default().extend(numbers);
        }
        for list in self.free.values_mut() {
            list.sort_unstable();
            list.dedup();
        }
        let lists = self.kept_back_at.values_mut();
        lists.for_each(|list| list.sort_unstable());
    }

    /// Sorts a record in.
    fn add(&mut self, event: &'t Event) {
        let task = self.tasks.of(event);
        if let Some(task) = task {
            self.records.entry(task).or_default().push(event);
        }
        match &event.kind {
            EventKind::Sample(sample) => {
                if let Some(task) = task.filter(|_| self.may_be_user_nmi(event))
                    && let Some(number) = self.returns.before(event)
                {
                    self.free.entry(task).or_default().push(number);
                }
                let Some(cookie) = sample.cookie() else {
                    return;
                };
                self.add_request(Request {
                    event,
                    sample,
                    cookie,
                    task,
                });
            }
            EventKind::CallchainDeferred(chain) => {
                let answer = Answer { event, chain, task };
                self.answers.push(answer);
                if let Some(task) = task {
                    self.answers_of.entry(task).or_default().push(answer);
                }
                let exchange = self.exchanges.entry(chain.cookie).or_default();
                exchange.answers.push(answer);
            }
            EventKind::Comm { exec: true, .. } => {
                if let Some(pid) = event.pid {
                    self.execs.entry(pid).or_default().push(event);
                }
            }
            EventKind::Fork { pid, ppid, .. } if pid != ppid => {
                self.forked_by.entry(*pid).or_insert(*ppid);
            }
            _ => {}
        }
    }

    fn add_request(&mut self, request: Request<'t>) {
        self.requests.push(request);
        if let Some(task) = request.task {
            self.requests_of.entry(task).or_default().push(request);
        }
        let exchange = self.exchanges.entry(request.cookie).or_default();
        exchange.requests.push(request);
        if let Some(ip) = self.came_from(request.event) {
            let found = (ip, request.event.index);
            self.entry_ips.entry(request.cookie).or_insert(found);
        }
    }

    /// The requests of a task, in trace order.
    pub fn requests_of(&self, task: Task) -> &[Request<'t>] {
        self.requests_of.get(&task).map_or(&[], Vec::as_slice)
    }

    /// The answers of a task, in trace order.
    pub fn answers_of(&self, task: Task) -> &[Answer<'t>] {
        self.answers_of.get(&task).map_or(&[], Vec::as_slice)
    }

    /// The requests of every task, each in trace order.
    pub fn by_task(&self) -> impl Iterator<Item = (Task, &[Request<'t>])> {
        let tasks = self.requests_of.iter();
        tasks.map(|(&task, requests)| (task, requests.as_slice()))
    }

    /// The user instruction at which the entry of these requests was made, from the injections
    /// that hit user mode and from samples that show it, with the index of the sample.
    pub fn entry_ip(&self, exchange: &Exchange<'t>) -> Option<(u64, usize)> {
        let cookie = exchange.requests.first()?.cookie;
        self.entry_ips.get(&cookie).copied()
    }

    /// The process that forked this one during the session.
    pub fn parent(&self, pid: u32) -> Option<u32> {
        self.forked_by.get(&pid).copied()
    }

    /// The exit record of a task.
    pub fn exit(&self, task: Task) -> Option<&'t Event> {
        self.trace.events.get(self.tasks.exit(task)?)
    }

    /// The records of `task` that are certainly later than `event`, in trace order.
    pub fn after(&self, task: Task, event: &'t Event) -> impl Iterator<Item = &'t Event> {
        let list = self.records.get(&task).map_or(&[][..], Vec::as_slice);
        later(list, event, |it| it).copied()
    }

    /// The injection that raised the NMI in which `event` was written.
    pub fn injection(&self, event: &Event) -> Option<&'t Injection> {
        self.trace
            .injections
            .get(self.matching.injection(event.index)?)
    }

    /// The instruction that the NMI of `event` interrupted. Its chain knows best: the NMI may hit
    /// an interrupt that KVM had to deliver first, or return from the handler of another NMI,
    /// instead of the instruction of the injection.
    pub fn instruction(&self, event: &Event) -> Option<u64> {
        if let Some(ip) = self.matching.interrupted(event) {
            return Some(ip);
        }
        let injection = self.injection(event)?;
        let EventKind::Sample(_) = &event.kind else {
            return None;
        };
        let at = injection.rip;
        (injection.cpl == 3 || event.kernel_chain().contains(&at)).then_some(at)
    }

    /// The user instruction at which the NMI of `event` arrived, where the vCPU was in user mode.
    /// If KVM had to deliver an interrupt first, the entry was made there.
    pub fn user_ip(&self, event: &Event) -> Option<u64> {
        let injection = self.injection(event)?;
        (injection.cpl == 3).then_some(injection.rip)
    }

    /// The user instruction from which the task came to the kernel, where the NMI of `event` or the record itself shows it.
    pub(super) fn came_from(&self, event: &Event) -> Option<u64> {
        let sampled = || sampled::user_instruction(self.trace, event);
        self.user_ip(event).or_else(sampled)
    }

    /// The exchanges of real cookies. 0 is no cookie (C4 reports it), so records that carry it
    /// belong to no exchange.
    pub fn cookies(&self) -> impl Iterator<Item = (u64, &Exchange<'t>)> {
        self.exchanges
            .iter()
            .filter(|&(&cookie, _)| cookie != 0)
            .map(|(&cookie, exchange)| (cookie, exchange))
    }

    /// Whether the tid of a task may have changed between two records: both are of one process, and
    /// it called exec in between, which gives the caller the leader's tid. That shows in a comm record, and where the caller was
    /// not the leader in the exit record of that; without them no exec is assumed.
    pub fn exec_between(&self, first: &Event, second: &Event) -> bool {
        let pid = first.pid;
        let leader = second.tid.is_some() && second.tid == pid && second.pid == pid;
        let Some(pid) = pid.filter(|_| leader) else {
            return false;
        };
        // `de_thread` waits for the leader to exit, and gives the caller its tid (fs/exec.c, 7.3).
        let exits = self.tasks.exits_of(pid);
        let mut exits = exits.filter_map(|at| self.trace.events.get(at));
        if first.tid != Some(pid) && exits.any(|e| before(first, e) && before(e, second)) {
            return true;
        }
        let Some(execs) = self.execs.get(&pid) else {
            return false;
        };
        // As in [`later`]. Records without a time have no place among those of other rings.
        let ends = [Some(&first), Some(&second), execs.first()];
        let timed = ends.iter().flatten().all(|it| it.time.is_some());
        let [from, to] = match timed {
            true => [
                execs.partition_point(|e| e.index <= first.index),
                execs.partition_point(|e| e.index < second.index),
            ],
            false => [0, execs.len()],
        };
        let (from, to) = (from.saturating_sub(NESTING), to.saturating_add(NESTING));
        let near = execs.get(from..to.min(execs.len())).unwrap_or_default();
        let within = |e: &&Event| before(first, e) && before(e, second);
        near.iter().copied().any(|e| within(&e))
    }

    /// What led to an answer that nothing asked for, in trace order. With the cookie of the task's
    /// last request before it: the first record that carries that cookie, the first answer to it,
    /// the last request itself, and the answer. Shorter where some of these coincide or are absent.
    pub fn story(&self, answer: &Answer<'_>) -> (Vec<usize>, Option<u64>) {
        let mut events = vec![answer.event.index];
        let requests = answer.task.map_or(&[][..], |task| self.requests_of(task));
        let earlier = requests.partition_point(|r| r.event.index < answer.event.index);
        let Some(last) = requests.get(..earlier).and_then(<[_]>::last) else {
            return (events, None);
        };
        events.push(last.event.index);
        if let Some(exchange) = self.exchanges.get(&last.cookie) {
            let requested = exchange.requests.first().map(|r| r.event.index);
            let answered = exchange.answers.first().map(|a| a.event.index);
            let earlier = requested.into_iter().chain(answered);
            events.extend(earlier.filter(|&at| at < answer.event.index));
        }
        events.sort_unstable();
        events.dedup();
        (events, self.instruction(last.event))
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::evidence::Facts;
    use crate::invariant::testkit::Kit;

    #[test]
    fn a_birth_that_a_tie_hides_is_not_known() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.nmi(1, 1001, 3 << 32 | 1);
        let mut trace = kit.trace();
        assert!(
            Facts::new(&trace, None).exchanges[&(3 << 32 | 1)]
                .birth()
                .is_some()
        );
        trace.events[1].time = trace.events[0].time;
        assert!(
            Facts::new(&trace, None).exchanges[&(3 << 32 | 1)]
                .birth()
                .is_none()
        );
    }

    #[test]
    fn the_story_of_an_answer_nobody_asked_for() {
        let cookie = 3 << 32 | 1;
        let mut kit = Kit::new(1);
        let first = kit.nmi(0, 1001, cookie);
        kit.nmi(0, 1001, cookie);
        let answered = kit.deferred(0, 1001, cookie, &[0x40]);
        let late = kit.nmi(0, 1001, cookie);
        let stray = kit.deferred(0, 1001, 0, &[0x40]);
        let trace = kit.trace();
        let facts = Facts::new(&trace, None);
        let (events, _) = facts.story(&facts.exchanges[&0].answers[0]);
        assert_eq!(events, [first, answered, late, stray]);
    }
}
