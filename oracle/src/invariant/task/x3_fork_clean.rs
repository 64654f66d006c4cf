//! X3: a forked child starts clean.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts, Request, Role, Task, before, role};
use crate::trace::{Event, EventKind};

/// X3. `unwind_task_init` clears what the child copied from its parent (kernel/fork.c, 7.2). So no
/// record of a forked task carries a cookie that a record of its parent carried, and its first D
/// does not come before its first S.
///
/// Evidence is a child with a cookie of its own, whose parent had one when it was copied: a child
/// that is not cleared gets its parent's cookie for its first request. The parent's request must
/// lie before the copy, inside the system call that makes the child: it was answered after the fork
/// record, and its kernel chain shows the beginning of a system call or of `copy_process`, or a
/// function that calls `copy_process` while it has not (perf writes the fork record at the end of
/// `copy_process`). Any other child is undecided: its parent may have had nothing to copy. A lost S
/// of the child excuses an early D (XA). A D whose S has no time, or may have lost its cookie to the
/// limit of contexts, is undecided, and so is one for which another session of perf may have asked.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let is_fork = |event: &&Event| matches!(event.kind, EventKind::Fork { .. });
    let mut forks = trace.events.iter().filter(is_fork).peekable();
    if forks.peek().is_none() {
        return;
    }
    let cookies = cookies(facts);
    for fork in forks {
        let Some(child) = facts.tasks.child(fork) else {
            continue;
        };
        let Some(mine) = cookies.get(&child) else {
            continue;
        };
        let parent = facts.tasks.of(fork);
        let parent = parent.and_then(|parent| cookies.get(&parent));
        let shared = mine
            .iter()
            .find_map(|(cookie, at)| Some((cookie, at, parent?.get(cookie)?)));
        if let Some((cookie, at, theirs)) = shared {
            let message = format!("task {} has cookie {cookie:#x} from its parent", child.tid);
            let events = [fork.index, at.index, theirs.index];
            tally.violated(message, events, facts.instruction(at));
            continue;
        }
        let early = mine.iter().find(|(cookie, at)| {
            let exchange = facts.exchanges.get(*cookie);
            let asked = exchange.and_then(|x| x.requests.first());
            at.deferred_chain().is_some() && !asked.is_some_and(|r| before(r.event, at))
        });
        if let Some((cookie, at)) = early {
            if let Some(why) = facts.losses.between(fork.time, at.time) {
                tally.excuse(format!("cookie {cookie:#x}: {why}"));
                continue;
            }
            if let Some(why) = unordered(facts, at).or_else(|| facts.others_may_ask()) {
                tally.undecided(why);
                continue;
            }
            let message = format!(
                "task {} was unwound for cookie {cookie:#x}, which it had not requested",
                child.tid
            );
            tally.violated(message, [fork.index, at.index], None);
            continue;
        }
        let own = facts.requests_of(child).iter().any(|r| r.cookie != 0);
        if !own {
            tally.undecided("a child that asked for nothing");
        } else if copied_with_request(evidence, fork) {
            tally.holds();
        } else {
            tally.undecided("a child whose parent may have had no cookie when it was copied");
        }
    }
}

/// Why it is not known whether a D came before the first S of its cookie, if it is not.
fn unordered(facts: &Facts<'_>, at: &Event) -> Option<&'static str> {
    let mut answers = facts.answers.iter();
    let answer = answers.find(|answer| answer.event.index == at.index)?;
    let requests = facts.exchanges.get(&answer.chain.cookie);
    let requests = requests.map_or(&[][..], |exchange| exchange.requests.as_slice());
    if let Some(why) = facts.may_be_of_a_cut_chain(answer) {
        return Some(why);
    }
    let unknown = |request: &Request<'_>| !before(at, request.event);
    (!requests.is_empty() && requests.iter().any(unknown))
        .then_some("a child whose first sample has no place among its records")
}

/// By task: the first record of every real cookie that its records carry.
fn cookies<'t>(facts: &Facts<'t>) -> BTreeMap<Task, BTreeMap<u64, &'t Event>> {
    let mut all: BTreeMap<Task, BTreeMap<u64, &'t Event>> = BTreeMap::new();
    for (&task, records) in &facts.records {
        for &event in records {
            if let Some(cookie) = event.cookie().filter(|&cookie| cookie != 0) {
                let first = all.entry(task).or_default();
                first.entry(cookie).or_insert(event);
            }
        }
    }
    all
}

