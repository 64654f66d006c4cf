//! What `perf_event_max_contexts_per_stack` leaves of the chains of samples.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Answer, Facts, Request};
use super::role::spec;
use super::tasks::Task;
use crate::trace::model::{CONTEXT_MAX, CONTEXT_USER_DEFERRED};
use crate::trace::{Event, EventKind, Trace};

/// The limit of a kernel on which nobody changed it (`PERF_MAX_CONTEXTS_PER_STACK`,
/// include/uapi/linux/perf_event.h).
const DEFAULT: usize = 8;

/// The limit that the trial set, if it set one, and if that is a number.
pub(crate) fn context_limit(trace: &Trace) -> Option<Option<usize>> {
    let mut set = trace.sysctls.iter().rev();
    let (_, value) = set.find(|(name, _)| name == "perf_event_max_contexts_per_stack")?;
    Some(value.parse().ok())
}

/// Whether the chain of a sample has as many context entries as the kernel allows, and no
/// cookie of its request is in it.
pub(crate) fn has_no_room(trace: &Trace, event: &Event) -> bool {
    let EventKind::Sample(sample) = &event.kind else {
        return false;
    };
    let limit = context_limit(trace).unwrap_or(Some(DEFAULT));
    let chain = sample.chain.as_deref().unwrap_or_default();
    let contexts = chain.iter().filter(|ip| **ip >= CONTEXT_MAX).count();
    sample.cookie().is_none() && limit == Some(contexts)
}

/// Whether perf had no buffer for the chain of a sample: one was being taken in the same context already. It asks for the
/// cookie before it asks for the buffer, and writes an empty chain then (`perf_callchain`, kernel/events/core.c, 7.3).
fn has_no_buffer(event: &Event) -> bool {
    matches!(&event.kind, EventKind::Sample(sample) if sample.chain.as_deref().is_some_and(<[u64]>::is_empty))
}

/// Whether the chain of a sample ends with the deferred marker, which is the last context entry
/// that the kernel allows. An event that does not defer has no marker.
pub(crate) fn is_cut(trace: &Trace, event: &Event) -> bool {
    let EventKind::Sample(sample) = &event.kind else {
        return false;
    };
    let chain = sample.chain.as_deref().unwrap_or_default();
    let marker = chain.iter().position(|ip| *ip == CONTEXT_USER_DEFERRED);
    marker.is_some_and(|at| at + 1 == chain.len())
        && spec(trace, event).is_some_and(|it| it.defer_callchain)
        && has_no_room(trace, event)
}

/// Samples whose chains have no room for a cookie. There may be one for each answer, so only the earliest
/// of each ring are kept.
#[derive(Debug, Default)]
pub(crate) struct CutChains {
    of_all: Earliest,
    of: BTreeMap<Option<Task>, Earliest>,
}

/// By ring: the first position, and the first time; `None` for a sample that has no time.
type Earliest = BTreeMap<u32, (usize, Option<u64>)>;

impl CutChains {
    fn add(&mut self, task: Option<Task>, event: &Event) {
        let of = self.of.entry(task).or_default();
        for rings in [of, &mut self.of_all] {
            let first = rings
                .entry(event.ring)
                .or_insert((event.position, event.time));
            *first = (first.0.min(event.position), first.1.min(event.time));
        }
    }

    /// The tids of which one is; `None` where that is not known.
    pub(super) fn tids(&self) -> BTreeSet<Option<u32>> {
        self.of.keys().map(|task| task.map(|it| it.tid)).collect()
    }

    /// Whether one of them is of this task, as far as is known, and not certainly later.
    fn has_one_for(&self, task: Option<Task>, event: &Event) -> bool {
        // As `before` has it.
        let is_later = |(&ring, &(position, time)): (&u32, &(usize, Option<u64>))| match ring {
            ring if ring == event.ring => event.position < position,
            _ => matches!((event.time, time), (Some(a), Some(b)) if a < b),
        };
        let any = |rings: &Earliest| !rings.iter().all(is_later);
        match task {
            None => any(&self.of_all),
            Some(_) => [None, task]
                .iter()
                .any(|task| self.of.get(task).is_some_and(any)),
        }
    }
}

impl Facts<'_> {
    /// Where the chain of a sample of a task has no room for a cookie, or had no buffer, the first sample that shows
    /// a cookie of that task need not be of the request that got it.
    pub fn hides_births(&mut self) {
        let defers = |event: &&Event| {
            (has_no_room(self.trace, event) || has_no_buffer(event))
                && spec(self.trace, event).is_some_and(|spec| spec.defer_callchain)
        };
        let mut hidden: BTreeSet<Option<Task>> = BTreeSet::new();
        for event in self.trace.events.iter().filter(defers) {
            let task = self.tasks.of(event);
            hidden.insert(task);
            self.cut.add(task, event);
        }
        for exchange in self.exchanges.values_mut() {
            let of = |request: &Request<'_>| {
                request.task.is_none() || hidden.contains(&request.task) || hidden.contains(&None)
            };
            exchange.birth_is_hidden = !hidden.is_empty() && exchange.requests.iter().any(of);
        }
    }

    /// The same of any request.
    pub fn chains_are_cut(&self) -> Option<&'static str> {
        (!self.cut.of_all.is_empty()).then_some(Self::CUT)
    }

    /// Why the cookie of a request may be in no chain.
    pub const CUT: &'static str =
        "a sample whose chain had no room for the cookie, or no buffer, may have asked for it";

    /// Why a request whose chain shows no cookie may have asked for an answer:
    /// a sample, not later, of an event that defers, and of the same task as far as is known.
    pub fn may_be_of_a_cut_chain(&self, answer: &Answer<'_>) -> Option<&'static str> {
        { self.cut.has_one_for(answer.task, answer.event) }.then_some(Self::CUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::{Kit, violations};

    /// As with records: in a ring the position decides, between rings the clock.
    #[test]
    fn a_chain_that_was_cut_is_for_what_is_not_certainly_earlier() {
        let mut kit = Kit::new(2);
        let earlier = kit.kernel_only(0, 1001);
        let elsewhere = kit.kernel_only(1, 1001);
        let at = kit.kernel_only(0, 1001);
        let later = kit.kernel_only(0, 1001);
        let mut trace = kit.trace();
        let mut cut = CutChains::default();
        cut.add(None, &trace.events[at]);
        let is_for = |event: &Event| cut.has_one_for(None, event);
        assert!(!is_for(&trace.events[earlier]));
        assert!(is_for(&trace.events[later]));
        assert!(!is_for(&trace.events[elsewhere]));
        for (time, expected) in [
            (trace.events[at].time, true),
            (Some(u64::MAX), true),
            (None, true),
        ] {
            trace.events[elsewhere].time = time;
            assert_eq!(is_for(&trace.events[elsewhere]), expected, "{time:?}");
        }
        // The clock of one ring says nothing against its positions.
        trace.events[earlier].time = Some(u64::MAX);
        assert!(!is_for(&trace.events[earlier]));
    }

    #[test]
    fn without_a_chain_that_was_cut_no_birth_is_hidden() {
        let mut kit = Kit::new(2);
        kit.nmi(0, u32::MAX, 3 << 32 | 2);
        violations("C5", &kit);
    }
}
