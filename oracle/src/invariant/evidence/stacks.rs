//! The user stacks that are known by construction.

use unwindlab_abi::Observation;
use unwindlab_abi::message::{ExpectedStack, ThreadAnnounce};

use super::Evidence;
use super::facts::{Answer, Facts};
use crate::invariant::limit::step;
use crate::trace::model::{CallchainDeferred, MAX_DEFERRED_FRAMES};
use crate::trace::{Event, Trace};

/// Whether `ip` is in the part of the leaf in which the whole stack stands.
pub(crate) fn at_leaf(stack: &ExpectedStack, ip: u64) -> bool {
    (stack.leaf_start..stack.leaf_end).contains(&ip)
}

/// The chain that a D must show when its frame 0 is at the leaf.
///
/// 7.2 writes the unwinder's entries and nothing else: no context marker comes first
/// (`perf_callchain_deferred_output`, kernel/events/core.c), and there are at most 510, what a
/// page has room for after `struct unwind_cache` (kernel/unwind/deferred.c).
pub(crate) fn expected(stack: &ExpectedStack, frame0: u64) -> impl Iterator<Item = u64> {
    let all = std::iter::once(frame0).chain(stack.caller_addresses());
    all.take(MAX_DEFERRED_FRAMES)
}

/// What is wrong with a chain that must show this stack, if anything is: the first place in which
/// the two differ, in words.
pub(crate) fn flaw(ips: &[u64], stack: &ExpectedStack, frame0: u64) -> Option<String> {
    if expected(stack, frame0).eq(ips.iter().copied()) {
        return None;
    }
    let wanted: Vec<u64> = expected(stack, frame0).collect();
    Some(difference(ips, &wanted))
}

/// As many frames as an event of an instance has room for with any sub-buffer, which is a page or more
/// (`ring_buffer_max_event_size()`, kernel/trace/ring_buffer.c).
const EVENT_ROOM: usize = 480;

/// How a stack of `nr` frames was cut though its event has room for more, in words; nothing if it was not.
pub(crate) fn cut_without_need(nr: u64, frames: &[u64]) -> Option<String> {
    let written = frames.len();
    let cut = nr > written as u64 && written < EVENT_ROOM;
    cut.then(|| format!("{written} of {nr} frames, with room for more"))
}

/// The same of a record that may have been written in part, which an instance does where its sub-buffer has no room for all
/// frames: how many there were must be right, too.
pub(crate) fn flaw_of(
    chain: &CallchainDeferred,
    stack: &ExpectedStack,
    frame0: u64,
) -> Option<String> {
    let ips = chain.ips.as_slice();
    if !in_part(chain) {
        return flaw(ips, stack, frame0);
    }
    if let Some(what) = cut_without_need(chain.nr, ips) {
        return Some(what);
    }
    let wanted: Vec<u64> = expected(stack, frame0).collect();
    if !wanted.starts_with(ips) {
        return Some(difference(ips, &wanted));
    }
    let right = wanted.len() as u64 == chain.nr;
    (!right).then(|| format!("{} frames, not {}", chain.nr, wanted.len()))
}

/// Whether a record has fewer frames than the unwinder found, by its own number.
pub(crate) fn in_part(chain: &CallchainDeferred) -> bool {
    chain.nr > chain.ips.len() as u64
}

/// Whether SFrame sections describe code that a chain shows, as far as is known: a kernel that reads them shows what frame
/// pointers do not lead to.
pub(crate) fn described_by_sections(trace: &Trace, chain: &[u64]) -> bool {
    let mut seen = trace.observations.iter();
    chain.iter().any(|&ip| trace.program.covers(ip))
        || seen.any(|it| matches!(it, Observation::SframeAsks(_)))
}

/// The first place in which two chains differ, in words.
pub(crate) fn difference(found: &[u64], wanted: &[u64]) -> String {
    let at = found.iter().zip(wanted).position(|(f, w)| f != w);
    match at.and_then(|at| Some((at, found.get(at)?, wanted.get(at)?))) {
        Some((at, found, wanted)) => format!("frame {at} is {found:#x}, not {wanted:#x}"),
        None => format!("{} frames, not {}", found.len(), wanted.len()),
    }
}

