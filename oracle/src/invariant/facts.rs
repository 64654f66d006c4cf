//! What several invariants need to know of a trace: which records are requests (S) and answers
//! (D), which cookie joins them, which came first, and what the interrupted context was.

use std::collections::BTreeMap;

use unwindlab_abi::message::EventAnnounce;
use unwindlab_abi::plan::{EventSource, EventSpec};

use super::entries::Entries;
use super::excuse::Losses;
use super::matching::Matching;
use super::tasks::{Task, Tasks};
use crate::trace::model::{CallchainDeferred, Sample};
use crate::trace::recording::Injection;
use crate::trace::{Event, EventKind, Trace};

/// Records that an NMI, an interrupt and a soft interrupt can nest in the writing of one: by so
/// many places may the order of a ring differ from that of its records' times.
pub(super) const NESTING: usize = 4;

/// What a perf event of the session is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// `nmi:nmi_handler`: fires in every NMI, once per registered handler.
    Nmi,
    /// A counter of the CPU's: fires in the NMI of its overflow.
    Overflow,
    /// `raw_syscalls:sys_enter`.
    SyscallEnter,
    /// `raw_syscalls:sys_exit`: written before the exit work, in which the task work runs.
    SyscallExit,
    /// Anything else, or not known.
    Other,
}

/// The spec that the event which wrote a record was opened with.
pub(super) fn spec<'t>(trace: &'t Trace, event: &Event) -> Option<&'t EventSpec> {
    announced_spec(trace, trace.session.get(event.event?)?)
}

/// The spec of an open event.
pub(super) fn announced_spec<'t>(trace: &'t Trace, open: &EventAnnounce) -> Option<&'t EventSpec> {
    let at = usize::try_from(open.spec).ok()?;
    trace.tracing.as_ref()?.events.get(at)
}

/// What the event that wrote a record is there for.
pub(super) fn role(trace: &Trace, event: &Event) -> Role {
    spec(trace, event).map_or(Role::Other, spec_role)
}

/// What an event opened with `spec` is there for.
pub(super) fn spec_role(spec: &EventSpec) -> Role {
    let (system, name) = match &spec.source {
        EventSource::Tracepoint { system, name } => (system, name),
        EventSource::Hardware(_) => return Role::Overflow,
        _ => return Role::Other,
    };
    match (system.as_str(), name.as_str()) {
        ("nmi", "nmi_handler") => Role::Nmi,
        ("raw_syscalls", "sys_enter") => Role::SyscallEnter,
        ("raw_syscalls", "sys_exit") => Role::SyscallExit,
        _ => Role::Other,
    }
}

/// Whether an event opened with `spec` gets record 22.
///
/// `defer_output` alone is not enough: the record travels with the side-band records, and
/// `is_sb_event` (kernel/events/core.c, 7.2) does not look at `defer_output`. An event without
/// any side-band bit gets none; that is documented behaviour, not judged.
pub(super) fn receives(spec: &EventSpec) -> bool {
    spec.defer_output && (spec.task || spec.comm || spec.mmap || spec.context_switch)
}

/// Whether `first` certainly came before `second`.
///
/// Within a ring the position decides: space is reserved in order, also by an NMI that interrupts
/// the writing of another record. Between rings the clock decides, and a tie decides nothing.
pub(super) fn before(first: &Event, second: &Event) -> bool {
    if first.ring == second.ring {
        return first.position < second.position;
    }
    matches!((first.time, second.time), (Some(a), Some(b)) if a < b)
}

/// S(c).
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'t> {
    pub event: &'t Event,
    pub sample: &'t Sample,
    pub cookie: u64,
    pub task: Option<Task>,
}

/// D(c).
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer<'t> {
    pub event: &'t Event,
    pub chain: &'t CallchainDeferred,
    pub task: Option<Task>,
}

/// Everything that carries one cookie, in trace order.
#[derive(Debug, Default)]
pub(super) struct Exchange<'t> {
    pub requests: Vec<Request<'t>>,
    pub answers: Vec<Answer<'t>>,
}

