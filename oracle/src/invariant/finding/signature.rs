//! The event sequence that identifies a finding, and whether a violation shows it.

use std::collections::BTreeMap;

use serde::Deserialize;
use unwindlab_abi::lab::LabContext;
use unwindlab_abi::plan::{EventSource, EventSpec};

use super::Presence;
use super::Resolver;
use super::behind;
use super::uprobes;
use crate::invariant::evidence::{
    Code, Evidence, Facts, Relation, announced_spec, has_side_band_bit, is_cut, spec,
};
use crate::invariant::{Violation, world};
use crate::trace::{Event, EventKind, LabEvent, LabKind, Trace};

/// What a violation must show to be a finding.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signature {
    /// Functions: the violation's instruction is in one of them. `None`: any instruction.
    instruction: Option<Vec<String>>,
    /// The violation's events, all of them, in order.
    #[serde(default)]
    events: Vec<EventPattern>,
    /// The violation's records of the lab client's log, all of them, in order.
    #[serde(default)]
    log: Vec<LogPattern>,
    /// Instead of either: the beginnings of the lines of W0's report, from the first on.
    #[serde(default)]
    report: Option<Vec<String>>,
    /// Instead of all of these: the open event that lacks its copy of a record.
    receiver: Option<Receiver>,
}

/// An open event.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Receiver {
    /// Whether it has one of the bits that make a side-band event.
    #[serde(rename = "side-band")]
    side_band: Option<bool>,
    /// Whether tasks inherit it.
    inherited: Option<bool>,
    /// Whether the copies of others, at least one, come behind the exit record of their task.
    exiting: Option<bool>,
}

impl Receiver {
    fn fits(&self, facts: &Facts<'_>, violation: &Violation, spec: &EventSpec) -> bool {
        let copies = violation.events.iter();
        let mut copies = copies.filter_map(|at| facts.trace.events.get(*at));
        let exiting =
            !violation.events.is_empty() && copies.all(|copy| facts.behind_exit(copy).is_some());
        self.side_band
            .is_none_or(|it| it == has_side_band_bit(spec))
            && self.inherited.is_none_or(|it| it == spec.inherit)
            && self.exiting.is_none_or(|it| it == exiting)
    }
}

/// One record of the lab client's log.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogPattern {
    kind: LogKind,
    /// Name for the task.
    task: Option<String>,
    /// Name for the registration of a client.
    client: Option<String>,
    /// Name for the cookie, or 0.
    cookie: Option<CookieName>,
    /// Whether the task was past its exit work.
    leaving: Option<bool>,
    /// Functions; the interrupt of a request hit one of them.
    interrupted: Option<Vec<String>>,
    /// Whether the request began before the record that stands before it in the list.
    around: Option<bool>,
    /// Whether the request and the cancellation of its client overlap: neither was over when the other began.
    meanwhile: Option<bool>,
    /// What the request returned.
    returned: Option<i32>,
    /// The context of the request.
    context: Option<LabContext>,
    /// Whether the task is a worker.
    worker: Option<bool>,
    /// Whether the client was called for the cookie in the task's next entry.
    called: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LogKind {
    /// A request that was not refused.
    Request,
    /// A request that returned a negative number.
    Refused,
    Callback,
    Return,
    Exit,
    Registered,
    /// A cancellation begins.
    Cancel,
    Cancelled,
}

