//! What `perf_event_max_contexts_per_stack` leaves of the chains of samples.

use std::collections::BTreeSet;

use super::facts::{Answer, Facts, Request};
use super::order::before;
use super::role::spec;
use super::tasks::Task;
use crate::trace::model::{CONTEXT_MAX, CONTEXT_USER_DEFERRED};
use crate::trace::{Event, EventKind, Trace};

/// The limit of a kernel on which nobody changed it (`PERF_MAX_CONTEXTS_PER_STACK`,
/// include/uapi/linux/perf_event.h).
const DEFAULT: usize = 8;

/// Whether the chain of a sample has as many context entries as the kernel allows, and no
/// cookie of its request is in it.
pub(crate) fn has_no_room(trace: &Trace, event: &Event) -> bool {
    let EventKind::Sample(sample) = &event.kind else {
        return false;
    };
    let mut set = trace.sysctls.iter().rev();
    let limit = set.find(|(name, _)| name == "perf_event_max_contexts_per_stack");
    let limit = limit.map_or(Some(DEFAULT), |(_, value)| value.parse().ok());
    let chain = sample.chain.as_deref().unwrap_or_default();
    let contexts = chain.iter().filter(|ip| **ip >= CONTEXT_MAX).count();
    sample.cookie().is_none() && limit == Some(contexts)
}

/// Whether the chain of a sample ends with the deferred marker, which is the last context entry
/// that the kernel allows.
pub(crate) fn is_cut(trace: &Trace, event: &Event) -> bool {
    let EventKind::Sample(sample) = &event.kind else {
        return false;
    };
    let chain = sample.chain.as_deref().unwrap_or_default();
    let marker = chain.iter().position(|ip| *ip == CONTEXT_USER_DEFERRED);
    marker.is_some_and(|at| at + 1 == chain.len()) && has_no_room(trace, event)
}

impl Facts<'_> {
    /// Where the chain of a sample of a task has no room for a cookie, the first sample that shows
    /// a cookie of that task need not be of the request that got it.
    pub fn hides_births(&mut self) {
        let defers = |event: &&Event| {
            has_no_room(self.trace, event)
                && spec(self.trace, event).is_some_and(|spec| spec.defer_callchain)
        };
        let hidden = self.trace.events.iter().filter(defers);
        let hidden: BTreeSet<Option<Task>> = hidden.map(|it| self.tasks.of(it)).collect();
        for exchange in self.exchanges.values_mut() {
            let of = |request: &Request<'_>| {
                request.task.is_none() || hidden.contains(&request.task) || hidden.contains(&None)
            };
            exchange.birth_is_hidden = !hidden.is_empty() && exchange.requests.iter().any(of);
        }
    }

    /// Whether a request whose cookie the limit of contexts cut off may have asked for an answer:
    /// a sample, not later, of an event that defers, and of the same task as far as is known.
    pub fn may_be_of_a_cut_chain(&self, answer: &Answer<'_>) -> bool {
        self.trace.events.iter().any(|event| {
            let defers = || spec(self.trace, event).is_some_and(|spec| spec.defer_callchain);
            let task = self.tasks.of(event);
            has_no_room(self.trace, event)
                && defers()
                && (task.is_none() || answer.task.is_none() || task == answer.task)
                && !before(answer.event, event)
        })
    }
}
