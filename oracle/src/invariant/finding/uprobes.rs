//! What uprobes leave in a user chain.

use std::collections::BTreeSet;
use std::iter::{once, repeat_n};
use std::ops::Range;

use unwindlab_abi::plan::EventSource;

use crate::invariant::evidence::{Facts, at_leaf, expected, spec};
use crate::trace::{Event, EventKind, Trace};

/// The longest instruction of x86.
const LONGEST: u64 = 15;
/// Where the kernel executes probed instructions, and where its trampoline is: a page of slots
/// (`UPROBE_XOL_SLOT_BYTES`, include/linux/uprobes.h and arch/x86/include/asm/uprobes.h, 7.3).
const SLOT: u64 = 128;
const PAGE: u64 = 4096;
/// The end of user memory (`TASK_SIZE_MAX` with four levels of page tables, arch/x86/include/asm/page_64.h).
const USER_END: u64 = 1 << 47;
/// The symbol of a function that ends in a jump to another one, and that other one, which nothing else calls.
const TAIL_CALL: (&str, &str) = ("deep_stub", "deep_leaf");

/// Whether a uprobe or uretprobe made a sample.
pub(super) fn is_of_uprobe(trace: &Trace, event: &Event) -> bool {
    spec(trace, event).is_some_and(|spec| matches!(spec.source, EventSource::Uprobe { .. }))
}

/// Whether a record 22 differs from the stack of its thread by the address of a trampoline alone: the
/// start of a page, in place of return addresses of functions whose uretprobes are open.
pub(super) fn has_trampolines(facts: &Facts<'_>, event: &Event) -> bool {
    let answer = { facts.answers.iter() }.find(|it| it.event.index == event.index);
    let (Some(probed), Some(answer)) = (probed(facts.trace), answer) else {
        return false;
    };
    let ips = &answer.chain.ips;
    let Some(&frame0) = ips.first() else {
        return false;
    };
    let only_those = |wanted: Vec<u64>| {
        let is_pending = |callee: &u64| probed.iter().any(|code| code.contains(callee));
        let pending: Vec<bool> = callees(&wanted).map(|it| is_pending(&it)).collect();
        // Frame 0 is no return address.
        let pending = once(false).chain(pending);
        let frames = ips.iter().zip(&wanted).zip(pending);
        let mut others = frames.filter(|((found, wanted), _)| found != wanted);
        let Some(((&first, _), true)) = others.next() else {
            return false;
        };
        wanted.len() == ips.len()
            && first % PAGE == 0
            && is_of_kernel(facts.trace, first)
            && others.all(|((other, _), pending)| *other == first && pending)
    };
    let stacks = facts.stacks_at_leaf(answer);
    { stacks.iter() }.any(|stack| only_those(expected(stack, frame0).collect()))
}

/// Of each frame of a chain, an address in the function to which it belongs: a return address may be behind its end.
fn callees(chain: &[u64]) -> impl Iterator<Item = u64> {
    let frames = chain.iter().enumerate();
    frames.map(|(frame, ip)| ip.saturating_sub(u64::from(frame > 0)))
}

/// Whether a record 22 shows the task as a uprobe left it for user mode, and not as the twin of its
/// request saw it: frame 0 is a slot, the trampoline, or the next instruction, and the immediate
/// caller may be missing. All other frames are the twin's.
pub(super) fn is_stepped(trace: &Trace, event: &Event, all: &[&Event]) -> bool {
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
    let elsewhere = frame0 / PAGE != probed / PAGE && is_of_kernel(trace, *frame0);
    let slot = elsewhere && frame0 % SLOT == 0 && !wanted.contains(frame0);
    let trampoline = elsewhere && frame0 % PAGE < SLOT;
    (next || slot) && (same || lacks_caller) || trampoline && same
}

/// Whether a user address can be of the page in which the kernel executes probed instructions: it is in none of the program's
/// functions, nor in the page at address 0, which nothing maps.
fn is_of_kernel(trace: &Trace, ip: u64) -> bool {
    let mut functions = trace.user_symbols.iter();
    (PAGE..USER_END).contains(&ip) && !functions.any(|it| (it.start..it.end).contains(&ip))
}