/// One event of a sequence.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventPattern {
    kind: Kind,
    /// Whether there may be two of them, one right behind the other in the violation.
    #[serde(default)]
    again: bool,
    /// Name for the task.
    task: Option<String>,
    /// Name for the cookie, or 0.
    cookie: Option<CookieName>,
    /// Functions; the interrupted instruction is in one of them.
    interrupted: Option<Vec<String>>,
    /// Cookie of the task's next record 22.
    next: Option<u64>,
    /// Cookie of the task's record 22 before it.
    previous: Option<u64>,
    /// Instructions; the last sample of the task with another cookie hit one of them, and the task has no
    /// record 22 between that sample and this one.
    since: Option<Vec<String>>,
    /// Frames of a record 22.
    frames: Option<usize>,
    /// Whether the event of perf that wrote it is one that tasks inherit.
    inherited: Option<bool>,
    /// Functions; the sample was made in one of them, which its kernel chain begins with.
    made: Option<Vec<String>>,
    /// Whether the sample was made by what the window calls.
    behind: Option<bool>,
    /// Whether the sample is one of a uprobe or uretprobe.
    uprobe: Option<bool>,
    /// Whether a record 22 differs from the thread's stack by the trampoline of a uretprobe.
    trampoline: Option<bool>,
    /// Whether a record 22 differs from the inline chain beside it by what a uprobe does to the
    /// registers.
    stepped: Option<bool>,
    /// Whether the chain of a record 22 or a sample is the stack of its thread.
    #[serde(rename = "as-built")]
    as_built: Option<bool>,
    /// Whether the chain of a sample is what chained uretprobes make of the stack of its thread, each of
    /// which is taken for a trampoline of its own.
    shifted: Option<bool>,
    /// Whether a record may be of the entry that follows that of a request with its cookie, made as `behind` says.
    #[serde(rename = "next-entry")]
    next_entry: Option<bool>,
    /// Whether the chain of a sample ends with the deferred marker, and has as many context entries
    /// as `perf_event_max_contexts_per_stack` allows.
    cut: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Sample,
    PlainSample,
    Deferred,
    Fork,
    Exit,
    Comm,
    Mmap,
    SwitchIn,
    SwitchOut,
    Lost,
    Throttle,
    Other,
}

/// A cookie in a pattern: a name for one, or the number 0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(untagged)]
enum CookieName {
    Number(u64),
    Name(String),
}

/// The word for an instruction in user mode.
const USER: &str = "user";
/// The word for an instruction in the finding's window.
const WINDOW: &str = "window";

/// Places in the kernel that a signature names.
pub(super) struct Places<'a, K: ?Sized> {
    pub kernel: &'a K,
    /// What of the finding is in the kernel's code.
    presence: &'a dyn Fn() -> &'a Presence,
    /// Every instruction counts as one of the window, whatever the code is.
    anywhere: bool,
}

impl<'a, K: Resolver + ?Sized> Places<'a, K> {
    /// Places in `kernel`; what of the finding is in its code is asked for when it is needed.
    pub fn new(kernel: &'a K, presence: &'a dyn Fn() -> &'a Presence) -> Self {
        Self {
            kernel,
            presence,
            anywhere: false,
        }
    }

    /// Places of which those in a window are not looked at.
    pub fn anywhere(kernel: &'a K, presence: &'a dyn Fn() -> &'a Presence) -> Self {
        Self {
            anywhere: true,
            ..Self::new(kernel, presence)
        }
    }

    /// What of the finding is in the kernel's code.
    pub fn presence(&self) -> &Presence {
        (self.presence)()
    }

    /// The kernel instruction that an NMI hit which wrote a sample, by its chain: it comes behind the
    /// stub of the NMI. An NMI with two handlers writes more samples than injections are logged.
    fn interrupted(&self, event: &Event) -> Option<u64> {
        let mut chain = event.kernel_chain().iter();
        let is_stub = |ip: &u64| {
            self.kernel
                .function(*ip)
                .is_some_and(|it| Code::is_nmi(&it))
        };
        chain.find(|ip| is_stub(ip))?;
        chain.next().copied()
    }

    /// Whether each place may be any, because nothing is known of the kernel.
    fn are_open(&self) -> bool {
        self.anywhere && self.kernel.is_unknown()
    }

    /// Whether the NMI that wrote a sample hit one of these functions, or the window if they name it.
    fn hit(&self, facts: &Facts<'_>, event: &Event, names: &[String]) -> bool {
        if self.are_open() {
            return true;
        }
        let ip = facts.instruction(event).or_else(|| self.interrupted(event));
        let ip = ip.or_else(|| overflowed(facts.trace, event));
        ip.is_some_and(|ip| self.within(ip, names))
    }