impl Evidence<'_> {
    /// The chain that the record 22 of this index shows on a right kernel, innermost first, where frame 0 is at the leaf of its
    /// thread. Frame 0 is the user instruction that the NMI of its request hit; where that is not known, the record's own. For
    /// people to read: [`Check::Violated`](crate::invariant::Check) says what is wrong.
    #[must_use]
    pub fn known_stack(&self, index: usize) -> Option<Vec<u64>> {
        let facts = self.facts();
        let answer = facts.answers.iter().find(|it| it.event.index == index)?;
        let exchange = facts.exchanges.get(&answer.chain.cookie);
        let interrupted = exchange.and_then(|it| facts.entry_ip(it)).map(|it| it.0);
        let frame0 = interrupted.or_else(|| answer.chain.frames().first().copied())?;
        let threads = facts.threads(answer.event);
        let stacks = threads.iter().map(|it| &it.stack);
        let stack = { stacks }.find(|it| at_leaf(it, frame0))?;
        Some(expected(stack, frame0).collect())
    }
}

impl<'t> Facts<'t> {
    /// The workload threads that an event can be of: the one with its tid, or else those of its
    /// process, or of the one that forked it, that make a new thread or process every iteration
    /// and so announce no tid.
    pub fn threads(&self, event: &Event) -> Vec<&'t ThreadAnnounce> {
        step();
        let (Some(pid), Some(tid)) = (event.pid, event.tid) else {
            return Vec::new();
        };
        let threads = self.trace.threads.iter();
        let exact = threads.clone().find(|t| t.tid != 0 && t.tid == tid);
        if let Some(thread) = exact {
            return vec![thread];
        }
        let parent = self.parent(pid);
        threads
            .filter(|thread| thread.tid == 0)
            .filter(|thread| thread.pid == pid || Some(thread.pid) == parent)
            .collect()
    }

    /// The stacks a D can be of, its frame 0 being at their leaf.
    pub fn stacks_at_leaf(&self, answer: &Answer<'_>) -> Vec<&'t ExpectedStack> {
        let Some(&frame0) = answer.chain.ips.first() else {
            return Vec::new();
        };
        let stacks = self.threads(answer.event).into_iter().map(|t| &t.stack);
        stacks.filter(|stack| at_leaf(stack, frame0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::Kit;

    #[test]
    fn the_known_stack_has_the_callers_of_the_thread() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        let at = kit.deferred(0, 1001, 3 << 32 | 1, &[0x1004, 0xbad]);
        let elsewhere = kit.deferred(0, 1001, 5 << 32 | 1, &[0x9999_0000]);
        let trace = kit.trace();
        let evidence = Evidence::new(&trace);
        let known = evidence.known_stack(at).unwrap();
        let callers: Vec<u64> = trace.threads[0].stack.caller_addresses().collect();
        assert_eq!((known[0], &known[1..]), (0x1004, &callers[..]));
        assert_eq!(evidence.known_stack(elsewhere), None);
        assert_eq!(evidence.known_stack(usize::MAX), None);
    }

    #[test]
    fn chains_are_cut_at_a_page() {
        let mut kit = Kit::new(1);
        kit.deep_thread(0, 1001, 600);
        let trace = kit.trace();
        let chain: Vec<u64> = expected(&trace.threads[0].stack, 0x1004).collect();
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
        assert!(
            Facts::new(&trace, None)
                .threads(&trace.events[at])
                .is_empty()
        );
        trace.threads[0].tid = 0;
        assert_eq!(Facts::new(&trace, None).threads(&trace.events[at]).len(), 1);
    }

    #[test]
    fn a_process_without_a_tid_is_known_by_its_parent() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.fork(0, 1001, 2002);
        let at = kit.nmi(0, 2002, 1);
        let mut trace = kit.trace();
        assert!(
            Facts::new(&trace, None)
                .threads(&trace.events[at])
                .is_empty()
        );
        trace.threads[0].tid = 0;
        assert_eq!(Facts::new(&trace, None).threads(&trace.events[at]).len(), 1);
        trace.events.remove(0);
        assert!(
            Facts::new(&trace, None)
                .threads(&trace.events[0])
                .is_empty()
        );
    }

    #[test]
    fn differences_in_words() {
        assert_eq!(difference(&[1, 2], &[1, 3]), "frame 1 is 0x2, not 0x3");
        assert_eq!(difference(&[1], &[1, 3]), "1 frames, not 2");
    }
}
