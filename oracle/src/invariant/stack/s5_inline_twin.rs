//! S5: the deferred chain is what an event that does not defer saw at the same place.

use unwindlab_abi::message::ExpectedStack;
use unwindlab_abi::plan::{EventSource, EventSpec};

use crate::invariant::Tally;
use crate::invariant::evidence::{
    Answer, Evidence, Role, announced_spec, described_by_sections, difference, flaw_of,
    kernel_limit, loses, spec, spec_role,
};
use crate::invariant::user::registers::{registers, walk, walk_from_entry};
use crate::trace::{Event, EventKind, Trace};

/// `PERF_SAMPLE_CALLCHAIN`.
const CALLCHAIN: u64 = 1 << 5;

/// S5. Two events sample one occurrence: an NMI, or what both count where they count the same (a
/// tracepoint with one filter, a probe). One defers its user chain and its *twin* walks the user stack at
/// once (`perf_callchain_user`, arch/x86/events/core.c, 7.3). Nothing in user mode has run between
/// the two walks, so they show the same chain. The differences that the source explains:
///
/// * The twin's chain is shorter: kernel and user part together have at most `max_stack`
///   addresses, and it cannot fault in a page (`pagefault_disable`).
/// * The deferred chain is shorter: `unwind_user_next_common` (kernel/unwind/user.c) stops where a
///   frame does not lie above the last one, or is not aligned; the twin does not.
/// * The task's registers changed in the entry (`rt_sigreturn`, `execve`). No source says which of
///   the two stacks is then due, so this is undecided at the leaf, too. So is a different frame 0 in a system call that is
///   not known: it may be one of these.
///
/// The twin does not read SFrame sections: where those describe code that it shows, another chain is undecided.
///
/// Evidence is a pair with equal chains: two walkers that share no code. A difference violates it
/// where the NMI hit user mode or the event is a uprobe's ("the user space stacktrace remains the same
/// while the task is in the kernel", kernel/unwind/deferred.c), and where the task was at its leaf,
/// whose system calls do none of that; a chain that is only shorter violates it only on the side of the
/// deferred one, at the leaf, and at a uprobe where the sample's registers and stack show frames in order behind its end.
/// Any other difference is undecided.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let facts = evidence.facts();
    for (deferred, twin) in pairs(evidence.trace()) {
        let same = deferred.tid == twin.tid && deferred.kernel_chain() == twin.kernel_chain();
        let cookie = deferred.cookie().filter(|&cookie| cookie != 0);
        let answers = cookie
            .and_then(|cookie| facts.exchanges.get(&cookie))
            .map(|x| &x.answers);
        let (Some(answer), EventKind::Sample(at_once)) =
            (answers.and_then(|answers| answers.first()), &twin.kind)
        else {
            continue;
        };
        if !same || !at_once.is_inline() {
            tally.undecided("two samples of one occurrence that do not show the same place");
            continue;
        }
        let (now, later) = (at_once.user_chain(), answer.chain.ips.as_slice());
        if now == later {
            tally.holds();
            continue;
        }
        let stacks = facts.stacks_at_leaf(answer);
        let leaf = !stacks.is_empty();
        let wrong = match (later.starts_with(now), now.starts_with(later)) {
            (true, _) => false,
            (_, true) => {
                leaf && !is_whole(answer, &stacks) || ends_early(evidence, deferred, now, later)
            }
            _ => {
                leaf || facts.user_ip(deferred).is_some()
                    || is_of_uprobe(evidence.trace(), deferred)
            }
        };
        let replaced = may_be_replaced(evidence, deferred, now.first() == later.first());
        let described = || described_by_sections(evidence.trace(), now);
        if !wrong || replaced || described() {
            tally.undecided(match later.starts_with(now) {
                true if !replaced => why_shorter(evidence.trace(), twin),
                _ if wrong && !replaced => {
                    "sections describe the code, which the twin does not read"
                }
                _ => "a deferred chain that differs where the registers may have changed",
            });
            continue;
        }
        let message = format!(
            "record 22 of cookie {:#x} is not the chain that its twin shows: {}",
            answer.chain.cookie,
            difference(later, now)
        );
        let events = [deferred.index, twin.index, answer.event.index];
        tally.violated(message, events, facts.instruction(deferred));
    }
}

