//! D4: the stack is walked once for a chain.

use std::collections::BTreeMap;

use unwindlab_abi::plan::EventSource;

use crate::invariant::Tally;
use crate::invariant::evidence::{
    self, Answer, Evidence, NESTING, Task, announced_spec, before, spec,
};
use crate::trace::{Event, EventKind, Trace};

/// The walk itself: `unwind_user_faultable` calls it where the cache has no frames
/// (kernel/unwind/deferred.c, 7.3). That one is not counted: gcc may inline it in its file.
const WALKER: &str = "unwind_user";

/// D4. Between two D of different cookies of a task the stack is walked exactly once: "The user
/// stack has already been previously unwound in this entry context. Skip the unwind and use the
/// cache" (`unwind_user_faultable`, kernel/unwind/deferred.c, 7.3). No walk at all means that the
/// frames are those of an entry before.
///
/// Walks are the samples of an event `kprobe:unwind_user`. A D without frames is left out: a task
/// without an mm is not walked. So is the task's first D, whose walk may lie before the events were
/// on, and the trials of the lab client and of instances of tracefs, whose entries are walked without a D.
/// A loss between the two D excuses (XA).
///
/// Evidence is a D with one walk since the D before: a kernel that keeps the cache has none there,
/// and one that walks again for the same chain has two.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    if trace.lab.is_some() || trace.tracefs.is_some() {
        return tally.lacks("the lab client or an instance of tracefs has the stack walked too");
    }
    let mut walks: BTreeMap<Task, Vec<&Event>> = BTreeMap::new();
    for event in trace.events.iter().filter(|event| is_walk(trace, event)) {
        if let Some(task) = facts.tasks.of(event) {
            walks.entry(task).or_default().push(event);
        }
    }
    if !trace
        .session
        .iter()
        .any(|open| announced_spec(trace, open).is_some_and(|spec| probes_the_walker(&spec.source)))
    {
        return;
    }
    let mut of_task: BTreeMap<Task, Vec<&Answer<'_>>> = BTreeMap::new();
    for answer in &facts.answers {
        if let Some(task) = answer.task {
            let list = of_task.entry(task).or_default();
            let new = list
                .last()
                .is_none_or(|it| it.chain.cookie != answer.chain.cookie);
            if new {
                list.push(answer);
            }
        }
    }
    for (task, list) in of_task {
        let walks = walks.get(&task).map_or(&[][..], Vec::as_slice);
        for pair in list.windows(2) {
            let [earlier, later] = pair else { continue };
            if later.chain.ips.is_empty() {
                continue;
            }
            let end = later.event.index.saturating_add(NESTING);
            let behind = evidence::later(walks, earlier.event, |it| it);
            let between = behind
                .take_while(|walk| walk.index <= end)
                .filter(|walk| before(walk, later.event));
            let between: Vec<usize> = between.map(|walk| walk.index).collect();
            let cookie = later.chain.cookie;
            let times = (earlier.event.time, later.event.time);
            if let Some(why) = facts.losses.between(times.0, times.1) {
                tally.excuse(format!("cookie {cookie:#x}: {why}"));
                continue;
            }
            if between.len() == 1 {
                tally.holds();
                continue;
            }
            let message = format!(
                "the stack of task {} was walked {} times for cookie {cookie:#x}, not once",
                task.tid,
                between.len()
            );
            let events = [earlier.event.index, later.event.index];
            tally.violated(message, events.into_iter().chain(between), None);
        }
    }
}

fn is_walk(trace: &Trace, event: &Event) -> bool {
    matches!(event.kind, EventKind::Sample(_))
        && spec(trace, event).is_some_and(|spec| probes_the_walker(&spec.source))
}

fn probes_the_walker(source: &EventSource) -> bool {
    matches!(source, EventSource::Kprobe { function, offset: 0, at_return: false, .. } if function == WALKER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::{Kit, holds, judged, not_exercised, spec, violations};
    use crate::trace::model::Sample;
    use crate::trace::tracefs::TracefsTrace;

    const C: [u64; 3] = [3 << 32 | 1, 5 << 32 | 1, 7 << 32 | 1];

    /// A D for each cookie, each after so many walks.
    fn walked(times: [usize; 3]) -> Kit {
        let mut kit = Kit::new(1);
        let source = EventSource::Kprobe {
            function: WALKER.into(),
            offset: 0,
            at_return: false,
            optimized: false,
        };
        let probe = kit.open(spec("walks", source));
        for (cookie, times) in C.into_iter().zip(times) {
            kit.nmi(0, 1001, cookie);
            for _ in 0..times {
                kit.push(0, 1001, probe, EventKind::Sample(Sample::default()));
            }
            kit.deferred(0, 1001, cookie, &[0x40]);
            kit.deferred(0, 1001, cookie, &[0x40]);
        }
        kit
    }

    #[test]
    fn one_walk_for_each_holds() {
        assert_eq!(holds("D4", &walked([1, 1, 1])).0, 2);
        // The first one may lie before the session.
        assert_eq!(holds("D4", &walked([0, 1, 1])).0, 2);
    }

    #[test]
    fn where_another_client_asks_too_walks_show_nothing() {
        let mut trace = walked([1, 2, 1]).trace();
        assert!(judged("D4", &trace).2);
        trace.tracefs = Some(TracefsTrace::default());
        assert_eq!(judged("D4", &trace), (0, 0, false));
    }

    #[test]
    fn none_or_two_do_not() {
        assert_eq!(violations("D4", &walked([1, 0, 1])).len(), 1);
        assert_eq!(violations("D4", &walked([1, 1, 2])).len(), 1);
        // One of another task is none.
        let mut kit = walked([1, 1, 1]);
        kit.nmi(0, 1001, 9 << 32 | 1);
        kit.push(0, 1002, 4, EventKind::Sample(Sample::default()));
        kit.deferred(0, 1001, 9 << 32 | 1, &[0x40]);
        violations("D4", &kit);
    }

    #[test]
    fn without_the_probe_or_a_second_chain_it_is_not_exercised() {
        let mut kit = Kit::new(1);
        kit.deferred(0, 1001, C[0], &[0x40]);
        kit.deferred(0, 1001, C[1], &[0x40]);
        not_exercised("D4", &kit);
    }

    /// Another walk may be among what was lost.
    #[test]
    fn one_walk_beside_a_loss_is_no_evidence() {
        let mut kit = walked([1, 0, 0]);
        let answered = |kit: &mut Kit, cookie: u64| {
            kit.push(0, 1001, 4, EventKind::Sample(Sample::default()));
            kit.deferred(0, 1001, cookie, &[0x40]);
        };
        while kit.trace().events.len() > 4 {
            kit.drop_last();
        }
        let mut whole = kit.clone();
        answered(&mut whole, C[1]);
        assert_eq!(holds("D4", &whole).0, 1);
        kit.lost(0, 1);
        answered(&mut kit, C[1]);
        assert!(not_exercised("D4", &kit).contains("XA"));
    }
}
