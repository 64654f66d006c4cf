//! R4 and R5: which callbacks a client may get.

use std::collections::{BTreeMap, BTreeSet};

use crate::invariant::Tally;
use crate::invariant::evidence::lab::{Lab, Stay, task};
use crate::trace::LabEvent;
use crate::trace::lab::{LabClient, LabKind};

/// R4: after a cancellation has returned, no callback of that client runs, and none starts.
/// `unwind_deferred_cancel()` waits for the SRCU readers that may run one.
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
        let (Some(done), Some(calls)) = (life.cancelled, calls.get(client)) else {
            continue;
        };
        let late = calls.iter().find(|call| {
            let end = ends.get(&call.slot).copied();
            call.slot > done || end.is_some_and(|end| end > done)
        });
        match late {
            None => tally.holds(),
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

/// R5: no client is called in an entry in which it did not ask. A client that takes the place of a
/// cancelled one did not ask for what that one asked for.
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
                tally.holds();
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

/// The client that asked in the entry before and was cancelled, so that `client` was registered in
/// its place before it was called: with the request, the end of the cancellation, and the
/// registration. The lab client registers what it has cancelled anew before it cancels another, so
/// the place is that of the same number.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::testkit::lab::{C, LabKit, NEXT, STACK, client, holds, violated};
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
        holds("M1", &kit);
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

        // One that ends while it is waited for.
        let mut kit = LabKit::new();
        let a = kit.begin(1, client(0), C, &STACK);
        kit.mark(client(0), LabKind::Cancel);
        kit.end(1, client(0), a);
        kit.mark(client(0), LabKind::Cancelled);
        holds(none, &kit);
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
}