/// Whether the entry may have replaced the user registers. That shows in frame 0, but for a nested signal.
fn may_be_replaced(evidence: &Evidence<'_>, sample: &Event, same_frame0: bool) -> bool {
    let hit_user_mode =
        evidence.facts().user_ip(sample).is_some() || is_of_uprobe(evidence.trace(), sample);
    let kept = hit_user_mode || same_frame0 || evidence.registers_kept(sample);
    evidence.registers_replaced(sample) || !kept
}

/// Whether an answer is the whole of one of these stacks. Where that ends in a frame pointer that leads nowhere, the twin
/// follows it until its chain is full: it asks neither for order nor for alignment.
fn is_whole(answer: &Answer<'_>, stacks: &[&ExpectedStack]) -> bool {
    let whole = |frame0: &u64| {
        let mut stacks = stacks.iter();
        stacks.any(|stack| flaw_of(answer.chain, stack, *frame0).is_none())
    };
    answer.chain.ips.first().is_some_and(whole)
}

/// Whether a uprobe's chain ends where it must not: the frames behind its end lie in order on the sampled stack.
/// The twin shows whether the caller is on top of it, as at a function's first instruction: there both walkers ask
/// `is_uprobe_at_func_entry` (arch/x86/kernel/uprobes.c, 7.3).
fn ends_early(evidence: &Evidence<'_>, deferred: &Event, now: &[u64], later: &[u64]) -> bool {
    let (Some(registers), EventKind::Sample(sample)) =
        (registers(evidence, deferred), &deferred.kind)
    else {
        return false;
    };
    let stack = sample.stack_user.as_deref().unwrap_or_default();
    let walks = [walk(registers, stack), walk_from_entry(registers, stack)].map(|it| it.frames);
    let [plain, entry] = walks.each_ref().map(|frames| frames.get(1) == now.get(1));
    let due = match (plain, entry, &walks) {
        (true, false, [due, _]) | (false, true, [_, due]) => due,
        _ => return false,
    };
    is_of_uprobe(evidence.trace(), deferred) && due.len() > later.len() && due.starts_with(later)
}

fn is_of_uprobe(trace: &Trace, sample: &Event) -> bool {
    spec(trace, sample).is_some_and(|spec| matches!(spec.source, EventSource::Uprobe { .. }))
}

fn why_shorter(trace: &Trace, twin: &Event) -> &'static str {
    let EventKind::Sample(sample) = &twin.kind else {
        return "no sample";
    };
    let length = sample.kernel_chain().len() + sample.user_chain().len();
    match spec(trace, twin).is_some_and(|spec| length >= kernel_limit(trace, spec)) {
        true => "the twin's chain is cut at max_stack",
        false => "the twin's chain ends early, as it does at a page that is not present",
    }
}

/// What two events count that are twins on one CPU.
#[derive(PartialEq)]
struct Counted<'t> {
    cpu: u32,
    /// `None`: NMIs, whatever counts them.
    source: Option<(&'t EventSource, Option<&'t str>)>,
}

impl<'t> Counted<'t> {
    /// `None` for events of which two may fire at different times.
    fn of(cpu: u32, spec: &'t EventSpec) -> Option<Self> {
        let source = match &spec.source {
            _ if spec_role(spec) == Role::Nmi => None,
            source @ (EventSource::Tracepoint { .. } | EventSource::Uprobe { .. }) => {
                Some((source, spec.filter.as_deref()))
            }
            _ => return None,
        };
        (source.is_none() || spec.sample_period == 1).then_some(Self { cpu, source })
    }
}

/// The samples of the events that count something: those of one that defers, and of its twin.
type Twins<'t> = [Option<Vec<&'t Event>>; 2];