    /// Whether an instruction is in one of these functions, or in the window if they name it.
    fn within(&self, ip: u64, names: &[String]) -> bool {
        let window = || self.anywhere || (self.presence)().contains(ip);
        let function = self.kernel.function(ip);
        function.is_some_and(|name| names.contains(&name))
            || (names.iter().any(|name| name == WINDOW) && window())
    }

    /// Whether the place at the end of a report's first line (`function+0x12/0x34`) is in one of
    /// these functions, or in the window.
    fn reported_within(&self, line: &str, names: &[String]) -> bool {
        let place = line.split_whitespace().next_back().unwrap_or_default();
        let parse = || {
            let (name, rest) = place.split_once("+0x")?;
            let (offset, _) = rest.split_once('/')?;
            let offset = u64::from_str_radix(offset, 16).ok()?;
            self.kernel.address(name)?.checked_add(offset)
        };
        parse().is_some_and(|ip| self.within(ip, names))
    }
}

/// Names and what they stand for; two names never stand for one thing.
#[derive(Debug)]
struct Bindings<K, V>(BTreeMap<K, V>);

impl<K: Ord, V: PartialEq> Bindings<K, V> {
    /// Whether `name` is, or now becomes, the name of `value`.
    fn bind(&mut self, name: K, value: V) -> bool {
        if let Some(bound) = self.0.get(&name) {
            return *bound == value;
        }
        let free = self.0.values().all(|other| *other != value);
        free && self.0.insert(name, value).is_none()
    }
}

impl Signature {
    /// What is wrong with it, if anything is.
    pub fn flaw(&self) -> Option<String> {
        let empty = self.events.is_empty() && self.log.is_empty();
        if let Some(receiver) = &self.receiver {
            let says = [receiver.side_band, receiver.inherited, receiver.exiting];
            if says.iter().all(Option::is_none) {
                return Some("it says nothing of the event that lacks a record".into());
            }
            let more = !empty || self.report.is_some() || self.instruction.is_some();
            return more.then(|| "an event that lacks a record is all of a signature".into());
        }
        if let Some(lines) = &self.report {
            let flaw = match () {
                () if lines.is_empty() || lines.iter().any(String::is_empty) => {
                    "a line of its report says nothing"
                }
                () if !empty => "a report has no events",
                () => return None,
            };
            return Some(flaw.into());
        }
        if empty {
            return Some("its signature has no events".into());
        }
        let asks = |it: &LogPattern| matches!(it.kind, LogKind::Request | LogKind::Refused);
        let carries = |it: &LogPattern| matches!(it.kind, LogKind::Request | LogKind::Callback);
        if self
            .log
            .iter()
            .any(|it| it.cookie.is_some() && !carries(it))
        {
            return Some("a record of the log has no cookie".into());
        }
        if self
            .log
            .iter()
            .any(|it| (it.interrupted.is_some() || it.around.is_some()) && !asks(it))
        {
            return Some("a record of the log interrupts nothing".into());
        }
        if self
            .log
            .iter()
            .any(|it| it.meanwhile.is_some() && !asks(it))
        {
            return Some("a record of the log takes no time".into());
        }
        if self.log.iter().any(|it| it.returned.is_some() && !asks(it)) {
            return Some("a record of the log returns nothing".into());
        }
        if self.events.iter().filter(|it| it.again).count() > 1 {
            return Some("two of its events may come again".into());
        }
        self.events.iter().find_map(|event| {
            let carries = matches!(event.kind, Kind::Sample | Kind::Deferred);
            let number = matches!(event.cookie, Some(CookieName::Number(n)) if n != 0);
            let sampled = matches!(event.kind, Kind::Sample | Kind::PlainSample);
            let flaw = match () {
                // A chain that was cut is wrong whoever's it is.
                () if event.cut == Some(true) && event.kind == Kind::PlainSample => return None,
                () if event.task.is_none() && (carries || sampled) => "must name its task",
                () if event.cookie.is_none() && carries => "must name its cookie",
                () if event.next_entry.is_some() && !carries => {
                    "is of no entry that a cookie tells"
                }
                () if event.cookie.is_some() && !carries => "has no cookie",
                () if number => "has a number other than 0 for a cookie",
                () if event.interrupted.is_some() && !sampled => "interrupts nothing",
                () if event.frames.is_some() && event.kind != Kind::Deferred => "has no frames",
                () if (event.made.is_some() || event.behind.is_some()) && !sampled => {
                    "is made nowhere"
                }
                () if event.shows_uprobes() && event.kind != Kind::Deferred => "has no frames",
                () if event.shifted.is_some() && event.kind != Kind::PlainSample
                    || event.as_built.is_some()
                        && !matches!(event.kind, Kind::PlainSample | Kind::Deferred) =>
                {
                    "has no chain of its own"
                }
                () if (event.next.is_some()
                    || event.previous.is_some()
                    || event.since.is_some())
                    && event.kind != Kind::Sample =>
                {
                    "has no answer beside it"
                }
                () if event.cut.is_some() && event.kind != Kind::PlainSample => "has no marker",
                () => return None,
            };
            Some(format!("an event of kind {:?} {flaw}", event.kind))
        })
    }

