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
        if !event.flags.exiting {
            let message = format!("{} of {} got no frame", callback(event), task(event));
            tally.violated_in_log(message, [event.slot], None);
        }
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
        let message = format!("{}, {}: {wrong}", callback(event), task(event));
        tally.violated_in_log(message, [event.slot], None);
    }
}

/// Who was called.
fn callback(event: &LabEvent) -> String {
    { event.client }.map_or_else(
        || "a client".to_owned(),
        |client| format!("client {client}"),
    )
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
        if frames == wanted && frames.is_empty() {
            tally.undecided("two callbacks without a frame");
        } else if frames == wanted {
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
        if chain.frames() == *wanted && wanted.is_empty() {
            tally.undecided("a record 22 and a callback without a frame");
        } else if chain.frames() == *wanted {
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
    use crate::invariant::Check;
    use crate::invariant::testkit::check;
    use crate::invariant::testkit::lab::{
        C, LabKit, STACK, client, holds, not_exercised, undecided, violated,
    };

    #[test]
    fn s1_another_stack_than_the_one_built() {
        let mut kit = LabKit::good();
        let wrong = [0x1010, 0x2000, 0x2008, 0x3000];
        let a = kit.call(1, client(0), C, &wrong);
        assert_eq!(violated("S1", &kit), [a]);
    }

    /// Both clients got nothing: they agree, and show no stack.
    #[test]
    fn s1_no_stack_at_all() {
        let mut kit = LabKit::new();
        let a = kit.call(1, client(0), C, &[]);
        assert_eq!(violated("S1", &kit), [a]);
        kit.call(1, client(1), C, &[]);
        assert_eq!(undecided("S3", &kit), 1);
        let mut dead = LabKit::new();
        dead.with(|flags| flags.exiting = true);
        dead.call(1, client(0), C, &[]);
        not_exercised("S1", &dead);
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

    /// Frame 0 is known where the entry returned to it.
    #[test]
    fn s1_the_entry_may_have_returned_elsewhere() {
        let found = |ip: Option<u64>| {
            let mut kit = LabKit::new();
            kit.perf.thread(0, 1001);
            kit.target(1);
            kit.ask(1, client(0), 0, C);
            kit.call(1, client(0), C, &STACK);
            if let Some(ip) = ip {
                kit.leave_from(1, ip, false);
            }
            kit
        };
        assert_eq!(holds("S1", &found(Some(STACK[0]))).0, 1);
        assert_eq!(undecided("S1", &found(Some(STACK[0] + 4))), 1);
        assert_eq!(undecided("S1", &found(None)), 1);
    }

    /// Of a thread that is made anew every iteration the process is known.
    #[test]
    fn s1_a_thread_without_a_tid_is_one_of_its_process() {
        let judged = |pid: u32, watched: bool| {
            let mut kit = LabKit::new();
            kit.perf.thread(0, 1001);
            if watched {
                kit.target(1);
            }
            kit.ask(1, client(0), 0, C);
            kit.call(1, client(0), C, &STACK);
            kit.leave_from(1, STACK[0], false);
            let mut trace = kit.trace();
            (trace.threads[0].tid, trace.threads[0].pid) = (0, pid);
            matches!(check("S1", &trace), Check::Holds { .. })
        };
        assert!(judged(1000, true));
        assert!(!judged(2000, true));
        assert!(!judged(1000, false));
    }
}
