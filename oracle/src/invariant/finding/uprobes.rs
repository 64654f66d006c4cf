//! What uprobes leave in a user chain.

use unwindlab_abi::plan::EventSource;

use crate::invariant::evidence::{Facts, expected, spec};
use crate::trace::{Event, EventKind, Trace};

/// The longest instruction of x86.
const LONGEST: u64 = 15;
/// Where the kernel executes probed instructions, and where its trampoline is: a page of slots
/// (`UPROBE_XOL_SLOT_BYTES`, include/linux/uprobes.h and arch/x86/include/asm/uprobes.h, 7.3).
const SLOT: u64 = 128;
const PAGE: u64 = 4096;

/// Whether a uprobe or uretprobe made a sample.
pub(super) fn is_of_uprobe(trace: &Trace, event: &Event) -> bool {
    spec(trace, event).is_some_and(|spec| matches!(spec.source, EventSource::Uprobe { .. }))
}

/// Whether a record 22 differs from the stack of its thread by the address of a trampoline alone: the
/// start of a page, where return addresses are, while a uretprobe is open.
pub(super) fn has_trampolines(facts: &Facts<'_>, event: &Event) -> bool {
    let specs = { facts.trace.tracing.iter() }.flat_map(|it| &it.events);
    let mut sources = specs.map(|spec| &spec.source);
    let returns = |it: &EventSource| {
        matches!(
            it,
            EventSource::Uprobe {
                at_return: true,
                ..
            }
        )
    };
    let answer = { facts.answers.iter() }.find(|it| it.event.index == event.index);
    let (true, Some(answer)) = (sources.any(returns), answer) else {
        return false;
    };
    let ips = &answer.chain.ips;
    let Some(&frame0) = ips.first() else {
        return false;
    };
    let only_those = |wanted: Vec<u64>| {
        let pairs = ips.iter().zip(&wanted);
        let mut others = pairs
            .filter(|(found, wanted)| found != wanted)
            .map(|it| it.0);
        let Some(&first) = others.next() else {
            return false;
        };
        wanted.len() == ips.len() && first % PAGE == 0 && others.all(|other| *other == first)
    };
    let stacks = facts.stacks_at_leaf(answer);
    { stacks.iter() }.any(|stack| only_those(expected(stack, frame0).collect()))
}

/// Whether a record 22 shows the task as a uprobe left it for user mode, and not as the twin of its
/// request saw it: frame 0 is a slot, the trampoline, or the next instruction, and the immediate
/// caller may be missing. All other frames are the twin's.
pub(super) fn is_stepped(event: &Event, all: &[&Event]) -> bool {
    let mut inline = all.iter().filter_map(|it| match &it.kind {
        EventKind::Sample(sample) if sample.is_inline() => Some(sample),
        _ => None,
    });
    let Some(twin) = inline.next() else {
        return false;
    };
    let later = event.deferred_chain().map_or(&[][..], |it| &it.ips);
    let (Some((frame0, callers)), Some((probed, wanted))) =
        (later.split_first(), twin.user_chain().split_first())
    else {
        return false;
    };
    let same = callers == wanted;
    let lacks_caller = wanted.get(1..) == Some(callers);
    let next = (1..=LONGEST).any(|n| probed.checked_add(n) == Some(*frame0));
    let elsewhere = frame0 / PAGE != probed / PAGE;
    let slot = elsewhere && frame0 % SLOT == 0 && !wanted.contains(frame0);
    let trampoline = elsewhere && frame0 % PAGE < SLOT;
    (next || slot) && (same || lacks_caller) || trampoline && same
}