    /// Whether it names the finding's window.
    pub fn names_window(&self) -> bool {
        let events = self.events.iter().map(|it| &it.interrupted);
        let places = events.chain(self.events.iter().map(|it| &it.since));
        let places = places.chain(self.log.iter().map(|it| &it.interrupted));
        let behind = self.events.iter().any(|it| it.behind.is_some());
        behind
            || places
                .chain([&self.instruction])
                .flatten()
                .flatten()
                .any(|name| name == WINDOW)
    }

    /// The patterns for so many events, if it has as many, the one that may come again counted once or
    /// twice.
    fn patterns(&self, events: usize) -> Option<Vec<&EventPattern>> {
        let again = |twice: bool| {
            let times = move |it: &EventPattern| if twice && it.again { 2 } else { 1 };
            let all = self.events.iter();
            all.flat_map(move |it| std::iter::repeat_n(it, times(it)))
        };
        let fits = [false, true].into_iter();
        let mut fits = fits.filter(|&twice| again(twice).count() == events);
        fits.next().map(|twice| again(twice).collect())
    }

    /// Whether a violation shows it.
    pub fn matches<K: Resolver + ?Sized>(
        &self,
        violation: &Violation,
        evidence: &Evidence<'_>,
        kernel: &Places<'_, K>,
    ) -> bool {
        let trace = evidence.trace();
        if let Some(receiver) = &self.receiver {
            let lacking = violation.receiver.and_then(|at| trace.session.get(at));
            let spec = lacking.and_then(|open| announced_spec(trace, open));
            return spec.is_some_and(|spec| receiver.fits(evidence.facts(), violation, spec));
        }
        let Some(patterns) = self.patterns(violation.events.len()) else {
            return false;
        };
        if violation.log.len() != self.log.len() {
            return false;
        }
        if let Some(lines) = &self.report {
            let place = self.instruction.as_ref();
            return world::w0_console::is_of(violation, lines, trace)
                && place.is_none_or(|names| kernel.reported_within(&violation.message, names));
        }
        if let Some(functions) = &self.instruction
            && !kernel.are_open()
            && !violation
                .instruction
                .is_some_and(|ip| kernel.within(ip, functions))
        {
            return false;
        }
        let facts = evidence.facts();
        let mut tasks = Bindings(BTreeMap::new());
        let mut cookies = Bindings(BTreeMap::new());
        let mut clients = Bindings(BTreeMap::new());
        let mut numbers = Bindings(BTreeMap::new());
        let mut before = None;
        let logged = self.log.iter().zip(&violation.log).all(|(pattern, &slot)| {
            let Some(event) = trace.lab.as_ref().and_then(|lab| lab.at(slot)) else {
                return false;
            };
            let bound = |name: &Option<String>| name.clone();
            let task = bound(&pattern.task).is_none_or(|name| numbers.bind(name, event.task));
            let client = bound(&pattern.client).is_none_or(|name| {
                event
                    .client
                    .is_some_and(|client| clients.bind(name, client))
            });
            let cookie = match &pattern.cookie {
                None => true,
                Some(CookieName::Number(number)) => event.cookie() == Some(*number),
                Some(name) => event
                    .cookie()
                    .is_some_and(|cookie| cookie != 0 && cookies.bind(name.clone(), cookie)),
            };
            let last: Option<u64> = before.replace(slot);
            let around = || match event.kind {
                LabKind::Request { begin, .. } => last.is_some_and(|last| begin <= last),
                _ => false,
            };
            let overlaps = pattern.around.is_none_or(|it| it == around());
            let called = |it: bool| it == is_called_next(trace, event);
            let called = pattern.called.is_none_or(called);
            let meanwhile = |it: bool| it == is_cancelled_meanwhile(trace, event);
            let called = called && pattern.meanwhile.is_none_or(meanwhile);
            task && client && cookie && overlaps && called && pattern.fits(event, kernel)
        });
        if !logged {
            return false;
        }
        let all = { violation.events.iter() }.filter_map(|&index| trace.events.get(index));
        let all: Vec<&Event> = all.collect();
        let mut pairs = patterns.into_iter().zip(&violation.events);
        pairs.all(|(pattern, &index)| {
            let Some(event) = trace.events.get(index) else {
                return false;
            };
            let task = match &pattern.task {
                None => true,
                Some(name) => facts
                    .tasks
                    .of(event)
                    .is_some_and(|task| tasks.bind(name.clone(), task)),
            };
            let cookie = match &pattern.cookie {
                None => true,
                Some(CookieName::Number(number)) => event.cookie() == Some(*number),
                Some(name) => event
                    .cookie()
                    .is_some_and(|cookie| cookie != 0 && cookies.bind(name.clone(), cookie)),
            };
            let stepped = |it: bool| it == uprobes::is_stepped(trace, event, &all);
            let as_built = |it: bool| it == uprobes::is_as_built(facts, event, &all);
            let shifted = |it: bool| it == uprobes::is_shifted(facts, event, &all);
            let next_entry = |it: bool| it == is_of_next_entry(facts, event, kernel);
            let cookie = cookie && pattern.next_entry.is_none_or(next_entry);
            let chain = pattern.stepped.is_none_or(stepped)
                && pattern.as_built.is_none_or(as_built)
                && pattern.shifted.is_none_or(shifted);
            task && cookie && chain && pattern.fits(facts, event, kernel)
        })
    }
}

