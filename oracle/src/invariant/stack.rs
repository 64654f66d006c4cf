//! The user stacks that are known by construction.

use unwindlab_abi::message::{ExpectedStack, ThreadAnnounce};

use super::facts::{Answer, Exchange, Facts};
use super::verdict::Verdict;
use crate::trace::model::MAX_DEFERRED_FRAMES;
use crate::trace::{Event, EventKind, Trace};

/// The workload threads that an event can be of: the one with its tid, or else those of its
/// process, or of the one that forked it, that make a new thread or process every iteration and so
/// announce no tid.
pub(super) fn threads<'t>(trace: &'t Trace, event: &Event) -> Vec<&'t ThreadAnnounce> {
    let (Some(pid), Some(tid)) = (event.pid, event.tid) else {
        return Vec::new();
    };
    let exact = trace.threads.iter().find(|t| t.tid != 0 && t.tid == tid);
    if let Some(thread) = exact {
        return vec![thread];
    }
    let made = |thread: &&ThreadAnnounce| {
        thread.tid == 0 && (thread.pid == pid || parent(trace, pid) == Some(thread.pid))
    };
    trace.threads.iter().filter(made).collect()
}

/// The process that forked this one during the session.
fn parent(trace: &Trace, of: u32) -> Option<u32> {
    let mut forks = trace.events.iter();
    forks.find_map(|event| match event.kind {
        EventKind::Fork { pid, ppid, .. } if pid == of && ppid != of => Some(ppid),
        _ => None,
    })
}

/// Whether `ip` is in the part of the leaf in which the whole stack stands.
pub(super) fn at_leaf(stack: &ExpectedStack, ip: u64) -> bool {
    (stack.leaf_start..stack.leaf_end).contains(&ip)
}

/// The chain that a D must show when its frame 0 is at the leaf.
///
/// 7.2 writes the unwinder's entries and nothing else: no context marker comes first
/// (`perf_callchain_deferred_output`, kernel/events/core.c), and there are at most 510, what a
/// page has room for behind `struct unwind_cache` (kernel/unwind/deferred.c).
pub(super) fn expected(stack: &ExpectedStack, frame0: u64) -> Vec<u64> {
    let all = std::iter::once(frame0).chain(stack.caller_addresses());
    all.take(MAX_DEFERRED_FRAMES).collect()
}

/// The stacks a D can be of, its frame 0 being at their leaf.
pub(super) fn stacks_at_leaf<'t>(trace: &'t Trace, answer: &Answer<'_>) -> Vec<&'t ExpectedStack> {
    let Some(&frame0) = answer.chain.ips.first() else {
        return Vec::new();
    };
    let stacks = threads(trace, answer.event).into_iter().map(|t| &t.stack);
    stacks.filter(|stack| at_leaf(stack, frame0)).collect()
}

/// The thread of an answer, if its leaf is the function of this name.
pub(super) fn thread_at<'t>(
    trace: &'t Trace,
    answer: &Answer<'_>,
    leaf: &str,
) -> Option<&'t ThreadAnnounce> {
    let leaf = trace.user_symbols.iter().find(|it| it.name == leaf)?;
    threads(trace, answer.event)
        .into_iter()
        .find(|thread| (leaf.start..leaf.end).contains(&thread.stack.leaf_start))
}

/// Judges the answers of threads whose leaf has this name and whose frame 0 `stands` where all of the
/// stack is; `over` says what was walked.
pub(super) fn judge_at(
    verdict: &mut Verdict,
    trace: &Trace,
    (leaf, over): (&str, &str),
    stands: impl Fn(&ExpectedStack, u64) -> bool,
) {
    for answer in &Facts::new(trace).answers {
        let thread = thread_at(trace, answer, leaf);
        let (Some(thread), Some(&frame0)) = (thread, answer.chain.ips.first()) else {
            continue;
        };
        if stands(&thread.stack, frame0) {
            judge(verdict, answer, &expected(&thread.stack, frame0), over);
        }
    }
}

/// Holds an answer's chain against the one known by construction; `over` says what was walked.
pub(super) fn judge(verdict: &mut Verdict, answer: &Answer<'_>, wanted: &[u64], over: &str) {
    if answer.chain.ips == wanted {
        verdict.holds();
        return;
    }
    let message = format!(
        "the walk for cookie {:#x} over {over}: {}",
        answer.chain.cookie,
        difference(&answer.chain.ips, wanted)
    );
    verdict.violated(message, [answer.event.index], None);
}

/// The first place in which two chains differ, in words.
pub(super) fn difference(found: &[u64], wanted: &[u64]) -> String {
    let at = found.iter().zip(wanted).position(|(f, w)| f != w);
    match at.and_then(|at| Some((at, found.get(at)?, wanted.get(at)?))) {
        Some((at, found, wanted)) => format!("frame {at} is {found:#x}, not {wanted:#x}"),
        None => format!("{} frames, not {}", found.len(), wanted.len()),
    }
}

impl<'t> Facts<'t> {
    /// The user instruction at which the entry of these requests was made, from the injections
    /// that hit user mode, with the index of the sample that shows it.
    pub fn entry_ip(&self, exchange: &Exchange<'t>) -> Option<(u64, usize)> {
        let cookie = exchange.requests.first()?.cookie;
        self.entry_ips.get(&cookie).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::Kit;
    use super::*;

    #[test]
    fn chains_are_cut_at_a_page() {
        let mut kit = Kit::new(1);
        kit.deep_thread(0, 1001, 600);
        let trace = kit.trace();
        let chain = expected(&trace.threads[0].stack, 0x1004);
        assert_eq!(chain.len(), 510);
        assert_eq!(chain[0], 0x1004);
        assert_eq!(chain[509], 0x2000);
    }

    #[test]
    fn a_thread_without_a_tid_is_known_by_its_process() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        let at = kit.nmi(0, 1002, 1);
        let mut trace = kit.trace();
        assert!(threads(&trace, &trace.events[at]).is_empty());
        trace.threads[0].tid = 0;
        assert_eq!(threads(&trace, &trace.events[at]).len(), 1);
    }

    #[test]
    fn a_process_without_a_tid_is_known_by_its_parent() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.fork(0, 1001, 2002);
        let at = kit.nmi(0, 2002, 1);
        let mut trace = kit.trace();
        assert!(threads(&trace, &trace.events[at]).is_empty());
        trace.threads[0].tid = 0;
        assert_eq!(threads(&trace, &trace.events[at]).len(), 1);
        trace.events.remove(0);
        assert!(threads(&trace, &trace.events[0]).is_empty());
    }

    #[test]
    fn differences_in_words() {
        assert_eq!(difference(&[1, 2], &[1, 3]), "frame 1 is 0x2, not 0x3");
        assert_eq!(difference(&[1], &[1, 3]), "1 frames, not 2");
    }
}
