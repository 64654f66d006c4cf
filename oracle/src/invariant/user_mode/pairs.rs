//! Which sample of perf each request of the BPF program is of.

use unwindlab_abi::plan::EventSource;
use unwindlab_abi::user_mode::Asked;

use crate::invariant::evidence::Evidence;
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
    let of_program = |event: &Event| {
        let open = event.event.and_then(|it| trace.session.get(it));
        let specs = trace.tracing.as_ref().map(|it| it.events.as_slice());
        let samples = specs.unwrap_or_default().iter().position(|spec| {
            spec.defer_callchain && matches!(spec.source, EventSource::Tracepoint { .. })
        });
        open.is_some_and(|it| usize::try_from(it.spec).ok() == samples)
    };
    let pair = |tid: u32| {
        let requests = user_mode.requests.iter().filter(|it| it.tid == tid);
        let events = trace
            .events
            .iter()
            .filter(|it| it.tid == Some(tid) && of_program(it));
        let events = events.filter(|it| matches!(it.kind, EventKind::Sample(_)));
        let (requests, events): (Vec<_>, Vec<_>) = (requests.collect(), events.collect());
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
    let mut tids: Vec<u32> = user_mode.requests.iter().map(|it| it.tid).collect();
    tids.sort_unstable();
    tids.dedup();
    tids.into_iter().map(pair).collect()
}
