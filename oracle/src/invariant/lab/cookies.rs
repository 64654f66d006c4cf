//! C1 to C7 on requests and callbacks of the lab client.

use std::collections::{BTreeMap, BTreeSet};

use super::super::verdict::Verdict;
use super::{Lab, Stay, task};
use crate::trace::lab::LabKind;
use crate::trace::{LabEvent, Trace};

/// The cookies that clients of the lab client got. Their first request need not be perf's.
pub(in super::super) fn given(trace: &Trace) -> BTreeSet<u64> {
    let events = trace.lab.iter().flat_map(|lab| &lab.events);
    events.filter_map(LabEvent::cookie).collect()
}

/// The instruction that an event's interrupt hit.
fn instruction(event: &LabEvent) -> Option<u64> {
    match event.kind {
        LabKind::Request { ip, .. } if ip != 0 => Some(ip),
        _ => None,
    }
}

/// C1: within one entry all requests of all clients get one cookie. Those made while leaving may
/// have a new one, and are left out.
pub(in super::super) fn stability(lab: &Lab<'_>, verdict: &mut Verdict) {
    let mut migrated = 0;
    for stay in &lab.stays {
        let mut first: BTreeMap<u32, &LabEvent> = BTreeMap::new();
        for (request, _, cookie) in stay.accepted().filter(|(r, ..)| !r.flags.leaving) {
            let Some(earlier) = first.get(&request.entry) else {
                first.insert(request.entry, request);
                continue;
            };
            if earlier.cookie() == Some(cookie) {
                verdict.holds();
                migrated += usize::from(earlier.cpu != request.cpu);
                continue;
            }
            let message = format!(
                "{} got cookie {:#x}, then {cookie:#x} in the same entry ({})",
                task(request),
                earlier.cookie().unwrap_or_default(),
                request.context.name()
            );
            let slots = [earlier.slot, request.slot];
            verdict.violated_in_log(message, slots, instruction(request));
            break;
        }
    }
    verdict.note(migrated, "pairs of requests on two CPUs");
}

/// C2: two entries of a task have different cookies. Cookie 0 is left to C4.
pub(in super::super) fn freshness(lab: &Lab<'_>, verdict: &mut Verdict) {
    let mut seen: BTreeMap<(u32, u64), (usize, u64)> = BTreeMap::new();
    for (number, stay) in lab.stays.iter().enumerate() {
        let mut fresh = true;
        for (request, _, cookie) in stay.accepted().filter(|&(_, _, cookie)| cookie != 0) {
            let (of, slot) = *seen
                .entry((stay.task, cookie))
                .or_insert((number, request.slot));
            if of != number && fresh {
                fresh = false;
                let message = format!("{} got cookie {cookie:#x} in two entries", task(request));
                verdict.violated_in_log(message, [slot, request.slot], instruction(request));
            }
        }
        if fresh && stay.accepted().next().is_some() {
            verdict.holds();
        }
    }
}

/// C3: no cookie is of two tasks.
pub(in super::super) fn uniqueness(lab: &Lab<'_>, verdict: &mut Verdict) {
    let mut owners: BTreeMap<u64, &LabEvent> = BTreeMap::new();
    let mut tasks = BTreeSet::new();
    let mut shared = BTreeSet::new();
    for (request, _, cookie) in lab.stays.iter().flat_map(Stay::accepted) {
        tasks.insert(request.task);
        let owner = *owners.entry(cookie).or_insert(request);
        if cookie != 0 && owner.task != request.task && shared.insert(cookie) {
            let message = format!(
                "cookie {cookie:#x} is of {} and of {}",
                task(owner),
                task(request)
            );
            let slots = [owner.slot, request.slot];
            verdict.violated_in_log(message, slots, instruction(request));
        }
    }
    if tasks.len() > 1 && shared.is_empty() {
        owners.keys().for_each(|_| verdict.holds());
    }
}

/// C4: a cookie is a CPU and an odd count.
pub(in super::super) fn format(lab: &Lab<'_>, verdict: &mut Verdict) {
    for event in &lab.log.events {
        let Some(cookie) = event.cookie() else {
            continue;
        };
        let (count, cpu) = (cookie >> 32, cookie & 0xffff_ffff);
        if (1..=u64::from(lab.trace.vcpus)).contains(&cpu) && count % 2 == 1 {
            verdict.holds();
            continue;
        }
        let what = match event.kind {
            LabKind::Callback { .. } => "a callback",
            _ => "a request",
        };
        let message = format!("{what} of {} got cookie {cookie:#x}", task(event));
        let asked = led_to(lab, event);
        let slots = asked.map(|it| it.slot).into_iter().chain([event.slot]);
        verdict.violated_in_log(message, slots, asked.and_then(instruction));
    }
}

