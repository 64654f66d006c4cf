//! S1 and S3 on the lab client's log: what stack a callback got.

use std::collections::BTreeMap;

use unwindlab_abi::message::ThreadAnnounce;

use crate::invariant::Tally;
use crate::invariant::evidence::lab::{Lab, task};
use crate::invariant::evidence::{at_leaf, difference, flaw};
use crate::trace::LabEvent;
use crate::trace::lab::LabKind;

/// S1: where frame 0 lies at the leaf of a workload thread, the whole chain is known. Evidence is
/// one of which frame 0 is known too, as the instruction to which the entry returned: all entries
/// of a thread at its leaf have the same callers.
pub fn identity(lab: &Lab<'_>, tally: &mut Tally) {
    let mut groups: BTreeMap<u32, u32> = BTreeMap::new();
    let returned = returned_to(lab);
    for event in &lab.log.events {
        match event.kind {
            LabKind::Target { tgid, .. } => {
                groups.insert(event.task, tgid);
            }
            LabKind::Callback { .. } => {
                let Some(frames) = lab.log.frames(event) else {
                    continue;
                };
                let threads = threads(lab, event.tid, groups.get(&event.task).copied());
                let at = returned.get(&(event.task, event.entry)).copied();
                judge(event, frames, at, &threads, tally);
            }
            _ => {}
        }
    }
}

/// The workload threads that a task can be: the one with its tid, or else those of its process that
/// make a new thread every iteration.
fn threads<'t>(lab: &Lab<'t>, tid: u32, tgid: Option<u32>) -> Vec<&'t ThreadAnnounce> {
    let threads = lab.trace.threads.iter();
    match threads.clone().find(|t| t.tid != 0 && t.tid == tid) {
        Some(thread) => vec![thread],
        None => threads
            .filter(|t| t.tid == 0 && Some(t.pid) == tgid)
            .collect(),
    }
}

/// The user instruction to which each entry returned, by task.
fn returned_to(lab: &Lab<'_>) -> BTreeMap<(u32, u32), u64> {
    let events = lab.log.events.iter();
    let returns = events.filter_map(|event| match event.kind {
        LabKind::Return { ip, .. } => Some(((event.task, event.entry), ip)),
        _ => None,
    });
    returns.collect()
}

fn judge(
    event: &LabEvent,
    frames: &[u64],
    returned_to: Option<u64>,
    threads: &[&ThreadAnnounce],
    tally: &mut Tally,
) {
    let Some(&frame0) = frames.first() else {
        return;
    };
    let mut wrong = None;
    for stack in threads.iter().map(|thread| &thread.stack) {
        if !at_leaf(stack, frame0) {
            continue;
        }
        match flaw(frames, stack, frame0) {
            None if returned_to == Some(frame0) => return tally.holds(),
            None => return tally.undecided("where in its leaf the thread was is not known"),
            found => wrong = found,
        }
    }
    if let Some(wrong) = wrong {
        let client = event
            .client
            .map_or_else(String::new, |c| format!("client {c}, "));
        let message = format!("{client}{}: {wrong}", task(event));
        tally.violated_in_log(message, [event.slot], None);
    }
}

/// S3: all callbacks of a cookie get the same frames, and perf's record of it has them too.
pub fn identical(lab: &Lab<'_>, tally: &mut Tally) {
    let mut seen: BTreeMap<u64, (&LabEvent, &[u64])> = BTreeMap::new();
    for event in &lab.log.events {
        let LabKind::Callback { cookie, .. } = event.kind else {
            continue;
        };
        let Some(frames) = lab.log.frames(event).filter(|_| cookie != 0) else {
            continue;
        };
        let (first, wanted) = *seen.entry(cookie).or_insert((event, frames));
        if first.slot == event.slot {
            continue;
        }
        if frames == wanted {
            tally.holds();
        } else {
            let message = format!(
                "two callbacks of cookie {cookie:#x} differ: {}",
                difference(frames, wanted)
            );
            tally.violated_in_log(message, [first.slot, event.slot], None);
        }
    }
    for record in &lab.trace.events {
        let Some(chain) = record.deferred_chain() else {
            continue;
        };
        let Some((callback, wanted)) = seen.get(&chain.cookie) else {
            continue;
        };
        if chain.frames() == *wanted {
            tally.holds();
        } else {
            let message = format!(
                "record 22 #{} and a callback of cookie {:#x} differ: {}",
                record.index,
                chain.cookie,
                difference(&chain.frames(), wanted)
            );
            tally.violated_in_log(message, [callback.slot], None);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::lab::{C, LabKit, STACK, client, violated};

    #[test]
    fn s1_another_stack_than_the_one_built() {
        let mut kit = LabKit::good();
        let wrong = [0x1010, 0x2000, 0x2008, 0x3000];
        let a = kit.call(1, client(0), C, &wrong);
        assert_eq!(violated("S1", &kit), [a]);
    }

    #[test]
    fn s3_two_stacks_of_one_cookie() {
        let mut kit = LabKit::new();
        let a = kit.call(1, client(0), C, &STACK);
        let mut perf = kit.clone();
        let b = kit.call(1, client(1), C, &STACK[..3]);
        assert_eq!(violated("S3", &kit), [a, b]);
        perf.perf.deferred(0, 1001, C, &STACK[..3]);
        assert_eq!(violated("S3", &perf), [a]);
    }
}