/// How many requests before a record are looked at: a chain of entries may keep one cookie for long.
const NEAR: usize = 64;

/// Whether a record may be of the entry that follows that of a request with its cookie which was made behind the exit work.
fn is_of_next_entry<K: Resolver + ?Sized>(
    facts: &Facts<'_>,
    event: &Event,
    kernel: &Places<'_, K>,
) -> bool {
    let exchange = { event.cookie() }.and_then(|cookie| facts.exchanges.get(&cookie));
    let requests = exchange.map_or(&[][..], |it| it.requests.as_slice());
    let earlier = requests.partition_point(|it| it.event.index < event.index);
    let mut near = { requests.get(..earlier).unwrap_or_default().iter().rev() }.take(NEAR);
    near.any(|it| {
        let behind = kernel.are_open() || behind::is_made_behind(facts.trace, it.event, kernel);
        behind && facts.may_be_of_next_entry(it.event, event)
    })
}

/// Whether a request and the cancellation of its client overlap.
fn is_cancelled_meanwhile(trace: &Trace, request: &LabEvent) -> bool {
    let LabKind::Request { begin, .. } = request.kind else {
        return false;
    };
    let events = { trace.lab.iter() }.flat_map(|lab| &lab.events);
    let own = events.filter(|it| it.client.is_some() && it.client == request.client);
    let mut began = false;
    let mut ended = false;
    for event in own {
        began |= event.kind == LabKind::Cancel && event.slot < request.slot;
        ended |= event.kind == LabKind::Cancelled && begin <= event.slot;
    }
    began && ended
}

