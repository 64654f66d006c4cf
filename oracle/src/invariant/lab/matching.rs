//! M1, M2, D2, P1 and P2: which callbacks answer which requests.

use std::collections::BTreeMap;

use unwindlab_abi::lab::LabContext;

use super::super::verdict::Verdict;
use super::{Lab, Stay, task};
use crate::trace::LabEvent;
use crate::trace::lab::{LabClient, LabKind};

/// Callbacks of one client in a stay that has not ended, from which on it is taken not to end:
/// beyond all that a stay with leaving requests can have.
const ENDLESS: usize = 64;

fn instruction(event: &LabEvent) -> Option<u64> {
    match event.kind {
        LabKind::Request { ip, .. } if ip != 0 => Some(ip),
        _ => None,
    }
}

/// M1: every request that was not refused gets a callback in its stay, unless its client was
/// cancelled before the stay was over.
pub(in super::super) fn completeness(lab: &Lab<'_>, verdict: &mut Verdict) {
    let (mut cancelled, mut inside) = (0, 0);
    for stay in &lab.stays {
        let mut judged: BTreeMap<(LabClient, u64), &LabEvent> = BTreeMap::new();
        for (request, client, cookie) in stay.accepted().filter(|(r, ..)| !r.flags.cancelled) {
            judged.entry((client, cookie)).or_insert(request);
        }
        for ((client, cookie), request) in judged {
            if stay.called().any(|(_, c, k)| (c, k) == (client, cookie)) {
                verdict.holds();
                continue;
            }
            if lab.cancelled_in(client, stay) {
                cancelled += 1;
            } else if !lab.is_over(stay) {
                inside += 1;
            } else {
                let message = format!(
                    "client {client} asked for {} ({}), cookie {cookie:#x}, and was not called \
                     before the entry ended",
                    task(request),
                    request.context.name()
                );
                let slots = [request].into_iter().chain(stay.returned).chain(stay.exit);
                verdict.violated_in_log(message, slots.map(|e| e.slot), instruction(request));
            }
        }
    }
    verdict.note(cancelled, "requests whose client was cancelled meanwhile");
    verdict.note(
        inside,
        "requests of entries that the log does not see the end of (XD)",
    );
}

/// M2: a client is called at most once for a cookie, whatever the entry.
pub(in super::super) fn once(lab: &Lab<'_>, verdict: &mut Verdict) {
    let mut first: BTreeMap<(LabClient, u64), &LabEvent> = BTreeMap::new();
    for (event, client, cookie) in lab.stays.iter().flat_map(Stay::called) {
        match first.insert((client, cookie), event) {
            None => verdict.holds(),
            // Two answers to no cookie are no answers to one.
            Some(_) if cookie == 0 => {}
            Some(earlier) => {
                let message = format!(
                    "client {client} was called twice for cookie {cookie:#x} ({})",
                    task(event)
                );
                verdict.violated_in_log(message, [earlier.slot, event.slot], None);
            }
        }
    }
}

/// D2: a client is called at most once in an entry. In stays that a leaving request joins, once for
/// each cookie.
pub(in super::super) fn one_callback(lab: &Lab<'_>, verdict: &mut Verdict) {
    for stay in &lab.stays {
        let mut first: BTreeMap<(LabClient, u64), &LabEvent> = BTreeMap::new();
        for (event, client, cookie) in stay.called() {
            let key = (client, if stay.leaving { cookie } else { 0 });
            match first.insert(key, event) {
                None => verdict.holds(),
                Some(earlier) => {
                    let message = format!(
                        "client {client} was called twice in one entry of {}",
                        task(event)
                    );
                    verdict.violated_in_log(message, [earlier.slot, event.slot], None);
                    break;
                }
            }
        }
    }
}

/// P1: the task work runs once, and once more at most for each client that joins later.
///
/// A run calls the clients in the order of the kernel's list, which is that of registration
/// backwards. A call that goes against it starts another run; so many runs there were at least.
///
/// Who joins later asks behind the moment at which a run takes note of who has asked (`process_unwind_deferred` fetches
/// the bits and then walks, kernel/unwind/deferred.c, 7.3). The log does not have that moment. Behind the first call it is
/// over for certain; before that, an interrupt may have hit the walk, but the task itself asks nobody in it. So what is
/// asked in an interrupt counts as later unless it is the entry's first request, without which nothing would run.
pub(in super::super) fn runs(lab: &Lab<'_>, verdict: &mut Verdict) {
    let mut registered: BTreeMap<LabClient, u64> = BTreeMap::new();
    for event in &lab.log.events {
        if let (LabKind::Registered { ret: 0 }, Some(client)) = (&event.kind, event.client) {
            registered.insert(client, event.slot);
        }
    }
    for stay in lab.stays.iter().filter(|stay| !stay.leaving) {
        let calls: Vec<_> = stay.called().collect();
        let Some((first, ..)) = calls.first() else {
            continue;
        };
        let place = |client: &LabClient| registered.get(client).copied().unwrap_or(u64::MAX);
        let pairs = calls.iter().zip(calls.iter().skip(1));
        let again = pairs.filter(|((_, a, _), (_, b, _))| place(b) >= place(a));
        let runs = 1 + again.count();
        let joined = stay
            .accepted()
            .enumerate()
            .filter(|(number, (request, ..))| {
                let interrupts = *number > 0 && request.context != LabContext::Task;
                let later = request.slot > first.slot || interrupts;
                later && matches!(request.kind, LabKind::Request { ret: 0, .. })
            });
        let allowed = 1 + joined.count();
        if runs <= allowed {
            verdict.holds();
            continue;
        }
        let message = format!(
            "the task work of {} ran {runs} times in one entry, expected at most {allowed}",
            task(first)
        );
        let slots: Vec<u64> = calls.iter().take(8).map(|(event, ..)| event.slot).collect();
        verdict.violated_in_log(message, slots, None);
    }
}

/// P2: an entry with callbacks ends. One that calls a client again and again has not, whether or
/// not the log's end cut it.
pub(in super::super) fn ends(lab: &Lab<'_>, verdict: &mut Verdict) {
    for stay in lab.stays.iter().filter(|stay| !stay.callbacks.is_empty()) {
        let mut calls: BTreeMap<LabClient, Vec<u64>> = BTreeMap::new();
        for (event, client, _) in stay.called() {
            calls.entry(client).or_default().push(event.slot);
        }
        match calls.into_iter().find(|(_, slots)| slots.len() > ENDLESS) {
            Some((client, slots)) => {
                let message = format!(
                    "one entry of task number {} called client {client} {} times",
                    stay.task,
                    slots.len()
                );
                verdict.violated_in_log(message, slots.into_iter().take(8), None);
            }
            None if lab.is_over(stay) => verdict.holds(),
            None => {}
        }
    }
}