/// Whether the parent had a request pending when the child was copied.
fn copied_with_request(evidence: &Evidence<'_>, fork: &Event) -> bool {
    let facts = evidence.facts();
    let Some(parent) = facts.tasks.of(fork) else {
        return false;
    };
    let requests = facts.requests_of(parent);
    let at = requests.partition_point(|r| r.event.index < fork.index);
    let Some(last) = at.checked_sub(1).and_then(|at| requests.get(at)) else {
        return false;
    };
    let answers = facts
        .exchanges
        .get(&last.cookie)
        .map(|x| x.answers.as_slice());
    let mut answers = answers.unwrap_or_default().iter();
    // No other child in between: the request is of the call that made this one.
    let of_parent = facts.records.get(&parent).map_or(&[][..], Vec::as_slice);
    let from = of_parent.partition_point(|e| e.index <= last.event.index);
    let to = of_parent.partition_point(|e| e.index < fork.index);
    let between = of_parent.get(from..to).unwrap_or_default();
    answers.next().is_some_and(|a| before(fork, a.event))
        && !{ between.iter() }.any(|e| matches!(e.kind, EventKind::Fork { .. }))
        && before_the_copy(evidence, last)
}

/// Functions that call `copy_process`, from the system call on (kernel/fork.c, 7.2), and what x86
/// puts before their names.
const CALLERS: [&str; 10] = [
    "kernel_clone",
    "__do_sys_clone",
    "__do_sys_clone3",
    "__do_sys_fork",
    "__do_sys_vfork",
    "__x64_sys_clone",
    "__x64_sys_clone3",
    "__x64_sys_fork",
    "__x64_sys_vfork",
    "copy_process",
];

