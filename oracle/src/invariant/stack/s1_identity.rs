//! S1: an answer shows the user stack at the time of the entry.

use std::collections::BTreeMap;

use unwindlab_abi::message::ExpectedStack;

use crate::invariant::Tally;
use crate::invariant::evidence::{
    Answer, Evidence, Exchange, Facts, Origin, Relation, Request, Syscalls, Task, at_leaf, flaw_of,
};
use crate::trace::Event;

/// S1. Five things are known of the D of workload threads:
///
/// * By construction: where frame 0 lies at the thread's leaf, the whole chain is known, and the D
///   must equal it frame by frame, cut to 510.
/// * By injection: where an NMI into user mode raised an S of the same cookie, frame 0 is the
///   interrupted instruction.
/// * By sample: an S of the same cookie may show that instruction itself (`evidence/sampled.rs`).
/// * By system call: where an S of the same cookie lies between `sys_enter` and `sys_exit`, and
///   frame 0 is at the leaf, frame 0 is the instruction after the leaf's `syscall`. The number that
///   `sys_enter` shows tells it from the other system calls of the leaf.
///
/// * By return: where the S and the D are of one entry, and the task then returned to frame 0, the witness has seen the
///   instruction. It may return elsewhere, to the handler of a signal for one, so another one is no violation.
///
/// Evidence is a D at the leaf of which frame 0 is known in one of the last four ways: the callers
/// are always the same, so a stack kept from an earlier entry differs in frame 0 alone. For that,
/// other things than markers show the system call, too: its own function in the kernel chain of the S, the S's tracepoint,
/// or the bottom of the chain after a return to the leaf. It is no evidence
/// if the S was made in a system call that gives the task other registers: the D then shows another
/// stack than that of the entry, which may be at the leaf again.
///
/// A frame 0 elsewhere (on the way down to the leaf, at the start and end of a thread) is counted,
/// not judged. NMIs in the system call entry stub need no special case: they affect the user
/// registers of the sample, and a D is unwound on the way out.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let mut asked = Asked::default();
    let mut elsewhere = 0;
    for answer in &facts.answers {
        if facts.threads(answer.event).is_empty() {
            continue;
        }
        if let Some((message, sample)) = wrong(facts, answer, &mut asked) {
            let shown_by = sample.and_then(|at| trace.events.get(at));
            let shown_by = shown_by.or_else(|| {
                let exchange = facts.exchanges.get(&answer.chain.cookie)?;
                Some(exchange.requests.last()?.event)
            });
            let events = { shown_by.iter() }.map(|it| it.index);
            let events = events.chain([answer.event.index]);
            let instruction = shown_by.and_then(|event| facts.instruction(event));
            tally.violated(message, events, instruction);
        } else if facts.stacks_at_leaf(answer).is_empty() {
            elsewhere += 1;
        } else if frame0_is_known(evidence, answer, &mut asked) || returned_there(facts, answer) {
            tally.holds();
        } else {
            tally.undecided("where in its leaf the thread was is not known");
        }
    }
    tally.note(
        elsewhere,
        "records 22 with frame 0 not at the leaf, not judged",
    );
}

/// What the requests of a cookie show of each of its answers. Derived once, because an endless entry has very many of both.
#[derive(Default)]
struct Asked {
    /// Whether some request was made in a system call that leaves the user registers alone, and none in one that
    /// replaces them.
    in_system_call: BTreeMap<u64, bool>,
    /// By task: the first request in a system call of the leaf.
    in_leaf: BTreeMap<(u64, Task), Option<usize>>,
}

impl Asked {
    fn in_system_call(&mut self, evidence: &Evidence<'_>, exchange: &Exchange<'_>) -> bool {
        let Some(first) = exchange.requests.first() else {
            return false;
        };
        let known = self.in_system_call.entry(first.cookie);
        *known.or_insert_with(|| {
            let mut requests = exchange.requests.iter();
            requests.clone().any(|it| in_system_call(evidence, it))
                && !requests.any(|it| evidence.registers_replaced(it.event))
        })
    }

    fn in_leaf(&mut self, facts: &Facts<'_>, exchange: &Exchange<'_>, task: Task) -> Option<usize> {
        let first = exchange.requests.first()?;
        let known = self.in_leaf.entry((first.cookie, task));
        *known.or_insert_with(|| {
            let mut requests = exchange.requests.iter().filter(|it| it.task == Some(task));
            let found = requests.find(|it| {
                let around = facts.syscalls.around(facts.trace, task, it.event);
                around.is_some_and(|it| Syscalls::is_of_leaf(facts.trace, it))
            });
            Some(found?.event.index)
        })
    }
}

