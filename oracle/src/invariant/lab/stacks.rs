//! S1 and S3: what stack a callback got.

use std::collections::BTreeMap;

use unwindlab_abi::message::ThreadAnnounce;

use super::super::stack::{at_leaf, difference, expected};
use super::super::verdict::Verdict;
use super::{Lab, task};
use crate::trace::LabEvent;
use crate::trace::lab::LabKind;

/// S1: where frame 0 lies at the leaf of a workload thread, the whole chain is known.
pub(in super::super) fn identity(lab: &Lab<'_>, verdict: &mut Verdict) {
    let mut groups: BTreeMap<u32, u32> = BTreeMap::new();
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
                judge(event, frames, &threads, verdict);
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

fn judge(event: &LabEvent, frames: &[u64], threads: &[&ThreadAnnounce], verdict: &mut Verdict) {
    let Some(&frame0) = frames.first() else {
        return;
    };
    let mut wrong = None;
    for stack in threads.iter().map(|thread| &thread.stack) {
        if !at_leaf(stack, frame0) {
            continue;
        }
        let wanted = expected(stack, frame0);
        if frames == wanted {
            return verdict.holds();
        }
        wrong = Some(difference(frames, &wanted));
    }
    if let Some(wrong) = wrong {
        let client = event
            .client
            .map_or_else(String::new, |c| format!("client {c}, "));
        let message = format!("{client}{}: {wrong}", task(event));
        verdict.violated_in_log(message, [event.slot], None);
    }
}

/// S3: all callbacks of a cookie get the same frames, and perf's record of it has them too.
pub(in super::super) fn identical(lab: &Lab<'_>, verdict: &mut Verdict) {
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
            verdict.holds();
        } else {
            let message = format!(
                "two callbacks of cookie {cookie:#x} differ: {}",
                difference(frames, wanted)
            );
            verdict.violated_in_log(message, [first.slot, event.slot], None);
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
            verdict.holds();
        } else {
            let message = format!(
                "record 22 #{} and a callback of cookie {:#x} differ: {}",
                record.index,
                chain.cookie,
                difference(&chain.frames(), wanted)
            );
            verdict.violated_in_log(message, [callback.slot], None);
        }
    }
}