/// Whether the client of a request was called for its cookie in the task's next entry.
fn is_called_next(trace: &Trace, request: &LabEvent) -> bool {
    let events = trace.lab.iter().flat_map(|lab| &lab.events);
    let mut next = events.filter(|it| {
        it.slot > request.slot
            && it.task == request.task
            && it.entry == request.entry.wrapping_add(1)
    });
    next.any(|it| {
        let called = matches!(it.kind, LabKind::Callback { .. });
        called && it.client == request.client && it.cookie() == request.cookie()
    })
}

impl LogPattern {
    /// Whether a record is what the pattern says, names apart.
    fn fits<K: Resolver + ?Sized>(&self, event: &LabEvent, kernel: &Places<'_, K>) -> bool {
        let (kind, ip) = match event.kind {
            LabKind::Request { ret: 0.., ip, .. } => (LogKind::Request, ip),
            LabKind::Request { ip, .. } => (LogKind::Refused, ip),
            LabKind::Callback { .. } => (LogKind::Callback, 0),
            LabKind::Return { .. } => (LogKind::Return, 0),
            LabKind::Exit => (LogKind::Exit, 0),
            LabKind::Registered { ret: 0 } => (LogKind::Registered, 0),
            LabKind::Cancel => (LogKind::Cancel, 0),
            LabKind::Cancelled => (LogKind::Cancelled, 0),
            _ => return false,
        };
        if kind != self.kind {
            return false;
        }
        let place = match &self.interrupted {
            None => true,
            Some(functions) if event.flags.user => functions.iter().any(|name| name == USER),
            Some(functions) => kernel.within(ip, functions),
        };
        let leaving = self.leaving.is_none_or(|it| it == event.flags.leaving);
        let returned = self.returned.is_none_or(|it| match event.kind {
            LabKind::Request { ret, .. } => it == ret,
            _ => false,
        });
        let context = self.context.is_none_or(|it| it == event.context);
        let worker = self.worker.is_none_or(|it| it == event.flags.worker);
        place && leaving && returned && context && worker
    }
}

impl EventPattern {
    /// Whether an event is what the pattern says, names apart.
    fn fits<K: Resolver + ?Sized>(
        &self,
        facts: &Facts<'_>,
        event: &Event,
        kernel: &Places<'_, K>,
    ) -> bool {
        if kind_of(event) != self.kind {
            return false;
        }
        let place = match &self.interrupted {
            None => true,
            Some(functions) if facts.user_ip(event).is_some() => {
                functions.iter().any(|name| name == USER)
            }
            Some(functions) => kernel.hit(facts, event, functions),
        };
        let since = |names: &Vec<String>| {
            let asked = asked_before(facts, event);
            asked.is_some_and(|it| kernel.hit(facts, it, names))
        };
        let place = place && self.since.as_ref().is_none_or(since);
        let frames = match (self.frames, event.deferred_chain()) {
            (None, _) => true,
            (Some(frames), Some(chain)) => chain.ips.len() == frames,
            (Some(_), None) => false,
        };
        let inherits = spec(facts.trace, event).is_some_and(|spec| spec.inherit);
        let inherited = self.inherited.is_none_or(|it| it == inherits);
        let next = self
            .next
            .is_none_or(|it| next_answer(facts, event) == Some(it))
            && { self.previous }.is_none_or(|it| previous_answer(facts, event) == Some(it));
        let of_uprobe = |it: bool| it == uprobes::is_of_uprobe(facts.trace, event);
        let trampolines = |it: bool| it == uprobes::has_trampolines(facts, event);
        let uprobes = self.uprobe.is_none_or(of_uprobe) && self.trampoline.is_none_or(trampolines);
        let begin = event.kernel_chain().first();
        let made = |names: &Vec<String>| begin.is_some_and(|&ip| kernel.within(ip, names));
        let made = self.made.as_ref().is_none_or(made);
        let behind = |it: bool| {
            kernel.are_open() || it == behind::is_made_behind(facts.trace, event, kernel)
        };
        let made = (made || kernel.are_open()) && self.behind.is_none_or(behind);
        let cut = self.cut.is_none_or(|it| it == is_cut(facts.trace, event));
        place && next && frames && inherited && uprobes && made && cut
    }