/// Whether frame 0, which is not wrong, is known from something else than the D.
fn frame0_is_known(evidence: &Evidence<'_>, answer: &Answer<'_>, asked: &mut Asked) -> bool {
    let facts = evidence.facts();
    let Some(exchange) = facts.exchanges.get(&answer.chain.cookie) else {
        return false;
    };
    let frame0 = answer.chain.ips.first();
    let returns = facts.stacks_at_leaf(answer);
    let returns = returns.iter().any(|it| Some(&it.syscall_return) == frame0);
    facts.entry_ip(exchange).is_some() || returns && asked.in_system_call(evidence, exchange)
}

/// Whether the entry ended at frame 0.
fn returned_there(facts: &Facts<'_>, answer: &Answer<'_>) -> bool {
    let to = facts.returns.to(answer.event);
    let exchange = facts.exchanges.get(&answer.chain.cookie);
    // One is enough, and an endless entry has very many.
    let request = exchange.and_then(|it| it.requests.first());
    to.is_some()
        && to == answer.chain.ips.first().copied()
        && request.is_some_and(|it| {
            let relation = facts.relation(it.event, answer.event);
            matches!(relation, Relation::Same(_))
        })
}

/// One that leaves the user registers alone, as the markers, the chain or the tracepoint show. Or no handler has begun since
/// the task was in its leaf: that takes a return to user mode.
fn in_system_call(evidence: &Evidence<'_>, request: &Request<'_>) -> bool {
    let facts = evidence.facts();
    let around = |task| facts.syscalls.around(facts.trace, task, request.event);
    let marked = request.task.and_then(around);
    marked.is_some_and(|it| Syscalls::is_of_leaf(facts.trace, it))
        || evidence.registers_kept(request.event)
        || matches!(facts.origin(request.event), Origin::SystemCall(_))
            && came_from_leaf(facts, request.event)
}

/// Whether the task was in its leaf when it was last seen to go to user mode.
fn came_from_leaf(facts: &Facts<'_>, sample: &Event) -> bool {
    let last = facts.returns.last(sample);
    let threads = facts.threads(sample);
    last.is_some_and(|last| threads.iter().any(|it| at_leaf(&it.stack, last.rip)))
}