/// The samples of a deferring event and of its twin on one CPU, one of each for each occurrence.
fn pairs(trace: &Trace) -> Vec<(&Event, &Event)> {
    let mut all: Vec<(Counted<'_>, Twins<'_>)> = Vec::new();
    for (at, open) in trace.session.iter().enumerate() {
        let Some(spec) = announced_spec(trace, open) else {
            continue;
        };
        let Some(counted) = Counted::of(open.cpu, spec).filter(|_| has_user_chain(spec)) else {
            continue;
        };
        let lossy = trace.events.iter().any(|e| e.ring == open.ring && loses(e));
        let samples = trace.events.iter();
        let mut samples: Vec<&Event> = samples
            .filter(|e| e.event == Some(at) && matches!(e.kind, EventKind::Sample(_)))
            .collect();
        samples.sort_by_key(|e| e.position);
        let known = all.iter().position(|(it, _)| *it == counted);
        let at = known.unwrap_or_else(|| {
            all.push((counted, Twins::default()));
            all.len() - 1
        });
        let Some((_, [deferred, twin])) = all.get_mut(at) else {
            continue;
        };
        let list = if spec.defer_callchain { deferred } else { twin };
        if list.is_none() && !lossy {
            *list = Some(samples);
        }
    }
    let lists = all.into_iter().map(|(_, twins)| twins);
    lists
        .filter_map(|[deferred, twin]| Some((deferred?, twin?)))
        .filter(|(deferred, twin)| deferred.len() == twin.len())
        .flat_map(|(deferred, twin)| deferred.into_iter().zip(twin))
        .collect()
}

