//! R4 and R5: which callbacks a client may get.

use std::collections::{BTreeMap, BTreeSet};

use crate::invariant::Tally;
use crate::invariant::evidence::lab::{Lab, Stay, task};
use crate::trace::LabEvent;
use crate::trace::lab::{LabClient, LabKind};

/// R4: after a cancellation has returned, no callback of that client runs, and none starts.
/// `unwind_deferred_cancel()` waits for the SRCU readers that may run one.
///
/// Evidence is a client with a request that was accepted and not answered when its cancellation
/// began, of an entry that ended after the cancellation had, without a call in between: a kernel
/// that does not prevent the callback makes it on the way out of that entry. A callback that ended
/// while it was being cancelled is undecided: on a kernel that does not wait, it may have ended just
/// in time. A client that nothing was asked of when it was cancelled shows nothing.
pub fn none_after_cancel(lab: &Lab<'_>, tally: &mut Tally) {
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
        let Some(done) = life.cancelled else {
            continue;
        };
        let calls = calls.get(client).map_or(&[][..], Vec::as_slice);
        let late = calls.iter().find(|call| {
            let end = ends.get(&call.slot).copied();
            call.slot > done || end.is_some_and(|end| end > done)
        });
        match late {
            None => without_late_call(lab, *client, (life.cancel, done), calls, &ends, tally),
            Some(call) => {
                let message = format!(
                    "client {client} was called for {} when it had been cancelled",
                    task(call)
                );
                let end = ends.get(&call.slot).copied();
                let slots = [call.slot, done].into_iter().chain(end);
                tally.violated_in_log(message, slots, None);
            }
        }
    }
}

/// Whether there was anything for a cancellation to prevent, none of the client's calls being late.
fn without_late_call(
    lab: &Lab<'_>,
    client: LabClient,
    (begun, done): (Option<u64>, u64),
    calls: &[&LabEvent],
    ends: &BTreeMap<u64, u64>,
    tally: &mut Tally,
) {
    let Some(begun) = begun else { return };
    let prevented = lab.stays.iter().filter(|stay| {
        let asked = stay
            .accepted()
            .any(|(r, c, _)| c == client && r.slot < begun);
        let called = stay.called().any(|(_, c, _)| c == client);
        asked && !called && stay.returned.is_some_and(|end| end.slot > done)
    });
    let prevented = prevented.count();
    tally.holds_on(prevented);
    for call in calls {
        let end = ends.get(&call.slot).copied();
        if call.slot < done && end.is_some_and(|end| begun < end) {
            tally.undecided("a callback that ended during the cancellation may have had luck");
        }
    }
}