/// The last request of the task before a callback.
fn led_to<'t>(lab: &Lab<'t>, event: &LabEvent) -> Option<&'t LabEvent> {
    if !matches!(event.kind, LabKind::Callback { .. }) {
        return None;
    }
    let before = lab.log.events.iter().take_while(|it| it.slot < event.slot);
    before
        .filter(|it| it.task == event.task && it.client == event.client)
        .filter(|it| matches!(it.kind, LabKind::Request { .. }))
        .last()
}

/// Requests that were the first to get their cookie, by slot. The client logs a request before its
/// CPU runs another task, and what interrupts it asks for the same task: the first in the log is of
/// the CPU on which the cookie was made. Cookies that perf also got may be perf's.
fn births<'t>(lab: &Lab<'t>) -> Vec<(&'t LabEvent, u64)> {
    let events = lab.trace.events.iter();
    let perf: BTreeSet<u64> = events
        .filter_map(|e| Some(e.deferred_sample()?.1))
        .collect();
    let mut first: BTreeMap<u64, &'t LabEvent> = BTreeMap::new();
    for event in &lab.log.events {
        if let (LabKind::Request { .. }, Some(cookie)) = (&event.kind, event.cookie()) {
            first.entry(cookie).or_insert(event);
        }
    }
    let mut births: Vec<_> = first
        .into_iter()
        .filter(|(cookie, _)| *cookie != 0 && !perf.contains(cookie))
        .map(|(cookie, event)| (event, cookie))
        .collect();
    births.sort_by_key(|(event, _)| event.slot);
    births
}

/// C5: the cookie names the CPU of the first request.
pub(in super::super) fn birth(lab: &Lab<'_>, verdict: &mut Verdict) {
    for (event, cookie) in births(lab) {
        if cookie & 0xffff_ffff == u64::from(event.cpu) + 1 {
            verdict.holds();
            continue;
        }
        let message = format!(
            "cookie {cookie:#x} was first given on CPU {}, to {}",
            event.cpu,
            task(event)
        );
        verdict.violated_in_log(message, [event.slot], instruction(event));
    }
}

/// C6: the counts of a CPU do not go back.
pub(in super::super) fn order(lab: &Lab<'_>, verdict: &mut Verdict) {
    let mut last: BTreeMap<u16, (&LabEvent, u32)> = BTreeMap::new();
    for (event, cookie) in births(lab) {
        let count = u32::try_from(cookie >> 32).unwrap_or_default();
        if let Some((earlier, before)) = last.insert(event.cpu, (event, count)) {
            // A u32 that wraps: what is less than half its range ahead is ahead.
            if count.wrapping_sub(before) < 1 << 31 {
                verdict.holds();
            } else {
                let message = format!(
                    "CPU {} gave count {count} after {before} (cookie {cookie:#x})",
                    event.cpu
                );
                verdict.violated_in_log(message, [earlier.slot, event.slot], None);
            }
        }
    }
}

/// C7: the cookie of a callback is one that the task was given.
pub(in super::super) fn origin(lab: &Lab<'_>, verdict: &mut Verdict) {
    let events = lab.trace.events.iter();
    let samples = events.filter_map(|e| Some((e.tid?, e.deferred_sample()?.1)));
    let perf: BTreeSet<(u32, u64)> = samples.collect();
    let mut given: BTreeSet<(u32, u64)> = BTreeSet::new();
    for event in &lab.log.events {
        let Some(cookie) = event.cookie() else {
            continue;
        };
        if let LabKind::Request { .. } = event.kind {
            given.insert((event.task, cookie));
            continue;
        }
        if given.contains(&(event.task, cookie)) || perf.contains(&(event.tid, cookie)) {
            verdict.holds();
            continue;
        }
        let message = format!(
            "{} was called for cookie {cookie:#x}, given to nobody",
            task(event)
        );
        let asked = led_to(lab, event);
        let slots = asked.map(|it| it.slot).into_iter().chain([event.slot]);
        verdict.violated_in_log(message, slots, asked.and_then(instruction));
    }
}