impl<'t> Exchange<'t> {
    /// The first request, unless it is not certain which one that is: every other one must be
    /// later for sure, or of the same CPU.
    pub fn birth(&self) -> Option<Request<'t>> {
        let first = *self.requests.first()?;
        let certain = self
            .requests
            .iter()
            .all(|r| r.event.cpu == first.event.cpu || before(first.event, r.event));
        certain.then_some(first)
    }

    /// Indices of all events that carry the cookie.
    pub fn indices(&self) -> Vec<usize> {
        let requests = self.requests.iter().map(|r| r.event.index);
        let answers = self.answers.iter().map(|a| a.event.index);
        let mut all: Vec<usize> = requests.chain(answers).collect();
        all.sort_unstable();
        all
    }
}

/// A trace, and what follows from it.
#[derive(Debug)]
pub(super) struct Facts<'t> {
    pub trace: &'t Trace,
    pub tasks: Tasks,
    /// All records of every task, in trace order.
    pub records: BTreeMap<Task, Vec<&'t Event>>,
    /// All S, in trace order.
    pub requests: Vec<Request<'t>>,
    /// All D, in trace order.
    pub answers: Vec<Answer<'t>>,
    /// S and D by cookie, 0 included.
    pub exchanges: BTreeMap<u64, Exchange<'t>>,
    pub entries: Entries,
    pub matching: Matching,
    pub losses: Losses,
    /// By cookie: the first user instruction that an NMI of its requests hit, and the index of its
    /// sample. Kept, because an entry without end has very many of each.
    pub entry_ips: BTreeMap<u64, (u64, usize)>,
}

impl<'t> Facts<'t> {
    pub fn new(trace: &'t Trace) -> Self {
        let tasks = Tasks::new(trace);
        let mut records: BTreeMap<Task, Vec<&'t Event>> = BTreeMap::new();
        let mut requests = Vec::new();
        let mut answers = Vec::new();
        let mut exchanges: BTreeMap<u64, Exchange<'t>> = BTreeMap::new();
        for event in &trace.events {
            let task = tasks.of(event);
            if let Some(task) = task {
                records.entry(task).or_default().push(event);
            }
            match &event.kind {
                EventKind::Sample(sample) => {
                    let Some(cookie) = sample.cookie() else {
                        continue;
                    };
                    let request = Request {
                        event,
                        sample,
                        cookie,
                        task,
                    };
                    requests.push(request);
                    exchanges.entry(cookie).or_default().requests.push(request);
                }
                EventKind::CallchainDeferred(chain) => {
                    let answer = Answer { event, chain, task };
                    answers.push(answer);
                    let exchange = exchanges.entry(chain.cookie).or_default();
                    exchange.answers.push(answer);
                }
                _ => {}
            }
        }
        let losses = Losses::new(trace);
        let entries = Entries::new(trace, &tasks, &losses);
        let matching = Matching::new(trace);
        let mut facts = Self {
            trace,
            tasks,
            records,
            requests,
            answers,
            exchanges,
            entries,
            matching,
            losses,
            entry_ips: BTreeMap::new(),
        };
        let mut entry_ips = BTreeMap::new();
        for request in &facts.requests {
            if let Some(ip) = facts.user_ip(request.event) {
                let found = (ip, request.event.index);
                entry_ips.entry(request.cookie).or_insert(found);
            }
        }
        facts.entry_ips = entry_ips;
        facts
    }

    /// The records of `task` that are certainly later than `event`, in trace order.
    pub fn after(&self, task: Task, event: &'t Event) -> impl Iterator<Item = &'t Event> {
        let list = self.records.get(&task).map_or(&[][..], Vec::as_slice);
        // Where one record was written in the middle of another, their times and their
        // positions disagree: start a little early and let `before` decide.
        let from = list.partition_point(|e| e.index <= event.index);
        list.get(from.saturating_sub(NESTING)..)
            .unwrap_or_default()
            .iter()
            .copied()
            .filter(|later| before(event, later))
    }

    /// The injection that raised the NMI in which `event` was written.
    pub fn injection(&self, event: &Event) -> Option<&'t Injection> {
        self.trace
            .injections
            .get(self.matching.injection(event.index)?)
    }

