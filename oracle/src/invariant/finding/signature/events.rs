//! One event of perf, as a signature describes it.

use serde::Deserialize;

use super::CookieName;
use crate::invariant::evidence::{Facts, Relation, is_cut, spec};
use crate::invariant::finding::places::{Places, USER};
use crate::invariant::finding::{Resolver, behind, uprobes};
use crate::trace::{Event, EventKind};

/// One event of a sequence.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventPattern {
    pub(super) kind: Kind,
    /// Whether there may be two of them, one right behind the other in the violation.
    #[serde(default)]
    pub(super) again: bool,
    /// Name for the task.
    pub(super) task: Option<String>,
    /// Name for the cookie, or 0.
    pub(super) cookie: Option<CookieName>,
    /// Functions; the interrupted instruction is in one of them.
    pub(super) interrupted: Option<Vec<String>>,
    /// Cookie of the task's next record 22.
    pub(super) next: Option<u64>,
    /// Cookie of the task's record 22 before it.
    pub(super) previous: Option<u64>,
    /// Instructions; the last sample of the task with another cookie hit one of them, and the task has no
    /// record 22 between that sample and this one.
    pub(super) since: Option<Vec<String>>,
    /// Frames of a record 22.
    pub(super) frames: Option<usize>,
    /// Whether the event of perf that wrote it is one that tasks inherit.
    pub(super) inherited: Option<bool>,
    /// Functions; the sample was made in one of them, which its kernel chain begins with.
    pub(super) made: Option<Vec<String>>,
    /// Whether the sample was made by what the window calls.
    pub(super) behind: Option<bool>,
    /// Whether the sample is one of a uprobe or uretprobe.
    pub(super) uprobe: Option<bool>,
    /// Whether a record 22 differs from the thread's stack by the trampoline of a uretprobe.
    pub(super) trampoline: Option<bool>,
    /// Whether a record 22 differs from the inline chain beside it by what a uprobe does to the
    /// registers.
    pub(super) stepped: Option<bool>,
    /// Whether the chain of a record 22 or a sample is the stack of its thread.
    #[serde(rename = "as-built")]
    pub(super) as_built: Option<bool>,
    /// Whether the chain of a sample is what chained uretprobes make of the stack of its thread, each of
    /// which is taken for a trampoline of its own.
    pub(super) shifted: Option<bool>,
    /// Whether a record may be of the entry that follows that of a request with its cookie, made as `behind` says.
    #[serde(rename = "next-entry")]
    pub(super) next_entry: Option<bool>,
    /// Whether the chain of a sample ends with the deferred marker, and has as many context entries
    /// as `perf_event_max_contexts_per_stack` allows.
    pub(super) cut: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
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

impl EventPattern {
    /// Whether an event is what the pattern says, names apart. `all` are the events of the violation.
    pub(super) fn fits<K: Resolver + ?Sized>(
        &self,
        facts: &Facts<'_>,
        event: &Event,
        all: &[&Event],
        kernel: &Places<'_, K>,
    ) -> bool {
        kind_of(event) == self.kind
            && self.is_of_place(facts, event, kernel)
            && self.is_made_by(facts, event, kernel)
            && self.has_beside_it(facts, event, kernel)
            && self.shows(facts, event, all)
    }

    /// The instructions that were hit.
    fn is_of_place<K: Resolver + ?Sized>(
        &self,
        facts: &Facts<'_>,
        event: &Event,
        kernel: &Places<'_, K>,
    ) -> bool {
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
        place && self.since.as_ref().is_none_or(since)
    }

    /// The event of perf that wrote it, and the code that called perf.
    fn is_made_by<K: Resolver + ?Sized>(
        &self,
        facts: &Facts<'_>,
        event: &Event,
        kernel: &Places<'_, K>,
    ) -> bool {
        let inherits = spec(facts.trace, event).is_some_and(|spec| spec.inherit);
        let begin = event.kernel_chain().first();
        let made = |names: &Vec<String>| begin.is_some_and(|&ip| kernel.within(ip, names));
        let behind = |it: bool| it == behind::is_made_behind(facts.trace, event, kernel);
        let of_uprobe = |it: bool| it == uprobes::is_of_uprobe(facts.trace, event);
        let called = kernel.are_open()
            || self.made.as_ref().is_none_or(made) && self.behind.is_none_or(behind);
        called
            && self.inherited.is_none_or(|it| it == inherits)
            && self.uprobe.is_none_or(of_uprobe)
    }

    /// Other records with cookies.
    fn has_beside_it<K: Resolver + ?Sized>(
        &self,
        facts: &Facts<'_>,
        event: &Event,
        kernel: &Places<'_, K>,
    ) -> bool {
        let next = |it| next_answer(facts, event) == Some(it);
        let previous = |it| previous_answer(facts, event) == Some(it);
        let next_entry = |it: bool| it == is_of_next_entry(facts, event, kernel);
        self.next.is_none_or(next)
            && self.previous.is_none_or(previous)
            && self.next_entry.is_none_or(next_entry)
    }

    /// Its chain.
    fn shows(&self, facts: &Facts<'_>, event: &Event, all: &[&Event]) -> bool {
        let frames = |it| { event.deferred_chain() }.is_some_and(|chain| chain.ips.len() == it);
        let trampoline = |it: bool| it == uprobes::has_trampolines(facts, event);
        let stepped = |it: bool| it == uprobes::is_stepped(facts.trace, event, all);
        let as_built = |it: bool| it == uprobes::is_as_built(facts, event, all);
        let shifted = |it: bool| it == uprobes::is_shifted(facts, event, all);
        let cut = |it: bool| it == is_cut(facts.trace, event);
        self.frames.is_none_or(frames)
            && self.trampoline.is_none_or(trampoline)
            && self.stepped.is_none_or(stepped)
            && self.as_built.is_none_or(as_built)
            && self.shifted.is_none_or(shifted)
            && self.cut.is_none_or(cut)
    }

    /// Whether it says what uprobes left in the frames.
    pub(super) fn shows_uprobes(&self) -> bool {
        self.trampoline.is_some() || self.stepped.is_some()
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
