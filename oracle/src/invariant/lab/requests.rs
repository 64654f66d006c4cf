//! R1 to R5: what `unwind_deferred_request()`, `_init()` and `_cancel()` promise.

use std::collections::{BTreeMap, BTreeSet};

use super::super::verdict::Verdict;
use super::{Lab, Stay, task};
use crate::trace::LabEvent;
use crate::trace::lab::{LabClient, LabKind};

/// `-EBUSY`.
const EBUSY: i32 = -16;
/// Bits of the kernel's mask, less the two that are no client's (kernel/unwind/deferred.c).
const PLACES: usize = 62;
/// Places that something other than the lab client may have: perf has one.
const OTHERS: usize = 2;

fn ret(event: &LabEvent) -> Option<(i32, u64)> {
    match event.kind {
        LabKind::Request { ret, begin, .. } => Some((ret, begin)),
        _ => None,
    }
}

/// R1: of the requests of a client in one entry exactly one returns 0, and none that ended before
/// it began returns 1 or more. What a cancelled client gets is R2's.
pub(in super::super) fn first_is_zero(lab: &Lab<'_>, verdict: &mut Verdict) {
    for stay in &lab.stays {
        let mut groups: BTreeMap<(LabClient, u64), Vec<&LabEvent>> = BTreeMap::new();
        for (request, client, cookie) in stay.accepted() {
            if lab.cancel(client).is_some_and(|slot| slot < request.slot) {
                continue;
            }
            let key = (client, if stay.leaving { cookie } else { 0 });
            groups.entry(key).or_default().push(request);
        }
        for ((client, _), requests) in groups {
            match wrong_order(&requests) {
                None => verdict.holds(),
                Some((what, mut slots)) => {
                    let about = requests.first().map_or_else(String::new, |r| task(r));
                    let message = format!("client {client}, {about}: {what}");
                    // What was accepted last before may be why.
                    let first = slots.first().copied().unwrap_or_default();
                    let before = stay
                        .accepted()
                        .filter(|&(r, c, _)| c == client && r.slot < first);
                    if let (1, Some((earlier, ..))) = (slots.len(), before.last()) {
                        slots.insert(0, earlier.slot);
                    }
                    let hit = |slot: &u64| match lab.log.at(*slot)?.kind {
                        LabKind::Request { ip, .. } => Some(ip).filter(|&ip| ip != 0),
                        _ => None,
                    };
                    let ip = slots.iter().rev().find_map(hit);
                    verdict.violated_in_log(message, slots, ip);
                }
            }
        }
    }
}

fn wrong_order(requests: &[&LabEvent]) -> Option<(String, Vec<u64>)> {
    let zeros: Vec<_> = requests
        .iter()
        .filter(|r| ret(r).is_some_and(|(ret, _)| ret == 0))
        .collect();
    let first = requests.first()?;
    match zeros.as_slice() {
        [] => {
            let ret = ret(first)?.0;
            Some((
                format!("its first request of the entry returned {ret}, expected 0"),
                vec![first.slot],
            ))
        }
        [zero] => {
            let begin = ret(zero)?.1;
            let earlier = requests.iter().find(|r| r.slot < begin)?;
            Some((
                format!(
                    "a request returned {} before the one that returned 0",
                    ret(earlier)?.0
                ),
                vec![earlier.slot, zero.slot],
            ))
        }
        [one, two, ..] => Some((
            "two requests of one entry returned 0".to_owned(),
            vec![one.slot, two.slot],
        )),
    }
}

/// R2: what a client asks for after it was cancelled is refused.
pub(in super::super) fn cancelled_is_refused(lab: &Lab<'_>, verdict: &mut Verdict) {
    let mut told = BTreeSet::new();
    for event in &lab.log.events {
        let (Some((ret, begin)), Some(client)) = (ret(event), event.client) else {
            continue;
        };
        let done = lab.lives.get(&client).and_then(|life| life.cancelled);
        if done.is_none_or(|slot| slot >= begin) {
            continue;
        }
        if ret < 0 {
            verdict.holds();
        } else if told.insert(client) {
            let message = format!(
                "client {client} was cancelled, asked for {}, and got {ret}",
                task(event)
            );
            let slots = done.into_iter().chain([event.slot]);
            verdict.violated_in_log(message, slots, None);
        }
    }
}

