//! The stacks that results should show, where they are known.

use std::fmt;

use unwindlab_abi::user_mode::{Asked, UnwinderKind};
use unwindlab_abi::user_stack::UserFrame;

use super::pairs::{Pair, pairs};
use crate::invariant::evidence::{Evidence, difference};
use crate::invariant::program::semantic::{names, semantic};
use crate::trace::{NonceResult, Trace};

/// The thread's stack at the instruction at which it is to go on, if that is known: of an NMI in user mode that at
/// which the vCPU stood, in a system call of the leaf, as its kernel chain says, the one behind it.
pub(super) fn truth(evidence: &Evidence<'_>, pair: &Pair<'_>) -> Option<Vec<u64>> {
    let (trace, facts) = (evidence.trace(), evidence.facts());
    let thread = { trace.threads.iter() }.find(|it| it.tid == pair.request.tid)?;
    let stack = &thread.stack;
    let injection = facts.injection(pair.event)?;
    let first = match facts.user_ip(pair.event) {
        Some(ip) => match trace.program.stack_at(ip, injection.stack_pointer) {
            Some(known) => return Some([ip].into_iter().chain(known.caller_addresses()).collect()),
            None => (stack.leaf_start..stack.leaf_end)
                .contains(&ip)
                .then_some(ip)?,
        },
        // Where a thread in the kernel goes on is known in its system call only, and not of one that may replace the
        // registers, as the return of a handler does.
        None if injection.thread == Some(thread.thread)
            && stack.syscall_return != 0
            && evidence.registers_kept(pair.event) =>
        {
            stack.syscall_return
        }
        None => return None,
    };
    Some(
        [first]
            .into_iter()
            .chain(stack.caller_addresses())
            .collect(),
    )
}

/// How a result is not that stack, as the unwinder shows it; nothing if it is.
pub(super) fn wrong(trace: &Trace, result: &NonceResult, truth: &[u64]) -> Option<String> {
    if !is_semantic(trace) {
        return (result.frames != truth).then(|| difference(&result.frames, truth));
    }
    let found = frames(result);
    (found != semantic(trace, truth)).then(|| format!("shown as {}", names(trace, &found)))
}

fn is_semantic(trace: &Trace) -> bool {
    let user_mode = trace.user_mode.as_ref();
    user_mode.is_some_and(|it| it.unwinder == UnwinderKind::Semantic)
}

fn frames(result: &NonceResult) -> Vec<UserFrame> {
    let words = result.frames.iter();
    words.map(|word| UserFrame::from_word(*word)).collect()
}

/// A result with functions that an interpreter executes, by names.
pub(super) fn mixed(trace: &Trace, result: &NonceResult) -> Option<String> {
    let found = frames(result);
    let is_mixed = { found.iter() }.any(|it| matches!(it, UserFrame::Interpreted(_)));
    is_mixed.then(|| names(trace, &found))
}

/// What handlers showed of stacks that are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NonceStacks {
    /// Results.
    pub results: usize,
    /// Those that are the stack.
    pub exact: usize,
    /// Frames of the stacks.
    pub frames: usize,
    /// How the handler unwinds.
    pub unwinder: UnwinderKind,
    /// An exact one with what an interpreter executes, by its functions' names, innermost first.
    pub mixed: Option<String>,
}

impl NonceStacks {
    /// Of a trace; `None` if no handler wrote a stack that is known.
    #[must_use]
    pub fn of(evidence: &Evidence<'_>) -> Option<Self> {
        let trace = evidence.trace();
        let user_mode = trace.user_mode.as_ref()?;
        let mut all = Self {
            unwinder: user_mode.unwinder,
            ..Self::default()
        };
        for pair in pairs(evidence, user_mode).into_iter().flatten().flatten() {
            let Some(truth) = truth(evidence, &pair) else {
                continue;
            };
            if pair.request.asked != Asked::Sent {
                continue;
            }
            for result in user_mode.results_of(pair.request.nonce) {
                let exact = wrong(trace, result, &truth).is_none();
                all.results += 1;
                all.exact += usize::from(exact);
                all.frames += truth.len();
                if exact && all.mixed.is_none() {
                    all.mixed = mixed(trace, result);
                }
            }
        }
        (all.results > 0).then_some(all)
    }
}

impl fmt::Display for NonceStacks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.unwinder {
            UnwinderKind::FramePointers => "by frame pointers",
            UnwinderKind::EhFrame => "by .eh_frame",
            UnwinderKind::Semantic => "by .eh_frame, with interpreted functions",
        };
        write!(
            out,
            "{} stacks of nonces where they are known, of {} frames, {by}: {} exact",
            self.results, self.frames, self.exact
        )?;
        match &self.mixed {
            Some(mixed) => write!(out, "; one of them: {mixed}"),
            None => Ok(()),
        }
    }
}
