//! [`SnapshotStyle::Shapes`](super::SnapshotStyle::Shapes): what kinds of request got what kinds of
//! stack, as a sorted set.
//!
//! Lines are `syscall -> [getppid_return, descend+0x12 x 10, root+0x9]` for an entry by the leaf's
//! system call, and `user -> [leaf, descend+0x12 x 10, root+0x9]` for a request that found the leaf
//! in user mode. Where several threads run, callers that are the thread's own by construction are
//! shown as `its callers`, because injections need not hit every thread in every way. `(not its
//! own)` after a stack says that its callers are not those that the requesting thread has by
//! construction.
//!
//! Where a random injection hits depends on timing, so all of this is left out:
//! * how often a shape occurs, and in which order: the set only.
//! * which kernel function was interrupted, and which thread or CPU it was: threads share a shape
//!   where they share a stack, and `frames_step` tells them apart where a scenario wants it.
//! * an interrupt, fault or tick that happened to be running: the request counts as `user`, since
//!   the stack to expect is the same. Frame 0 is then anywhere in the leaf, so `leaf` is all that
//!   is shown of it; that of a system call is fixed, and shown in full.
//! * stacks of threads that are not at their leaf (on their way there, or ending), of the agent and
//!   of all other tasks.
//! * requests without an answer and answers without a request: the end of the session cuts some
//!   off. M1 and M3 judge them one by one.
//! * lost records and throttling.
//!
//! What is left must all occur in every run that injects often enough, or the scenario should not
//! use this style.

use std::collections::{BTreeSet, HashMap, HashSet};

use unwindlab_abi::message::{ExpectedStack, ThreadAnnounce};

use super::KernelResolver;
use super::names::{TaskName, TaskNames};
use super::place::{Interrupted, interrupted};
use super::stack::{self, Leaf};
use crate::trace::model::{MAX_DEFERRED_FRAMES, Trace};
use crate::trace::symbolize::UserSymbols;

pub(super) fn lines(trace: &Trace, kernel: KernelResolver<'_>) -> Vec<String> {
    let tasks = TaskNames::new(trace);
    let symbols = UserSymbols::new(&trace.user_symbols);
    let mut answers: HashMap<u64, HashSet<Vec<u64>>> = HashMap::new();
    for deferred in trace.events.iter().filter_map(|e| e.deferred_chain()) {
        let stacks = answers.entry(deferred.cookie).or_default();
        stacks.insert(deferred.frames());
    }
    let mut shapes = BTreeSet::new();
    // A kernel that is wrong gives one cookie to many requests and many stacks: requests that differ in nothing that a
    // shape shows have the same shapes.
    let mut shown = HashSet::new();
    for event in &trace.events {
        let (Some((sample, cookie)), TaskName::Workload(thread)) =
            (event.deferred_sample(), tasks.of(event))
        else {
            continue;
        };
        let of_user = interrupted(sample, kernel).at == Interrupted::User;
        if !shown.insert((cookie, std::ptr::from_ref(thread), of_user)) {
            continue;
        }
        for frames in answers.get(&cookie).into_iter().flatten() {
            let line = shape(of_user, frames, thread, &symbols);
            shapes.extend(line.map(|line| line.text(trace.threads.len() > 1)));
        }
    }
    shapes.into_iter().collect()
}

/// One request and its answer.
struct Shape {
    kind: &'static str,
    /// Frame 0 alone, in brackets.
    leaf: String,
    /// All frames, in brackets.
    stack: String,
    own_callers: bool,
}

impl Shape {
    fn text(&self, many_threads: bool) -> String {
        let Self {
            kind,
            leaf,
            stack,
            own_callers,
        } = self;
        match (own_callers, many_threads) {
            (true, false) => format!("{kind} -> {stack}"),
            (true, true) => format!("{kind} -> {}, its callers]", leaf.trim_end_matches(']')),
            (false, _) => format!("{kind} -> {stack} (not its own)"),
        }
    }
}

/// What one request and its answer are; `None` where the thread was not at its leaf.
fn shape(
    of_user: bool,
    frames: &[u64],
    thread: &ThreadAnnounce,
    symbols: &UserSymbols<'_>,
) -> Option<Shape> {
    let expected = &thread.stack;
    let (&first, callers) = frames.split_first()?;
    let after_syscall = expected.syscall_return != 0 && first == expected.syscall_return;
    if !after_syscall && !(expected.leaf_start..expected.leaf_end).contains(&first) {
        return None;
    }
    let (kind, leaf) = if after_syscall && !of_user {
        ("syscall", Leaf::Exact)
    } else {
        ("user", Leaf::Anywhere)
    };
    Some(Shape {
        kind,
        leaf: stack::line(&[first], symbols, leaf),
        stack: stack::line(frames, symbols, leaf),
        own_callers: callers_match(callers, expected),
    })
}

/// Compares with the stack by construction, cut where record 22 has no more room.
fn callers_match(callers: &[u64], expected: &ExpectedStack) -> bool {
    let room = MAX_DEFERRED_FRAMES - 1;
    callers
        .iter()
        .copied()
        .eq(expected.caller_addresses().take(room))
}
