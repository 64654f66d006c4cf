//! Which sample of perf each request of the BPF program is of.

use std::collections::BTreeMap;

use unwindlab_abi::plan::EventSource;
use unwindlab_abi::user_mode::Asked;

use crate::invariant::evidence::Evidence;
use crate::invariant::limit::step;
use crate::trace::{Event, EventKind, NonceRequest, UserModeTrace};

/// A request, and perf's sample of the same NMI.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair<'t> {
    pub request: &'t NonceRequest,
    pub event: &'t Event,
}

/// Why nothing is paired.
pub(super) const UNPAIRED: &str = "requests and perf's samples are not in pairs";

/// The pairs of every thread, in the order of its requests. Program and sample are of one
/// tracepoint, so a thread's k-th request is of its k-th sample, if none is missing; and both show one
/// kernel stack. perf gives the last samples of a thread that exits no thread id: requests without a nonce
/// may be left at the end. `None` for a thread where that is not so.
pub(super) fn pairs<'t>(
    evidence: &Evidence<'t>,
    user_mode: &'t UserModeTrace,
) -> Vec<Option<Vec<Pair<'t>>>> {
    let trace = evidence.trace();
    let specs = trace.tracing.as_ref().map(|it| it.events.as_slice());
    let samples = specs.unwrap_or_default().iter().position(|spec| {
        spec.defer_callchain && matches!(spec.source, EventSource::Tracepoint { .. })
    });
    let of_program = |event: &Event| {
        let open = event.event.and_then(|it| trace.session.get(it));
        open.is_some_and(|it| usize::try_from(it.spec).ok() == samples)
    };
    let mut threads: BTreeMap<u32, (Vec<&NonceRequest>, Vec<&Event>)> = BTreeMap::new();
    for request in &user_mode.requests {
        step();
        threads.entry(request.tid).or_default().0.push(request);
    }
    for event in &trace.events {
        step();
        let thread = event.tid.and_then(|tid| threads.get_mut(&tid));
        let is_sample = matches!(event.kind, EventKind::Sample(_));
        if let Some((_, events)) = thread.filter(|_| is_sample && of_program(event)) {
            events.push(event);
        }
    }
    let pair = |(requests, events): (Vec<&'t NonceRequest>, Vec<&'t Event>)| {
        let left = requests.get(events.len()..)?;
        let has_nonce = |it: &&NonceRequest| matches!(it.asked, Asked::Sent | Asked::Again);
        if left.iter().any(has_nonce) {
            return None;
        }
        let joined = requests.into_iter().zip(events);
        let joined = joined.map(|(request, event)| {
            let (ours, perfs) = (&request.kernel, event.kernel_chain());
            let both = ours.len().min(perfs.len());
            let same = both > 0 && ours.get(..both) == perfs.get(..both);
            same.then_some(Pair { request, event })
        });
        joined.collect()
    };
    threads.into_values().map(pair).collect()
}
