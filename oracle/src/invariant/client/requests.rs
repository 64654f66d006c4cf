//! R1 to R3: what `unwind_deferred_request()` and `unwind_deferred_init()` return.

use std::collections::{BTreeMap, BTreeSet};

use crate::invariant::Tally;
use crate::invariant::evidence::lab::{Lab, task};
use crate::trace::LabEvent;
use crate::trace::lab::{LabClient, LabKind};

/// `-EBUSY`.
const EBUSY: i32 = -16;
/// Bits of the kernel's mask, less the two that belong to no client (kernel/unwind/deferred.c,
/// 7.3).
const PLACES: usize = 62;
/// Places that something other than the lab client has: perf is the only other caller of
/// `unwind_deferred_init()` (kernel/events/core.c, 7.3).
const OTHERS: usize = 1;

fn ret(event: &LabEvent) -> Option<(i32, u64)> {
    match event.kind {
        LabKind::Request { ret, begin, .. } => Some((ret, begin)),
        _ => None,
    }
}

/// R1: of the requests of a client in one entry exactly one returns 0, and none that ended before
/// it began returns 1; none returns more. Requests overlap where an NMI asks in the middle of another; of
/// those any may be the first. What a cancelled client gets is R2's.
///
/// Evidence is a group of such requests: a kernel that does not tell the first from the later ones
/// returns another set of values for it.
pub fn first_is_zero(lab: &Lab<'_>, tally: &mut Tally) {
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
                None => tally.holds(),
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
                    let hit = |slot: &u64| lab.log.at(*slot)?.interrupted();
                    let ip = slots.iter().rev().find_map(hit);
                    tally.violated_in_log(message, slots, ip);
                }
            }
        }
    }
}

/// A request that returned neither 0 nor 1, and the one that had overtaken it, if any. "1 if the
/// callback is pending or was already executed" (`unwind_deferred_request()`,
/// kernel/unwind/deferred.c, 7.3).
fn undocumented(requests: &[&LabEvent]) -> Option<(String, Vec<u64>)> {
    let (request, got, begin) = requests.iter().find_map(|request| {
        let (got, begin) = ret(request).filter(|(got, _)| *got > 1)?;
        Some((request, got, begin))
    })?;
    let inside = |it: &&&LabEvent| (begin..request.slot).contains(&it.slot);
    let overtook = requests.iter().find(inside).map(|it| it.slot);
    let slots = overtook.into_iter().chain([request.slot]).collect();
    Some((format!("a request returned {got}, expected 0 or 1"), slots))
}

fn wrong_order(requests: &[&LabEvent]) -> Option<(String, Vec<u64>)> {
    if let Some(wrong) = undocumented(requests) {
        return Some(wrong);
    }
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

/// R2: a request of a cancelled client is refused. Judged where the request began after the end of
/// `unwind_deferred_cancel()`; one that is under way meanwhile may get either answer. Evidence is
/// such a request with a negative result: a kernel that accepts it returns 0 or 1.
pub fn cancelled_is_refused(lab: &Lab<'_>, tally: &mut Tally) {
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
            tally.holds();
        } else if told.insert(client) {
            let message = format!(
                "client {client} was cancelled, asked for {}, and got {ret}",
                task(event)
            );
            let slots = done.into_iter().chain([event.slot]);
            tally.violated_in_log(message, slots, None);
        }
    }
}