/// What is wrong with the chain, and the sample that shows it.
fn wrong(
    facts: &Facts<'_>,
    answer: &Answer<'_>,
    asked: &mut Asked,
) -> Option<(String, Option<usize>)> {
    let cookie = answer.chain.cookie;
    let frame0 = answer.chain.ips.first().copied();
    let shown = frame0.map_or_else(|| "missing".into(), |ip| format!("{ip:#x}"));
    let exchange = facts.exchanges.get(&cookie);
    let interrupted = exchange.and_then(|x| facts.entry_ip(x));
    if let Some((ip, sample)) = interrupted
        && frame0 != Some(ip)
    {
        let message =
            format!("frame 0 of cookie {cookie:#x} is {shown}, but its entry was made at {ip:#x}");
        return Some((message, Some(sample)));
    }
    let stacks = facts.stacks_at_leaf(answer);
    let (first, frame0) = (stacks.first()?, frame0?);
    let differs = |stack: &ExpectedStack| flaw_of(answer.chain, stack, frame0);
    let right = stacks.iter().find(|stack| differs(stack).is_none());
    // Whatever the callers are.
    let returns_to = right.unwrap_or(first).syscall_return;
    if ![0, frame0].contains(&returns_to)
        && let (Some(exchange), Some(task)) = (exchange, answer.task)
        && let Some(in_syscall) = asked.in_leaf(facts, exchange, task)
    {
        let message = format!(
            "frame 0 of cookie {cookie:#x} is {shown}, but its system call returns to {returns_to:#x}"
        );
        return Some((message, Some(in_syscall)));
    }
    match right {
        Some(_) => None,
        None => Some((
            format!(
                "the stack of cookie {cookie:#x} is not the thread's: {}",
                differs(first)?
            ),
            None,
        )),
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::entry_text::{Far, Via, outer};
    use crate::invariant::testkit::{self, check};
    use crate::invariant::testkit::{
        Kit, SOMEWHERE, check_in, holds, kernel, not_exercised, undecided, user, violations,
    };

    const C: u64 = 3 << 32 | 1;
    const CALLERS: [u64; 3] = [0x2000, 0x2000, 0x3000];

    fn chain(frame0: u64) -> Vec<u64> {
        let mut all = vec![frame0];
        all.extend(CALLERS);
        all
    }

    #[test]
    fn the_stack_by_construction_holds() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.inject(0, 1001, C, user(0x1004));
        kit.deferred(0, 1001, C, &chain(0x1004));
        kit.deferred(0, 1001, C, &[0x5000, 0x3000]);
        kit.deferred(0, 1002, C, &[0x1004]);
        // The second one has another frame 0 than the NMI's, so leave it its own cookie.
        let mut trace = kit.trace();
        if let crate::trace::EventKind::CallchainDeferred(d) = &mut trace.events[2].kind {
            d.cookie += 2 << 32;
        }
        let Check::Holds {
            evidence, excused, ..
        } = check("S1", &trace)
        else {
            panic!("does not hold");
        };
        assert_eq!(evidence, 1);
        assert_eq!(excused.len(), 1);
    }

    #[test]
    fn a_wrong_frame_a_missing_one_and_one_too_many_do_not() {
        for bad in [
            &[0x1004, 0x2000, 0x2008, 0x3000][..],
            &[0x1004, 0x2000, 0x3000],
            &[0x1004, 0x2000, 0x2000, 0x3000, 0x3000],
        ] {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            let asked = kit.nmi(0, 1001, C);
            let at = kit.deferred(0, 1001, C, bad);
            assert_eq!(violations("S1", &kit)[0].events, [asked, at]);
        }
    }

    /// What is wrong with the callers may be known; a wrong frame 0 is news.
    #[test]
    fn a_wrong_frame_0_is_told_first() {
        for callers in [
            &[0x2000, 0x2000, 0x3000][..],
            &[0x7fff_f000, 0x2000, 0x3000],
        ] {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            kit.sys_enter(0, 1001);
            kit.nmi(0, 1001, C);
            kit.sys_exit(0, 1001);
            let chain: Vec<u64> = [0x1004]
                .into_iter()
                .chain(callers.iter().copied())
                .collect();
            kit.deferred(0, 1001, C, &chain);
            let found = violations("S1", &kit);
            assert!(found[0].message.contains("returns to 0x1080"), "{found:?}");
        }
    }

    #[test]
    fn deep_stacks_must_be_cut_at_510_exactly() {
        let mut kit = Kit::new(1);
        kit.deep_thread(0, 1001, 600);
        let mut frames = vec![0x2000; 510];
        frames[0] = 0x1004;
        kit.inject(0, 1001, C, user(0x1004));
        kit.deferred(0, 1001, C, &frames);
        assert_eq!(holds("S1", &kit).0, 1);
        frames.pop();
        kit.deferred(0, 1001, C + (2 << 32), &frames);
        assert!(
            violations("S1", &kit)[0]
                .message
                .contains("509 frames, not 510")
        );
    }

    #[test]
    fn a_stack_that_an_earlier_entry_may_have_left_is_no_evidence() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.nmi(0, 1001, C);
        kit.deferred(0, 1001, C, &chain(0x1004));
        assert_eq!(undecided("S1", &kit), 1);
        // The bottom of the chain is a system call's, and frame 0 is where that returns.
        let body = outer(Via::Syscall, Far::Body);
        kit.nmi_in(0, 1001, C + (2 << 32), kernel(SOMEWHERE), &body);
        kit.deferred(0, 1001, C + (2 << 32), &chain(0x1080));
        assert_eq!(holds("S1", &kit).0, 1);
    }

    /// Outside of the system call's own function it may be the return of a handler.
    #[test]
    fn which_system_call_it_was_is_known_by_the_return_before_it() {
        let judged = |to: u64| {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            kit.witness();
            kit.returns_to(0, 1001, to);
            let late = outer(Via::Syscall, Far::Late);
            kit.nmi_in(0, 1001, C, kernel(late[0]), &late[1..]);
            kit.deferred(0, 1001, C, &chain(0x1080));
            testkit::judged("S1", &kit.trace())
        };
        assert_eq!(judged(0x1004), (1, 0, false));
        assert_eq!(judged(0x7000), (0, 1, false));
    }

    #[test]
    fn the_return_of_the_entry_shows_where_frame_0_must_be() {
        // Returns that are noted before the answer, and where the one behind it goes.
        let judged = |before: usize, to: u64| {
            let mut kit = Kit::new(1);
            kit.witness();
            kit.thread(0, 1001);
            let body = outer(Via::Fault, Far::Body);
            kit.nmi_in(0, 1001, C, kernel(SOMEWHERE), &body);
            for _ in 0..before {
                kit.returns_to(0, 1001, 0x1000);
            }
            kit.deferred(0, 1001, C, &chain(0x1004));
            kit.returns_to(0, 1001, to);
            testkit::judged("S1", &kit.trace())
        };
        assert_eq!(judged(0, 0x1004), (1, 0, false));
        // A signal's handler, or an older stack.
        assert_eq!(judged(0, 0x1008), (0, 1, false));
        // It is not the entry of the request that ends there.
        assert_eq!(judged(1, 0x1004), (0, 1, false));
    }

    #[test]
    fn a_request_in_sigreturn_is_answered_with_another_stack_which_is_no_evidence() {
        for (name, evidence) in [("__x64_sys_rt_sigreturn", 0), ("__x64_sys_getppid", 1)] {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            kit.sys_enter(0, 1001);
            kit.nmi(0, 1001, C);
            kit.sys_exit(0, 1001);
            kit.deferred(0, 1001, C, &[0x1080, 0x2000, 0x2000, 0x3000]);
            let trace = kit.trace();
            let found = match check_in("S1", &trace, name) {
                Check::Holds { evidence, .. } => evidence,
                Check::NotExercised { .. } => 0,
                Check::Violated(list) => panic!("{list:?}"),
            };
            assert_eq!(found, evidence, "{name}");
        }
    }

    #[test]
    fn frame_0_is_where_the_nmi_hit_user_mode() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        let a = kit.inject(0, 1001, C, user(0x1004));
        let b = kit.deferred(0, 1001, C, &chain(0x1008));
        let found = violations("S1", &kit);
        assert_eq!(found[0].events, [a, b]);
        assert_eq!(found[0].instruction, Some(0x1004));
    }

    /// The system call of the leaf.
    const GETPPID: u64 = 110;

    /// Thread 1001's system call on CPU 0, an NMI's request meanwhile on a CPU in a task, and what the thread is
    /// told for it.
    fn answered_in_system_call(number: u64, (cpu, tid): (u32, u32), frame0: u64) -> Kit {
        let mut kit = Kit::new(2);
        kit.thread(0, 1001);
        kit.sys_enter_of(0, 1001, number);
        kit.nmi(cpu, tid, C);
        kit.sys_exit(0, 1001);
        kit.deferred(0, 1001, C, &chain(frame0));
        kit
    }

    #[test]
    fn another_system_call_of_the_leaf_returns_elsewhere() {
        const MADVISE: u64 = 28;
        for (number, wrong) in [(MADVISE, false), (GETPPID, true)] {
            let kit = answered_in_system_call(number, (0, 1001), 0x1084);
            let fell = matches!(check("S1", &kit.trace()), Check::Violated(_));
            assert_eq!(fell, wrong, "{number}");
        }
    }

    #[test]
    fn frame_0_is_where_the_system_call_returns() {
        for (frame0, right) in [(0x1080, true), (0x1084, false)] {
            let kit = answered_in_system_call(GETPPID, (0, 1001), frame0);
            if right {
                holds("S1", &kit);
            } else {
                violations("S1", &kit);
            }
        }
    }

    /// Which cookie another task got is not judged here.
    #[test]
    fn a_request_of_another_task_is_in_no_system_call_of_this_one() {
        for (tid, wrong) in [(1001, true), (1002, false)] {
            let kit = answered_in_system_call(GETPPID, (1, tid), 0x1084);
            let fell = matches!(check("S1", &kit.trace()), Check::Violated(_));
            assert_eq!(fell, wrong, "{tid}");
        }
    }

    #[test]
    fn other_tasks_and_places_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.thread(0, 1001);
        kit.deferred(0, 1002, C, &chain(0x1004));
        kit.deferred(0, 1001, C + (2 << 32), &chain(0x5000));
        not_exercised("S1", &kit);
    }

    /// A stack that was kept from an earlier system call has the same frame 0.
    #[test]
    fn behind_the_leafs_system_call_a_system_call_must_be_known() {
        let of = |marked: bool| {
            let mut kit = Kit::new(1);
            kit.thread(0, 1001);
            if marked {
                kit.sys_enter(0, 1001);
            }
            kit.nmi(0, 1001, C);
            kit.deferred(0, 1001, C, &chain(0x1080));
            if marked {
                kit.sys_exit(0, 1001);
            }
            kit
        };
        assert_eq!(holds("S1", &of(true)).0, 1);
        assert_eq!(undecided("S1", &of(false)), 1);
    }
}