fn has_user_chain(spec: &EventSpec) -> bool {
    spec.sample_type & CALLCHAIN != 0 && !spec.exclude_callchain_user
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit::entry_text::{Far, Via, outer};
    use crate::invariant::testkit::{
        Hit, Kit, NMI_FRAMES, check, check_in, holds, kernel, not_exercised, spec, tracepoint,
        user, violations,
    };
    use crate::trace::model::{CONTEXT_KERNEL, CONTEXT_USER, CONTEXT_USER_DEFERRED};

    const C: u64 = 3 << 32 | 1;
    const RIP: u64 = 0xffff_ffff_8100_1234;

    /// An NMI, with what the twin and the answer show.
    fn nmi(hit: Hit, twin: &[u64], deferred: &[u64]) -> Kit {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        let at = kit.open(spec("twin", tracepoint("nmi", "nmi_handler")));
        // An NMI in the kernel hits the leaf's system call.
        let outer = match hit.cpl {
            0 => outer(Via::Syscall, Far::Body),
            _ => Vec::new(),
        };
        kit.inject_in(0, 1001, C, hit, &outer);
        let kernel = kit.trace().events[0].kernel_chain().to_vec();
        let mut chain = vec![CONTEXT_KERNEL];
        chain.extend(kernel);
        chain.push(CONTEXT_USER);
        chain.extend(twin);
        kit.sample(0, 1001, at, chain);
        kit.deferred(0, 1001, C, deferred);
        kit
    }

    #[test]
    fn equal_chains_hold() {
        for hit in [kernel(RIP).iteration(0, 1), user(0x5000)] {
            let kit = nmi(hit, &[0x5000, 0x2000, 0x3000], &[0x5000, 0x2000, 0x3000]);
            // The twin is an NMI event too: one injection, one sample of each.
            assert_eq!(holds("S5", &kit).0, 1);
        }
    }

    #[test]
    fn another_deferred_chain_at_the_leaf_or_in_user_mode_does_not() {
        let hit = kernel(RIP).iteration(0, 1);
        violations(
            "S5",
            &nmi(hit, &[0x1080, 0x2000, 0x2000, 0x3000], &[0x1080, 0x2000]),
        );
        violations("S5", &nmi(hit, &[0x1080, 0x2000], &[0x1080, 0x2008]));
        violations(
            "S5",
            &nmi(user(0x5000), &[0x5000, 0x2000], &[0x5000, 0x2008]),
        );
    }

    /// A kernel whose walk is wrong shows these too.
    #[test]
    fn what_the_source_explains_does_not_exercise_it() {
        let hit = kernel(RIP).iteration(0, 1);
        // Pages that were not present.
        not_exercised("S5", &nmi(hit, &[0x1080], &[0x1080, 0x2000]));
        // Frames out of order, in foreign code.
        not_exercised("S5", &nmi(user(0x5000), &[0x5000, 0x2000], &[0x5000]));
        // Other registers.
        not_exercised("S5", &nmi(hit, &[0x5000, 0x2000], &[0x6000, 0x2000]));
    }

    /// Where the root's frame pointer leads to itself the twin follows it, and the walk rightly stops.
    #[test]
    fn a_twin_that_goes_beyond_the_whole_stack_decides_nothing() {
        let hit = kernel(RIP).iteration(0, 1);
        let whole = [0x1080, 0x2000, 0x2000, 0x3000];
        let beyond = [&whole[..], &[0x3000, 0x3000]].concat();
        not_exercised("S5", &nmi(hit, &beyond, &whole));
        violations("S5", &nmi(hit, &beyond, &whole[..3]));
    }

    /// A uprobe's pair, with the stack pointer 0x8000, this frame pointer, and this stack.
    fn uprobe(bp: u64, stack: &[u64], twin: &[u64], deferred: &[u64]) -> Check {
        let source = EventSource::Uprobe {
            symbol: "deep_leaf".into(),
            offset: 0,
            at_return: false,
        };
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        let mut asker = spec("asker", source.clone());
        asker.defer_callchain = true;
        asker.details.regs_user = 1 << 6 | 1 << 7 | 1 << 8;
        let asker = kit.open(asker);
        let at = kit.open(spec("twin", source));
        kit.sample(0, 1001, at, [&[CONTEXT_USER], twin].concat());
        let asked = kit.sample(0, 1001, asker, vec![CONTEXT_USER_DEFERRED, C]);
        kit.deferred(0, 1001, C, deferred);
        let mut trace = kit.trace();
        let EventKind::Sample(sample) = &mut trace.events[asked].kind else {
            panic!("a sample");
        };
        sample.user_abi = 2;
        sample.regs_user = Some(vec![bp, 0x8000, 0x5000]);
        sample.stack_user = Some(stack.iter().flat_map(|word| word.to_le_bytes()).collect());
        check("S5", &trace)
    }

    #[test]
    fn a_uprobes_chain_ends_early_where_the_stack_goes_on() {
        let early = |bp, stack: &[u64], twin: &[u64], deferred: &[u64]| {
            let found = uprobe(bp, stack, twin, deferred);
            let undecided = matches!(found, Check::NotExercised { undecided: 1, .. });
            assert!(
                undecided || matches!(found, Check::Violated(_)),
                "{found:?}"
            );
            !undecided
        };
        // Not the workload's leaf. At a function's first instruction; its caller's frame is the last, or another follows.
        assert!(early(0, &[0x2000], &[0x5000, 0x2000], &[0x5000]));
        let (stack, twin) = ([0x2000, 0, 0x3000], [0x5000, 0x2000, 0x3000]);
        assert!(early(0x8008, &stack, &twin, &twin[..2]));
        // Behind its prologue.
        let (stack, twin) = ([0, 0x2000], [0x5000, 0x2000]);
        assert!(early(0x8000, &stack, &twin, &twin[..1]));
        // Frames that are out of order, and an end that the sampled stack does not show.
        let stack = [0x2000, 0, 0x3000];
        let twin = [0x5000, 0x2000, 0x3000];
        assert!(!early(0x7000, &stack, &twin, &twin[..2]));
        assert!(!early(0x8008, &stack[..1], &twin, &twin[..2]));
        // Both ways lead to the same caller, and neither does.
        let stack = [0x2000, 0x2000];
        assert!(!early(0x8000, &stack, &twin[..2], &twin[..1]));
        assert!(!early(0, &[0x2008], &twin[..2], &twin[..1]));
    }

    #[test]
    fn a_request_in_sigreturn_has_two_stacks() {
        for (name, evidence) in [
            ("__x64_sys_rt_sigreturn", 0),
            ("do_syscall_64", 0),
            ("__x64_sys_getppid", 1),
        ] {
            // The handler's, and the one of the code that it interrupted, in its leaf.
            let chains: [&[u64]; 2] = [&[0x5000, 0x6000], &[0x1080, 0x2000, 0x2000, 0x3000]];
            let trace = nmi(kernel(RIP).iteration(0, 1), chains[0], chains[1]).trace();
            let found = match check_in("S5", &trace, name) {
                Check::Violated(list) => list.len(),
                Check::NotExercised { .. } => 0,
                Check::Holds { .. } => panic!("{name}"),
            };
            assert_eq!(found, evidence, "{name}");
        }
    }

    /// A kernel that reads them is right.
    #[test]
    fn another_chain_of_code_that_sections_describe_is_undecided() {
        let right = [0x1080, 0x2000, 0x2000, 0x3000];
        let mut trace = nmi(user(0x1080), &[0x1080, 0x3000], &right).trace();
        assert!(matches!(check("S5", &trace), Check::Violated(_)));
        trace.program.covered = vec![(0x1000, 0x1100)];
        let found = check("S5", &trace);
        assert!(
            matches!(found, Check::NotExercised { undecided: 1, .. }),
            "{found:?}"
        );
    }

    /// Other registers have another instruction in frame 0, as a rule.
    #[test]
    fn a_chain_that_goes_on_otherwise_from_the_same_instruction_does_not_hold() {
        let right = [0x1080, 0x2000, 0x2000, 0x3000];
        let trace = nmi(kernel(RIP).iteration(0, 1), &right, &[0x1080, 0x2008]).trace();
        let found = check_in("S5", &trace, "do_syscall_64");
        assert!(matches!(found, Check::Violated(_)), "{found:?}");
    }

    #[test]
    fn samples_of_different_nmis_do_not_exercise_it() {
        let mut kit = nmi(kernel(RIP).iteration(0, 1), &[0x1080], &[0x1080]);
        let twin = 4;
        let chain = vec![CONTEXT_KERNEL, NMI_FRAMES[0], CONTEXT_USER, 0x1080];
        kit.sample(0, 1001, twin, chain);
        not_exercised("S5", &kit);
    }

    fn reason(kit: &Kit) -> String {
        not_exercised("S5", kit)
    }

    /// Equal user chains of two places show nothing.
    #[test]
    fn samples_of_two_tasks_or_kernel_stacks_are_no_pair() {
        let chain = [0x5000, 0x2000, 0x3000];
        let hit = kernel(RIP).iteration(0, 1);
        let changed = |change: fn(&mut Event)| {
            let mut trace = nmi(hit, &chain, &chain).trace();
            change(&mut trace.events[1]);
            let found = check("S5", &trace);
            assert!(
                matches!(found, Check::NotExercised { undecided: 1, .. }),
                "{found:?}"
            );
        };
        changed(|twin| twin.tid = Some(1002));
        changed(|twin| {
            if let EventKind::Sample(sample) = &mut twin.kind {
                sample.chain.as_mut().unwrap()[1] += 8;
            }
        });
    }

    #[test]
    fn why_a_twin_is_shorter_is_told() {
        let hit = kernel(RIP).iteration(0, 1);
        let cut_at = |limit: u16| {
            let mut kit = nmi(hit, &[0x1080], &[0x1080, 0x2000]);
            kit.spec("twin", |spec| spec.max_stack = limit);
            reason(&kit)
        };
        let length = nmi(hit, &[0x1080], &[]).trace().events[0]
            .kernel_chain()
            .len()
            + 1;
        let length = u16::try_from(length).unwrap();
        assert!(cut_at(length).contains("is cut at max_stack"));
        assert!(cut_at(length + 1).contains("ends early"));
        let other = nmi(hit, &[0x5000, 0x2000], &[0x6000, 0x2000]);
        assert!(reason(&other).contains("registers may have changed"));
    }

    /// Which sample is missing, nobody knows.
    #[test]
    fn a_loss_in_the_ring_of_a_twin_leaves_nothing_to_compare() {
        let chain = [0x5000, 0x2000, 0x3000];
        for (ring, held) in [(0, 0), (1, 1)] {
            let mut kit = Kit::new(2);
            kit.thread(0, 1001);
            let at = kit.open(spec("twin", tracepoint("nmi", "nmi_handler")));
            kit.inject(0, 1001, C, user(0x5000));
            let kernel = kit.trace().events[0].kernel_chain().to_vec();
            let twin = [&[CONTEXT_KERNEL], &kernel[..], &[CONTEXT_USER], &chain].concat();
            kit.sample(0, 1001, at, twin);
            kit.deferred(0, 1001, C, &chain);
            kit.lost(ring, 1);
            let found = match check("S5", &kit.trace()) {
                Check::Holds { evidence, .. } => evidence,
                _ => 0,
            };
            assert_eq!(found, held, "ring {ring}");
        }
    }

    #[test]
    fn an_event_without_user_chains_is_no_twin() {
        let chain = [0x5000, 0x2000, 0x3000];
        let without = |change: fn(&mut EventSpec)| {
            let mut kit = nmi(user(0x5000), &chain, &chain);
            kit.spec("twin", change);
            reason(&kit)
        };
        for reason in [
            without(|spec| spec.exclude_callchain_user = true),
            without(|spec| spec.sample_type &= !CALLCHAIN),
        ] {
            assert!(!reason.contains("undecided"), "{reason}");
        }
    }
}