/// R3: the kernel takes as many clients as it has places, and refuses the next one with -EBUSY.
///
/// Evidence is a refusal with -EBUSY where each place but perf's is taken. With one more place
/// free it is undecided: a kernel may have another client of its own.
pub fn limited(lab: &Lab<'_>, tally: &mut Tally) {
    let mut active: BTreeSet<LabClient> = BTreeSet::new();
    let mut refused = 0;
    for event in &lab.log.events {
        let Some(client) = event.client else { continue };
        match event.kind {
            LabKind::Registered { ret: 0 } => {
                active.insert(client);
                if active.len() > PLACES {
                    let message = format!("{} clients at once, of {PLACES} places", active.len());
                    tally.violated_in_log(message, [event.slot], None);
                    return;
                }
            }
            LabKind::Registered { ret } => {
                refused += 1;
                if ret == EBUSY && active.len() + OTHERS >= PLACES {
                    tally.holds();
                    continue;
                }
                if ret == EBUSY && active.len() + OTHERS + 1 == PLACES {
                    tally.undecided("another client of the kernel may have the last place");
                    continue;
                }
                let message = format!(
                    "client {client} was refused with {ret} beside {} others",
                    active.len()
                );
                tally.violated_in_log(message, [event.slot], None);
            }
            LabKind::Cancelled => {
                active.remove(&client);
            }
            _ => {}
        }
    }
    tally.note(refused, "registrations refused");
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::lab::{
        C, LabKit, NEXT, STACK, client, holds, not_exercised, violated,
    };

    #[test]
    fn r1_a_request_that_returns_neither_0_nor_1() {
        let mut kit = LabKit::new();
        let inner = kit.nmi().ask(1, client(0), 0, C);
        let outer = kit.ask_since(1, client(0), 256, C, inner);
        kit.call(1, client(0), C, &STACK);
        assert_eq!(violated("R1", &kit), [inner, outer]);
        let mut kit = LabKit::new();
        let inner = kit.nmi().ask(1, client(0), 0, C);
        kit.ask_since(1, client(0), 1, C, inner);
        kit.call(1, client(0), C, &STACK);
        holds("R1", &kit);
    }

    #[test]
    fn r1_orders_of_answers() {
        let first = "R1";
        let mut kit = LabKit::new();
        let a = kit.ask(1, client(0), 1, C);
        assert_eq!(violated(first, &kit), [a]);
        let b = kit.ask(1, client(0), 0, C);
        assert_eq!(violated(first, &kit), [a, b]);

        let mut kit = LabKit::new();
        let a = kit.ask(1, client(0), 0, C);
        let b = kit.ask(1, client(0), 0, C);
        assert_eq!(violated(first, &kit), [a, b]);

        // The reset cleared the cookie of a request that was pending: the next one is not the
        // first.
        let mut kit = LabKit::new();
        let late = kit.nmi().with(|f| f.leaving = true).ask(1, client(0), 0, C);
        kit.leave(1);
        let a = kit.ask(1, client(0), 1, NEXT);
        kit.call(1, client(0), NEXT, &STACK);
        kit.leave_from(1, 0x40, true);
        assert_eq!(violated(first, &kit), [late, a]);

        // The second began before the first one ended: it was interrupted by it.
        let mut kit = LabKit::new();
        let begin = kit.ask(1, client(1), 0, C);
        kit.ask(1, client(0), 1, C);
        kit.ask_since(1, client(0), 0, C, begin);
        holds(first, &kit);
    }

    #[test]
    fn r2_a_cancelled_client_that_is_not_refused() {
        let refused = "R2";
        let mut kit = LabKit::new();
        let [_, done] = kit.cancel(client(0));
        let mut good = kit.clone();
        let a = kit.ask(1, client(0), 0, C);
        assert_eq!(violated(refused, &kit), [done, a]);
        good.ask(1, client(0), -22, 0);
        holds(refused, &good);
        // Under way meanwhile.
        let mut kit = LabKit::new();
        let [begin, _] = kit.cancel(client(0));
        kit.ask_since(1, client(0), 0, C, begin);
        not_exercised(refused, &kit);
    }

    #[test]
    fn r3_limits() {
        let limited = "R3";
        let mut kit = LabKit::empty();
        for number in 0..61 {
            kit.registered(client(number), 0);
        }
        let mut wrong = kit.clone();
        let a = wrong.registered(client(61), -12);
        assert_eq!(violated(limited, &wrong), [a]);
        let mut endless = kit.clone();
        endless.registered(client(61), 0);
        let a = endless.registered(client(62), 0);
        assert_eq!(violated(limited, &endless), [a]);
        kit.registered(client(61), -16);
        kit.cancel(client(7));
        kit.registered(client(62), 0);
        kit.registered(client(63), -16);
        assert_eq!(holds(limited, &kit).0, 2);

        // A kernel with one place less shows this too.
        let mut one_less = LabKit::empty();
        for number in 0..60 {
            one_less.registered(client(number), 0);
        }
        one_less.registered(client(60), -16);
        not_exercised(limited, &one_less);

        let mut few = LabKit::new();
        let a = few.registered(client(2), -16);
        assert_eq!(violated(limited, &few), [a]);
    }

    #[test]
    fn r1_what_a_cancelled_client_gets_is_no_matter_of_it() {
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.cancel(client(0));
        kit.ask(1, client(0), 0, C);
        assert_eq!(holds("R1", &kit).0, 1);
    }

    #[test]
    fn r3_a_cancelled_client_leaves_its_place() {
        let places = u16::try_from(super::PLACES).unwrap();
        let mut kit = LabKit::empty();
        for number in 0..places {
            kit.registered(client(number), 0);
        }
        kit.registered(client(places), -16);
        kit.registered(client(places), -16);
        let [_, _] = kit.cancel(client(0));
        kit.registered(client(places), 0);
        let (evidence, notes) = holds("R3", &kit);
        assert_eq!(
            (evidence, notes),
            (2, vec!["2 registrations refused".to_owned()])
        );
    }
}