    /// Whether it says what uprobes left in the frames.
    fn shows_uprobes(&self) -> bool {
        self.trampoline.is_some() || self.stepped.is_some()
    }
}

/// The kernel instruction at which a counter of the CPU overflowed: perf's chain begins there.
fn overflowed(trace: &Trace, event: &Event) -> Option<u64> {
    let counts = matches!(spec(trace, event)?.source, EventSource::Hardware(_));
    event.kernel_chain().first().filter(|_| counts).copied()
}

/// The cookie of the next record 22 of the task of an event.
fn next_answer(facts: &Facts<'_>, event: &Event) -> Option<u64> {
    let task = facts.tasks.of(event)?;
    let event = facts.trace.events.get(event.index)?;
    let mut later = facts.after(task, event);
    let next = later.find(|it| it.deferred_chain().is_some())?;
    next.cookie()
}

/// The cookie of the last record 22 of the task before an event, if no user instruction retired between the two.
fn previous_answer(facts: &Facts<'_>, event: &Event) -> Option<u64> {
    let task = facts.tasks.of(event)?;
    let earlier = facts.trace.events.get(..event.index)?.iter().rev();
    let mut answers = earlier.filter(|it| it.deferred_chain().is_some());
    let previous = answers.find(|it| facts.tasks.of(it) == Some(task))?;
    let together = matches!(
        facts.relation(previous, event),
        Relation::Same(_) | Relation::Helped
    );
    together.then(|| previous.cookie())?
}

/// The last sample with another cookie of the task of a sample, if no record 22 of the task is between the two.
fn asked_before<'a>(facts: &'a Facts<'_>, event: &Event) -> Option<&'a Event> {
    let task = facts.tasks.of(event)?;
    let earlier = facts.trace.events.get(..event.index)?.iter().rev();
    let mut carriers = earlier.filter(|it| {
        let other = it.cookie().is_some() && it.cookie() != event.cookie();
        (other || it.deferred_chain().is_some()) && facts.tasks.of(it) == Some(task)
    });
    carriers.next().filter(|it| it.deferred_chain().is_none())
}

fn kind_of(event: &Event) -> Kind {
    match &event.kind {
        EventKind::Sample(sample) if sample.cookie().is_some() => Kind::Sample,
        EventKind::Sample(_) => Kind::PlainSample,
        EventKind::CallchainDeferred(_) => Kind::Deferred,
        EventKind::Fork { .. } => Kind::Fork,
        EventKind::Exit { .. } => Kind::Exit,
        EventKind::Comm { .. } => Kind::Comm,
        EventKind::Mmap { .. } => Kind::Mmap,
        EventKind::Switch { out: false, .. } => Kind::SwitchIn,
        EventKind::Switch { out: true, .. } => Kind::SwitchOut,
        EventKind::Lost { .. } | EventKind::LostSamples { .. } => Kind::Lost,
        EventKind::Throttle { .. } => Kind::Throttle,
        EventKind::Other { .. } => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_thing_and_a_thing_has_one_name() {
        let mut names = Bindings(BTreeMap::new());
        assert!(names.bind("a", 1));
        assert!(names.bind("a", 1));
        assert!(!names.bind("a", 2));
        assert!(!names.bind("b", 1));
        assert!(names.bind("b", 2));
    }
}