    /// The instruction that the NMI of `event` interrupted. Its chain knows best: an interrupt
    /// that KVM had to deliver first, or a handler of another NMI that ran, lies between the
    /// instruction of the injection and that one.
    pub fn instruction(&self, event: &Event) -> Option<u64> {
        if let Some(ip) = self.matching.interrupted(event) {
            return Some(ip);
        }
        let injection = self.injection(event)?;
        let EventKind::Sample(sample) = &event.kind else {
            return None;
        };
        let at = injection.rip;
        (injection.cpl == 3 || sample.kernel_chain().contains(&at)).then_some(at)
    }

    /// The user instruction at which the NMI of `event` came, where the vCPU was in user mode: if
    /// an interrupt had to be delivered first, its entry was made there.
    pub fn user_ip(&self, event: &Event) -> Option<u64> {
        let injection = self.injection(event)?;
        (injection.cpl == 3).then_some(injection.rip)
    }

    /// The exchanges of real cookies: 0 is none (C4 reports it), so what carries it belongs to
    /// nothing and to nobody.
    pub fn cookies(&self) -> impl Iterator<Item = (u64, &Exchange<'t>)> {
        self.exchanges
            .iter()
            .filter(|&(&cookie, _)| cookie != 0)
            .map(|(&cookie, exchange)| (cookie, exchange))
    }

    /// Whether a process may have changed the tid of one of its tasks between two records: both
    /// are of one process, and it called exec in between, which gives the caller the leader's
    /// tid. Needs comm records; without them an exec is never assumed.
    pub fn exec_between(&self, first: &Event, second: &Event) -> bool {
        let pid = first.pid;
        let execs = self.trace.events.iter().filter(|e| {
            matches!(e.kind, EventKind::Comm { exec: true, .. }) && e.pid == pid && pid.is_some()
        });
        let leader = second.tid.is_some() && second.tid == pid && second.pid == pid;
        leader && { execs }.any(|e| before(first, e) && before(e, second))
    }

    /// What led to an answer that nothing asked for, in trace order: the first record with the
    /// cookie that the task's last request before it carried, the first answer to that, the last
    /// request itself, and the answer. Shorter where some of these are the same or absent.
    pub fn story(&self, answer: &Answer<'_>) -> (Vec<usize>, Option<u64>) {
        let mut events = vec![answer.event.index];
        let earlier = self
            .requests
            .partition_point(|r| r.event.index < answer.event.index);
        let mut earlier = self
            .requests
            .get(..earlier)
            .unwrap_or_default()
            .iter()
            .rev();
        let Some(last) = earlier.find(|r| r.task.is_some() && r.task == answer.task) else {
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
    use super::super::testkit::Kit;
    use super::*;

    #[test]
    fn order_within_a_ring_is_by_position_and_between_rings_by_time() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.nmi(1, 1002, 3 << 32 | 2);
        let mut trace = kit.trace();
        // An NMI that nests in the writing of a record reserves its space later.
        trace.events[0].time = Some(50);
        trace.events[1].time = Some(40);
        trace.events[2].time = Some(50);
        let [a, b, c] = &trace.events[..] else {
            panic!("three events");
        };
        assert!(before(a, b) && !before(b, a));
        assert!(before(b, c) && !before(c, b));
        assert!(!before(a, c) && !before(c, a));
    }

    #[test]
    fn a_birth_that_a_tie_hides_is_not_known() {
        let mut kit = Kit::new(2);
        kit.nmi(0, 1001, 3 << 32 | 1);
        kit.nmi(1, 1001, 3 << 32 | 1);
        let mut trace = kit.trace();
        assert!(
            Facts::new(&trace).exchanges[&(3 << 32 | 1)]
                .birth()
                .is_some()
        );
        trace.events[1].time = trace.events[0].time;
        assert!(
            Facts::new(&trace).exchanges[&(3 << 32 | 1)]
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
        let facts = Facts::new(&trace);
        let (events, _) = facts.story(&facts.exchanges[&0].answers[0]);
        assert_eq!(events, [first, answered, late, stray]);
    }
}