/// Whether the user chain of an event, inline or deferred, is the stack of its thread. `all` are the events of
/// the violation: frame 0 is that of the record 22 among them, and at the leaf.
pub(super) fn is_as_built(facts: &Facts<'_>, event: &Event, all: &[&Event]) -> bool {
    let chain = user_chain(event);
    stacks(facts, event, all).iter().any(|it| *it == chain)
}

/// Whether an inline chain is what perf makes of the stack of its thread if it takes one return
/// instance for each trampoline (`fixup_uretprobe_trampoline_entries`, kernel/events/callchain.c, 7.3), though
/// uretprobes share one: from there on, each trampoline has a return address of one further in.
pub(super) fn is_shifted(facts: &Facts<'_>, event: &Event, all: &[&Event]) -> bool {
    let chain = user_chain(event);
    let shifted = |stack: &Vec<u64>| {
        let wrong = taken_one_by_one(facts.trace, stack);
        wrong.is_some_and(|wrong| wrong == chain && wrong != *stack)
    };
    stacks(facts, event, all).iter().any(shifted)
}

/// The chain in which each trampoline on a stack has the return address of one more uretprobe that is
/// pending, innermost first. `None` where it is not known which are.
fn taken_one_by_one(trace: &Trace, stack: &[u64]) -> Option<Vec<u64>> {
    let probed = probed(trace)?;
    let frames = callees(stack).zip(stack.iter().skip(1));
    let frames = frames.map(|(callee, address)| {
        let pending = probed.iter().filter(|code| code.contains(&callee));
        (pending.count(), *address)
    });
    let frames: Vec<(usize, u64)> = frames.collect();
    let all = { frames.iter() }.flat_map(|(pending, address)| repeat_n(*address, *pending));
    let mut instances = all.collect::<Vec<u64>>().into_iter();
    let callers = frames.iter().map(|(pending, address)| match pending {
        0 => Some(*address),
        _ => instances.next(),
    });
    once(stack.first().copied()).chain(callers).collect()
}

/// Of each uretprobe, the code of the function whose return address is its own. `None` if one is
/// not at the beginning of a function, or nothing is known of that.
fn probed(trace: &Trace) -> Option<Vec<Range<u64>>> {
    let specs = { trace.tracing.iter() }.flat_map(|it| &it.events);
    let mut symbols: BTreeSet<&str> = BTreeSet::new();
    for spec in specs {
        match &spec.source {
            EventSource::Uprobe { at_return, .. } if !at_return => {}
            // Several events of one function are one uprobe.
            EventSource::Uprobe { symbol, offset, .. } => {
                symbols.insert(Some(symbol.as_str()).filter(|_| *offset == 0)?);
            }
            _ => {}
        }
    }
    let (stub, target) = TAIL_CALL;
    let code = |symbol: &str| {
        let function = if symbol == stub { target } else { symbol };
        let known = trace.user_symbols.iter().find(|it| it.name == function)?;
        Some(known.start..known.end)
    };
    symbols.into_iter().map(code).collect()
}

/// The stacks that an event can be of, as chains with frame 0 of the record 22 among `all`.
fn stacks(facts: &Facts<'_>, event: &Event, all: &[&Event]) -> Vec<Vec<u64>> {
    let mut answers = all.iter().filter_map(|it| it.deferred_chain());
    let Some(&frame0) = answers.next().and_then(|it| it.ips.first()) else {
        return Vec::new();
    };
    let threads = facts.threads(event).into_iter();
    let there = threads.filter(|thread| at_leaf(&thread.stack, frame0));
    let all = there.map(|thread| expected(&thread.stack, frame0).collect());
    all.collect()
}

/// The user chain that an event has itself.
fn user_chain(event: &Event) -> &[u64] {
    match &event.kind {
        EventKind::Sample(sample) => sample.user_chain(),
        EventKind::CallchainDeferred(answer) => &answer.ips,
        _ => &[],
    }
}
