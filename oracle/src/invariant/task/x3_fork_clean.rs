//! X3: a forked child starts clean.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, Facts, Task, before};
use crate::trace::{Event, EventKind};

/// X3. `unwind_task_init` clears what the child copied from its parent (kernel/fork.c, 7.2). So no
/// record of a forked task carries a cookie that a record of its parent carried, and its first D
/// does not come before its first S.
///
/// Evidence is a child with a record of its own. The most telling one has a parent with a request
/// pending inside clone (requested before the fork record and answered after it); those are counted
/// apart. A lost S of the child excuses an early D (XA).
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let is_fork = |event: &&Event| matches!(event.kind, EventKind::Fork { .. });
    let mut forks = trace.events.iter().filter(is_fork).peekable();
    if forks.peek().is_none() {
        return;
    }
    let cookies = cookies(facts);
    let mut pending = 0;
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
            let message = format!(
                "task {} was unwound for cookie {cookie:#x}, which it had not requested",
                child.tid
            );
            tally.violated(message, [fork.index, at.index], None);
            continue;
        }
        tally.holds();
        pending += usize::from(pending_at(facts, fork));
    }
    tally.note(pending, "children of a parent with a request pending");
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

/// Whether the parent had a request pending when it wrote the fork record.
fn pending_at(facts: &Facts<'_>, fork: &Event) -> bool {
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
    answers.next().is_some_and(|a| before(fork, a.event))
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;
    const D: u64 = 5 << 32 | 1;

    #[test]
    fn a_cookie_of_its_own_holds() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1000, C);
        kit.fork(0, 1000, 1001);
        kit.deferred(0, 1000, C, &[0x40]);
        kit.nmi(0, 1001, D);
        kit.deferred(0, 1001, D, &[0x40]);
        let (evidence, notes) = holds("X3", &kit);
        assert_eq!(evidence, 1);
        assert_eq!(notes, ["1 children of a parent with a request pending"]);
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
}
