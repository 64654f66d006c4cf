//! X3: a forked child starts clean.

use std::collections::BTreeMap;

use super::facts::{Facts, before};
use super::tasks::Task;
use super::verdict::Verdict;
use super::{Check, Invariant};
use crate::trace::{Event, EventKind, Trace};

/// X3. `unwind_task_init` empties what the child copied from its parent (kernel/fork.c, 7.2), so
/// no record of a forked task carries a cookie that a record of its parent carried, and its first
/// D does not come before its first S.
///
/// Evidence is a child with a record of its own, and most telling one whose parent had a request
/// pending inside clone: requested before the fork record and answered after it, counted apart.
/// A lost S of the child excuses an early D (XA).
#[derive(Debug)]
pub struct ForkClean;

impl Invariant for ForkClean {
    fn id(&self) -> &'static str {
        "X3"
    }

    fn title(&self) -> &'static str {
        "a forked child starts with no cookie and no request"
    }

    fn check(&self, trace: &Trace) -> Check {
        let facts = Facts::new(trace);
        let mut verdict = Verdict::new(self.id());
        let mut pending = 0;
        for fork in &trace.events {
            let (EventKind::Fork { .. }, Some(child)) = (&fork.kind, facts.tasks.child(fork))
            else {
                continue;
            };
            let mine = cookies(&facts, child);
            if mine.is_empty() {
                continue;
            }
            let parent = facts.tasks.of(fork).map(|parent| cookies(&facts, parent));
            let parent = parent.unwrap_or_default();
            let shared = mine.iter().find(|(cookie, _)| parent.contains_key(*cookie));
            if let Some((cookie, at)) = shared {
                let message = format!("task {} has cookie {cookie:#x} from its parent", child.tid);
                let theirs = parent.get(cookie).map(|e| e.index);
                let events = [fork.index, at.index];
                let events = events.into_iter().chain(theirs);
                verdict.violated(message, events, facts.instruction(at));
                continue;
            }
            let early = mine.iter().find(|(cookie, at)| {
                let exchange = facts.exchanges.get(*cookie);
                let asked = exchange.and_then(|x| x.requests.first());
                at.deferred_chain().is_some() && !asked.is_some_and(|r| before(r.event, at))
            });
            if let Some((cookie, at)) = early {
                if let Some(why) = facts.losses.between(fork.time, at.time) {
                    verdict.excuse(format!("cookie {cookie:#x}: {why}"));
                    continue;
                }
                let message = format!(
                    "task {} was unwound for cookie {cookie:#x}, which it had not requested",
                    child.tid
                );
                verdict.violated(message, [fork.index, at.index], None);
                continue;
            }
            verdict.holds();
            pending += usize::from(pending_at(&facts, fork));
        }
        verdict.note(pending, "children of a parent with a request pending");
        verdict.finish("no forked task with a deferred record of its own")
    }
}

/// The first record of every real cookie that a task's records carry.
fn cookies<'t>(facts: &Facts<'t>, task: Task) -> BTreeMap<u64, &'t Event> {
    let mut all = BTreeMap::new();
    for &event in facts.records.get(&task).into_iter().flatten() {
        let cookie = match event.deferred_sample() {
            Some((_, cookie)) => Some(cookie),
            None => event.deferred_chain().map(|chain| chain.cookie),
        };
        if let Some(cookie) = cookie.filter(|&cookie| cookie != 0) {
            all.entry(cookie).or_insert(event);
        }
    }
    all
}

/// Whether the parent had a request pending when it wrote the fork record.
fn pending_at(facts: &Facts<'_>, fork: &Event) -> bool {
    let parent = facts.tasks.of(fork);
    let Some(records) = parent.and_then(|task| facts.records.get(&task)) else {
        return false;
    };
    let at = records.partition_point(|e| e.index < fork.index);
    let mut earlier = records.get(..at).unwrap_or_default().iter().rev();
    let Some((_, cookie)) = earlier.find_map(|e| e.deferred_sample()) else {
        return false;
    };
    let answers = facts.exchanges.get(&cookie).map(|x| x.answers.as_slice());
    let mut answers = answers.unwrap_or_default().iter();
    answers.next().is_some_and(|a| before(fork, a.event))
}

#[cfg(test)]
mod tests {
    use super::super::testkit::{Kit, holds, not_exercised, violations};
    use super::*;

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
        let (evidence, notes) = holds(&ForkClean, &kit);
        assert_eq!(evidence, 1);
        assert_eq!(notes, ["1 children of a parent with a request pending"]);
    }

    #[test]
    fn the_parents_cookie_does_not() {
        let mut kit = Kit::new(1);
        let theirs = kit.nmi(0, 1000, C);
        let fork = kit.fork(0, 1000, 1001);
        let mine = kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(violations(&ForkClean, &kit)[0].events, [theirs, fork, mine]);
    }

    #[test]
    fn an_unwind_that_the_child_did_not_ask_for_does_not() {
        let mut kit = Kit::new(1);
        let fork = kit.fork(0, 1000, 1001);
        let mine = kit.deferred(0, 1001, C, &[0x40]);
        assert_eq!(violations(&ForkClean, &kit)[0].events, [fork, mine]);
    }

    #[test]
    fn a_child_without_records_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 1000, C);
        kit.fork(0, 1000, 1001);
        kit.kernel_only(0, 1001);
        not_exercised(&ForkClean, &kit);
    }
}