/// R5: no client is called in an entry in which it did not ask. A client that takes the place of a
/// cancelled one did not ask for what that one asked for.
///
/// Evidence is a client that did not ask in an entry in which another one was called, and was
/// registered all the time from the first call to the last: a kernel that calls it shows the call
/// there. A client that asked and was called shows nothing of that: it is undecided.
pub fn none_unasked(lab: &Lab<'_>, tally: &mut Tally) {
    for event in &lab.log.events {
        if let (LabKind::Callback { .. }, 0, Some(client)) = (&event.kind, event.task, event.client)
        {
            let begun = being_cancelled(lab, event, client);
            let message = format!(
                "client {client} was called for task {}, not asked for{}",
                event.tid,
                begun.map_or("", |_| CANCELLING)
            );
            tally.violated_in_log(message, begun.into_iter().chain([event.slot]), None);
        }
    }
    for stay in &lab.stays {
        let asked: BTreeSet<LabClient> = stay.accepted().map(|(_, client, _)| client).collect();
        for (event, client, _) in stay.called() {
            if asked.contains(&client) {
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
            tally.violated_in_log(message, slots.into_iter().chain([event.slot]), None);
        }
        bystanders(lab, stay, &asked, tally);
    }
}

/// The clients that could have been called in an entry in which they did not ask.
fn bystanders(lab: &Lab<'_>, stay: &Stay<'_>, asked: &BTreeSet<LabClient>, tally: &mut Tally) {
    let slots = || stay.callbacks.iter().map(|call| call.slot);
    let (Some(first), Some(last)) = (slots().min(), slots().max()) else {
        return;
    };
    let there = lab.lives.iter().filter(|(client, life)| {
        let before = life.registered.is_some_and(|slot| slot < first);
        let after = life.cancel.is_none_or(|slot| slot > last);
        before && after && !asked.contains(client)
    });
    match there.count() {
        0 => tally.undecided("every client that was registered had asked"),
        clients => tally.holds_on(clients),
    }
}

/// What R5 says of a client that was called during its cancellation.
const CANCELLING: &str = "; its cancellation had begun";

/// Where the cancellation of a client began that had not ended when the client was called. Had it
/// ended, the call would be R4's.
fn being_cancelled(lab: &Lab<'_>, call: &LabEvent, client: LabClient) -> Option<u64> {
    let life = lab.lives.get(&client)?;
    let open = life.cancelled.is_none_or(|done| done > call.slot);
    life.cancel.filter(|&begun| begun < call.slot && open)
}

/// The client that asked in the entry before it had been cancelled, so that `client` was registered in
/// its place before it was called: with the request, the end of the cancellation, and the
/// registration, in their order. A request is in the log when it is over, so it may be the last of them. So is a
/// registration, which the call may precede there: it is proof that the registration had begun. The lab client
/// registers what it has cancelled anew before it cancels another, so the place is that of the same
/// number, unless it does so on several CPUs.
fn predecessor(
    lab: &Lab<'_>,
    stay: &Stay<'_>,
    call: &LabEvent,
    client: LabClient,
) -> Option<(LabClient, [u64; 3])> {
    let registered = lab.lives.get(&client)?.registered?;
    let side_by_side = lab.cancels_side_by_side();
    let before = |(request, other, _): (&LabEvent, LabClient, u64)| {
        let LabKind::Request { begin, .. } = request.kind else {
            return None;
        };
        let done = lab.lives.get(&other)?.cancelled?;
        let mut slots = [request.slot, done, registered];
        slots.sort_unstable();
        let same_place = other.number == client.number || side_by_side;
        let fits =
            same_place && begin <= done && done <= registered && request.slot.max(done) < call.slot;
        fits.then_some((other, slots))
    };
    stay.accepted().filter_map(before).last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::lab::{
        C, LabKit, NEXT, STACK, client, holds, not_exercised, undecided, violated,
    };
    use crate::invariant::testkit::violated as violated_in;

    /// The client had already found nothing to log a return for when the NMI asked.
    #[test]
    fn a_request_behind_the_last_look_is_of_the_entry_that_its_interrupt_makes() {
        let r5 = "R5";
        let mut kit = LabKit::new();
        kit.nmi().with(|f| f.leaving = true).ask(1, client(0), 0, C);
        kit.leave_unlogged(1);
        let mut other = kit.clone();
        let call = kit.call(1, client(0), C, &STACK);
        kit.leave_from(1, 0x40, true);
        holds(r5, &kit);
        // It may have gone on for a while, and come back to the instruction.
        not_exercised("M1", &kit);
        // A system call is not what the NMI made.
        other.call(1, client(0), C, &STACK);
        other.leave(1);
        assert_eq!(violated(r5, &other), [call]);
    }

    #[test]
    fn r4_callbacks_of_a_cancelled_client() {
        let none = "R4";
        let mut kit = LabKit::new();
        let [_, done] = kit.cancel(client(0));
        let a = kit.begin(1, client(0), C, &STACK);
        assert_eq!(violated(none, &kit), [done, a]);

        // One that has not ended.
        let mut kit = LabKit::new();
        let a = kit.begin(1, client(0), C, &STACK);
        let [_, done] = kit.cancel(client(0));
        let b = kit.end(1, client(0), a);
        assert_eq!(violated(none, &kit), [a, done, b]);

        // One that would have come.
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.cancel(client(0));
        kit.leave(1);
        assert_eq!(holds(none, &kit).0, 1);
    }

    /// A kernel that does not wait, and does not take pending requests back, shows these too.
    #[test]
    fn r4_nothing_to_wait_for() {
        let none = "R4";
        let mut kit = LabKit::new();
        let a = kit.begin(1, client(0), C, &STACK);
        kit.mark(client(0), LabKind::Cancel);
        kit.end(1, client(0), a);
        kit.mark(client(0), LabKind::Cancelled);
        not_exercised(none, &kit);

        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.call(1, client(0), C, &STACK);
        kit.leave(1);
        kit.cancel(client(0));
        not_exercised(none, &kit);
    }

    /// A kernel that calls every client shows this too.
    #[test]
    fn r5_where_everybody_asked() {
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.ask(1, client(1), 0, C);
        kit.call(1, client(1), C, &STACK);
        kit.call(1, client(0), C, &STACK);
        not_exercised("R5", &kit);
    }

    #[test]
    fn r5_callbacks_that_nobody_asked_for() {
        let none = "R5";
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        let a = kit.call(1, client(1), C, &STACK);
        assert_eq!(violated(none, &kit), [a]);

        // In an entry before, or by the registration before, is not in this one.
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.leave(1);
        let a = kit.call(1, client(0), NEXT, &STACK);
        assert_eq!(violated(none, &kit), [a]);

        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        let again = LabClient {
            generation: 2,
            ..client(0)
        };
        let a = kit.call(1, again, C, &STACK);
        assert_eq!(violated(none, &kit), [a]);

        let mut kit = LabKit::new();
        let a = kit.call(0, client(0), C, &STACK);
        assert_eq!(violated(none, &kit), [a]);
    }

    #[test]
    fn r5_names_who_asked_from_the_same_place() {
        let none = "R5";
        assert_eq!(violated(none, &LabKit::taken_place(0, C)), [2, 4, 5, 6]);
        assert_eq!(violated(none, &LabKit::taken_place(1, C)), [6]);
    }

    /// It is logged when it is over, before or after the end of the cancellation and the registration.
    #[test]
    fn r5_names_who_asked_when_the_cancellation_had_not_ended() {
        let next = LabClient {
            generation: 2,
            ..client(0)
        };
        for over in 0..3 {
            let kit = LabKit::asking_meanwhile(over, next, 0, C);
            assert_eq!(violated("R5", &kit).len(), 4, "{over}");
            // It began when the cancellation had ended; another number.
            let late = LabKit::asking_meanwhile(over, next, 4, C);
            let names = if over == 0 { 4 } else { 1 };
            assert_eq!(violated("R5", &late).len(), names, "{over}");
            let other = LabKit::asking_meanwhile(over, client(1), 0, C);
            assert_eq!(violated("R5", &other).len(), 1, "{over}");
            // Of several CPUs that cancel, one may have taken the other's place.
            let mut beside = other.clone();
            beside.cancel(client(5));
            beside.leave(1);
            let of_one = beside.trace();
            let mut of_two = of_one.clone();
            let mut log = of_two.lab.iter_mut().flat_map(|lab| &mut lab.events);
            let last = log.rfind(|it| it.kind == LabKind::Cancel).unwrap();
            last.cpu = 1;
            let names = |trace| violated_in("R5", trace)[0].log.len();
            assert_eq!([names(&of_one), names(&of_two)], [1, 4], "{over}");
        }
    }

    #[test]
    fn r5_names_the_cancellation_that_has_begun() {
        let none = "R5";
        for task in [0, 1] {
            let mut kit = LabKit::unasked(task, &[LabKind::Cancel]);
            assert_eq!(violated(none, &kit), [3, 4]);
            // It ends after the callback, as it should.
            kit.mark(client(1), LabKind::Cancelled);
            assert_eq!(violated(none, &kit), [3, 4]);
            let list = violated_in(none, &kit.trace());
            assert!(list[0].message.ends_with("; its cancellation had begun"));
            // It was over before (R4's), or begins after the callback.
            let over = LabKit::unasked(task, &[LabKind::Cancel, LabKind::Cancelled]);
            assert_eq!(violated(none, &over), [5]);
            let mut later = LabKit::unasked(task, &[]);
            later.cancel(client(1));
            assert_eq!(violated(none, &later), [3]);
        }
    }

    #[test]
    fn r4_only_a_callback_that_was_due_was_prevented() {
        let r4 = "R4";
        // Asked for when the cancellation had begun.
        let mut kit = LabKit::new();
        kit.mark(client(0), LabKind::Cancel);
        kit.ask(1, client(0), 0, C);
        kit.mark(client(0), LabKind::Cancelled);
        kit.leave(1);
        not_exercised(r4, &kit);

        // By another client, which is called.
        let mut kit = LabKit::new();
        kit.ask(1, client(1), 0, C);
        kit.cancel(client(0));
        kit.leave(1);
        not_exercised(r4, &kit);
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.ask(1, client(1), 0, C);
        kit.cancel(client(0));
        kit.call(1, client(1), C, &STACK);
        kit.leave(1);
        assert_eq!(holds(r4, &kit).0, 1);

        // Made before.
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.call(1, client(0), C, &STACK);
        kit.cancel(client(0));
        kit.leave(1);
        assert_eq!(undecided(r4, &kit), 0);

        // The entry is over before the cancellation is.
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.mark(client(0), LabKind::Cancel);
        kit.leave(1);
        kit.mark(client(0), LabKind::Cancelled);
        not_exercised(r4, &kit);
    }

    #[test]
    fn r4_a_callback_that_ended_during_the_cancellation_is_undecided() {
        let mut kit = LabKit::new();
        let call = kit.begin(1, client(0), C, &STACK);
        kit.mark(client(0), LabKind::Cancel);
        kit.end(1, client(0), call);
        kit.mark(client(0), LabKind::Cancelled);
        assert_eq!(undecided("R4", &kit), 1);
    }

    #[test]
    fn r5_a_bystander_is_registered_from_the_first_call_to_the_last() {
        let asked_and_called = |kit: &mut LabKit| {
            kit.ask(1, client(0), 0, C);
            kit.call(1, client(0), C, &STACK);
        };
        let mut kit = LabKit::new();
        asked_and_called(&mut kit);
        kit.cancel(client(1));
        assert_eq!(holds("R5", &kit).0, 1);

        let mut kit = LabKit::new();
        kit.cancel(client(1));
        asked_and_called(&mut kit);
        assert_eq!(undecided("R5", &kit), 1);

        let mut kit = LabKit::empty();
        kit.registered(client(0), 0);
        asked_and_called(&mut kit);
        kit.registered(client(1), 0);
        assert_eq!(undecided("R5", &kit), 1);
    }
}