/// Whether a request was made in a system call that makes a task, before it copies the caller.
/// Without the kernel's symbols that is not known.
fn before_the_copy(evidence: &Evidence<'_>, request: &Request<'_>) -> bool {
    let facts = evidence.facts();
    if role(facts.trace, request.event) == Role::SyscallEnter {
        return true;
    }
    let named = |&address: &u64| evidence.place(address);
    let chain: Vec<_> = request
        .sample
        .kernel_chain()
        .iter()
        .filter_map(named)
        .collect();
    let is = |name: &str, what: &str| name == what || name.starts_with(&format!("{what}."));
    let in_call = |name: &str| CALLERS.iter().any(|caller| is(name, caller));
    let inside = |(name, offset): &(String, u64)| is(name, "copy_process") && *offset != 0;
    chain.iter().any(|(name, _)| in_call(name)) && !chain.iter().any(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::{Kit, SOMEWHERE, judged, not_exercised, violations};
    use crate::invariant::{Check, INVARIANTS};
    use crate::trace::model::Recorded;

    const C: u64 = 3 << 32 | 1;
    const D: u64 = 5 << 32 | 1;

    /// The parent asks, forks and is answered; the child asks and is answered.
    fn own_cookie() -> Kit {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1000, C);
        kit.fork(0, 1000, 1001);
        kit.deferred(0, 1000, C, &[0x40]);
        kit.nmi(0, 1001, D);
        kit.deferred(0, 1001, D, &[0x40]);
        kit
    }

    /// What X3 says of a trace of a kernel with these functions at the addresses of the kit.
    fn check(kit: &Kit, interrupted: (&str, u64), caller: &str) -> Check {
        let resolve = |address| match address {
            SOMEWHERE => Some((interrupted.0.to_owned(), interrupted.1)),
            address if address == SOMEWHERE + 0x40 => Some((caller.to_owned(), 0x20)),
            _ => None,
        };
        let trace = kit.trace();
        let x3 = INVARIANTS.iter().find(|it| it.id == "X3").unwrap();
        x3.check(&Evidence::new(&trace).named(&resolve))
    }

    #[test]
    fn a_cookie_of_its_own_beside_one_of_the_parent_holds() {
        for (interrupted, caller) in [
            (("copy_process", 0), "kernel_clone"),
            (("kernel_clone", 0x10), "__do_sys_clone.constprop.0"),
            (("__x64_sys_clone3", 0), "do_syscall_64"),
        ] {
            let check = check(&own_cookie(), interrupted, caller);
            assert!(
                matches!(check, Check::Holds { evidence: 1, .. }),
                "{check:?}"
            );
        }
    }

    /// A kernel that copies everything to the child shows these too.
    #[test]
    fn a_parent_that_may_have_had_none_does_not_exercise_it() {
        // After the copy, or elsewhere.
        for interrupted in [("copy_process", 0x40), ("do_nanosleep", 0x10)] {
            let check = check(&own_cookie(), interrupted, "kernel_clone2");
            assert!(
                matches!(check, Check::NotExercised { undecided: 1, .. }),
                "{check:?}"
            );
        }
        // No symbols.
        assert!(not_exercised("X3", &own_cookie()).contains("1 undecided"));
        // No request of the parent, or one of the call before.
        let mut kit = Kit::new(1);
        kit.nmi(0, 1000, C);
        kit.fork(0, 1000, 1002);
        kit.fork(0, 1000, 1001);
        kit.deferred(0, 1000, C, &[0x40]);
        kit.nmi(0, 1001, D);
        let check_of = |kit: &Kit| check(kit, ("copy_process", 0), "kernel_clone");
        assert!(matches!(check_of(&kit), Check::NotExercised { .. }));
        let mut kit = Kit::new(1);
        kit.fork(0, 1000, 1001);
        kit.nmi(0, 1001, D);
        assert!(matches!(check_of(&kit), Check::NotExercised { .. }));
    }

    #[test]
    fn a_request_in_the_marker_of_the_call_holds() {
        let mut kit = Kit::new(1);
        kit.spec("enter", |spec| spec.defer_callchain = true);
        let chain = vec![crate::trace::model::CONTEXT_USER_DEFERRED, C];
        kit.sample(0, 1000, 2, chain);
        kit.fork(0, 1000, 1001);
        kit.deferred(0, 1000, C, &[0x40]);
        kit.nmi(0, 1001, D);
        assert_eq!(crate::invariant::testkit::holds("X3", &kit).0, 1);
    }

    #[test]
    fn the_parents_cookie_does_not() {
        let mut kit = Kit::new(1);
        let theirs = kit.nmi(0, 1000, C);
        let fork = kit.fork(0, 1000, 1001);
        let mine = kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(violations("X3", &kit)[0].events, [theirs, fork, mine]);
    }

    #[test]
    fn an_unwind_that_the_child_did_not_ask_for_does_not() {
        let mut kit = Kit::new(1);
        let fork = kit.fork(0, 1000, 1001);
        let mine = kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(violations("X3", &kit)[0].events, [fork, mine]);
    }

    #[test]
    fn a_child_without_records_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1000, C);
        kit.fork(0, 1000, 1001);
        kit.kernel_only(0, 1001);
        not_exercised("X3", &kit);
    }

    /// The answer may have come behind the request on another ring.
    #[test]
    fn an_answer_at_the_time_of_the_request_is_undecided() {
        let mut kit = Kit::new(2);
        kit.fork(0, 1000, 1001);
        let mine = kit.deferred(0, 1001, C, &[0x40]);
        kit.nmi(1, 1001, C);
        violations("X3", &kit);
        let mut trace = kit.trace();
        trace.events[2].time = trace.events[mine].time;
        let found = crate::invariant::testkit::check("X3", &trace);
        assert!(
            matches!(found, Check::NotExercised { undecided: 1, .. }),
            "{found:?}"
        );
    }

    /// Of a recording, unless somebody says that nothing else asked.
    #[test]
    fn beside_another_session_an_unwind_that_the_child_did_not_ask_for_is_undecided() {
        let mut kit = Kit::new(1);
        kit.fork(0, 1000, 1001);
        kit.deferred(0, 1001, C, &[0x40]);
        let mut trace = kit.trace();
        for (alone, expected) in [(false, (0, 1, false)), (true, (0, 0, true))] {
            trace.recorded = Some(Recorded {
                every_cpu: true,
                alone,
                steady: Some((0, u64::MAX)),
            });
            assert_eq!(judged("X3", &trace), expected, "{alone}");
        }
    }
}