/// R3: the kernel takes as many clients as it has places, and refuses the next with -EBUSY.
pub(in super::super) fn limited(lab: &Lab<'_>, verdict: &mut Verdict) {
    let mut active: BTreeSet<LabClient> = BTreeSet::new();
    let mut refused = 0;
    for event in &lab.log.events {
        let Some(client) = event.client else { continue };
        match event.kind {
            LabKind::Registered { ret: 0 } => {
                active.insert(client);
                if active.len() > PLACES {
                    let message = format!("{} clients at once, of {PLACES} places", active.len());
                    verdict.violated_in_log(message, [event.slot], None);
                    return;
                }
            }
            LabKind::Registered { ret } => {
                refused += 1;
                if ret == EBUSY && active.len() + OTHERS >= PLACES {
                    verdict.holds();
                    continue;
                }
                let message = format!(
                    "client {client} was refused with {ret} beside {} others",
                    active.len()
                );
                verdict.violated_in_log(message, [event.slot], None);
            }
            LabKind::Cancelled => {
                active.remove(&client);
            }
            _ => {}
        }
    }
    verdict.note(refused, "registrations refused");
}

/// R4: when cancelling has returned, no callback of that client runs, and none starts.
pub(in super::super) fn none_after_cancel(lab: &Lab<'_>, verdict: &mut Verdict) {
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    let mut calls: BTreeMap<LabClient, Vec<&LabEvent>> = BTreeMap::new();
    for event in &lab.log.events {
        match (&event.kind, event.client) {
            (LabKind::Callback { .. }, Some(client)) => {
                calls.entry(client).or_default().push(event);
            }
            (LabKind::Called { callback }, _) => {
                ends.insert(*callback, event.slot);
            }
            _ => {}
        }
    }
    for (client, life) in &lab.lives {
        let (Some(done), Some(calls)) = (life.cancelled, calls.get(client)) else {
            continue;
        };
        let late = calls.iter().find(|call| {
            let end = ends.get(&call.slot).copied();
            call.slot > done || end.is_some_and(|end| end > done)
        });
        match late {
            None => verdict.holds(),
            Some(call) => {
                let message = format!(
                    "client {client} was called for {} when it had been cancelled",
                    task(call)
                );
                let end = ends.get(&call.slot).copied();
                let slots = [call.slot, done].into_iter().chain(end);
                verdict.violated_in_log(message, slots, None);
            }
        }
    }
}

/// R5: no client is called in an entry in which it did not ask.
pub(in super::super) fn none_unasked(lab: &Lab<'_>, verdict: &mut Verdict) {
    for event in &lab.log.events {
        if let (LabKind::Callback { .. }, 0, Some(client)) = (&event.kind, event.task, event.client)
        {
            let begun = being_cancelled(lab, event, client);
            let message = format!(
                "client {client} was called for task {}, not asked for{}",
                event.tid,
                begun.map_or("", |_| CANCELLING)
            );
            verdict.violated_in_log(message, begun.into_iter().chain([event.slot]), None);
        }
    }
    for stay in &lab.stays {
        let asked: BTreeSet<LabClient> = stay.accepted().map(|(_, client, _)| client).collect();
        for (event, client, _) in stay.called() {
            if asked.contains(&client) {
                verdict.holds();
                continue;
            }
            let mut message = format!(
                "client {client} was called for {} in an entry in which it did not ask",
                task(event)
            );
            let before = predecessor(lab, stay, event, client);
            if let Some((asked, _)) = before {
                message += &format!("; client {asked}, cancelled before it was registered, did");
            }
            let mut slots: Vec<u64> = before.into_iter().flat_map(|(_, slots)| slots).collect();
            if slots.is_empty()
                && let Some(begun) = being_cancelled(lab, event, client)
            {
                message += CANCELLING;
                slots.push(begun);
            }
            verdict.violated_in_log(message, slots.into_iter().chain([event.slot]), None);
        }
    }
}

/// What R5 says of a client that was called while it was cancelled.
const CANCELLING: &str = "; its cancellation had begun";

/// Where the cancellation of a client begins that was not over when the client was called. Had it
/// been, the call would be R4's.
fn being_cancelled(lab: &Lab<'_>, call: &LabEvent, client: LabClient) -> Option<u64> {
    let life = lab.lives.get(&client)?;
    let open = life.cancelled.is_none_or(|done| done > call.slot);
    life.cancel.filter(|&begun| begun < call.slot && open)
}

/// Who asked in the entry before and was cancelled, so that `client` was registered in its place
/// before it was called: with the request, the end of the cancellation, and the registration. The
/// lab client registers anew what it has cancelled before it cancels another, so the place is that
/// of the same number.
fn predecessor(
    lab: &Lab<'_>,
    stay: &Stay<'_>,
    call: &LabEvent,
    client: LabClient,
) -> Option<(LabClient, [u64; 3])> {
    let registered = lab.lives.get(&client)?.registered?;
    let before = |(request, other, _): (&LabEvent, LabClient, u64)| {
        let done = lab.lives.get(&other)?.cancelled?;
        let slots = [request.slot, done, registered, call.slot];
        let fits = other.number == client.number && slots.is_sorted();
        fits.then_some((other, [request.slot, done, registered]))
    };
    stay.accepted().filter_map(before).last()
}
