//! D2, P1 and P2 on the lab client's log: what an entry calls, and that it ends.

use std::collections::BTreeMap;

use unwindlab_abi::lab::LabContext;

use crate::invariant::Tally;
use crate::invariant::evidence::lab::{Lab, task};
use crate::trace::LabEvent;
use crate::trace::lab::{LabClient, LabKind};

/// A stay that calls one client more often than this counts as endless: no stay with leaving
/// requests can have so many callbacks.
const ENDLESS: usize = 64;

/// D2: a client is called at most once in an entry. One callback answers all requests of a client
/// in an entry, also those made after it: the bit stays set until the reset (docs/invariants.md has
/// the sources). An entry here is what
/// the client counts as one; that a request joins two does not matter. Evidence is a callback of an
/// entry of which the log has the end: a second one would be there.
pub fn one_callback(lab: &Lab<'_>, tally: &mut Tally) {
    for stay in &lab.stays {
        let mut first: BTreeMap<(LabClient, u32), &LabEvent> = BTreeMap::new();
        for (event, client, _) in stay.called() {
            match first.insert((client, event.entry), event) {
                None if lab.is_over(stay) => tally.holds(),
                None => tally.undecided("the log ends before the entry"),
                Some(earlier) => {
                    let message = format!(
                        "client {client} was called twice in one entry of {}",
                        task(event)
                    );
                    tally.violated_in_log(message, [earlier.slot, event.slot], None);
                    break;
                }
            }
        }
    }
}

/// P1: the task work runs once in an entry, and at most once more for each client that joins later.
///
/// A run calls the clients in the order of the kernel's list, which is the reverse order of
/// registration. A call against that order starts another run. So the runs are counted from below:
/// runs that call nobody are not seen. Evidence is a stay in which a run for each request would
/// show, which is one of these: The client that asked first was called last, behind others, and
/// nobody against the order. A run calls all who have asked, so the first one called it, and with it
/// the others. Or: its clients asked in another order than that of the list, and more often than
/// they may have joined later. A stay with one callback, or one in the order of the list, is
/// undecided. So are all where clients were cancelled and registered on several CPUs: a registration is logged when it is
/// over, so the log need not have the order of the list.
///
/// A client joins later if it asks after a run has noted who asked (`process_unwind_deferred`
/// fetches the bits and then walks, kernel/unwind/deferred.c, 7.3). The log does not have that
/// moment. After the first call it has passed for certain. Before that, an interrupt may have hit
/// the walk, or the instruction at which a client asks (`places`) may be one of the walk; else the
/// task itself asks nothing during it. So a request made in an interrupt or at such a place counts as
/// later, unless it is the entry's first request, without which nothing would run.
pub fn runs(lab: &Lab<'_>, tally: &mut Tally) {
    let mut registered: BTreeMap<LabClient, u64> = BTreeMap::new();
    for event in &lab.log.events {
        if let (LabKind::Registered { ret: 0 }, Some(client)) = (&event.kind, event.client) {
            registered.insert(client, event.slot);
        }
    }
    let side_by_side = lab.cancels_side_by_side();
    for stay in lab.stays.iter().filter(|stay| !stay.leaving) {
        let calls: Vec<_> = stay.called().collect();
        let Some((first, ..)) = calls.first() else {
            continue;
        };
        if side_by_side {
            tally.undecided("clients were registered on several CPUs, in which order is not known");
            continue;
        }
        let place = |client: &LabClient| registered.get(client).copied().unwrap_or(u64::MAX);
        let called: Vec<LabClient> = calls.iter().map(|(_, client, _)| *client).collect();
        let mut asked: Vec<LabClient> = Vec::new();
        for (_, client, _) in stay.accepted() {
            if called.contains(&client) && !asked.contains(&client) {
                asked.push(client);
            }
        }
        let runs = 1 + against(&called, place);
        let joined = stay
            .accepted()
            .enumerate()
            .filter(|(number, (request, ..))| {
                let placed = request.interrupted().is_some();
                let interrupts = request.context != LabContext::Task || placed;
                let later = request.slot > first.slot || *number > 0 && interrupts;
                later && matches!(request.kind, LabKind::Request { ret: 0, .. })
            });
        let allowed = 1 + joined.count();
        if runs <= allowed {
            let one_run = runs == 1 && called.len() > 1 && called.last() == asked.first();
            match one_run || 1 + against(&asked, place) > allowed {
                true => tally.holds(),
                false => tally.undecided("a run for each request would look the same"),
            }
            continue;
        }
        let message = format!(
            "the task work of {} ran {runs} times in one entry, expected at most {allowed}",
            task(first)
        );
        let slots: Vec<u64> = calls.iter().take(8).map(|(event, ..)| event.slot).collect();
        tally.violated_in_log(message, slots, None);
    }
}

/// How often a sequence of clients goes against the order of the kernel's list.
fn against(clients: &[LabClient], place: impl Fn(&LabClient) -> u64) -> usize {
    let pairs = clients.iter().zip(clients.iter().skip(1));
    pairs.filter(|(a, b)| place(b) >= place(a)).count()
}

/// P2: an entry with callbacks ends. One that calls a client again and again has not ended, whether
/// or not the end of the log cut it.
pub fn ends(lab: &Lab<'_>, tally: &mut Tally) {
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
                tally.violated_in_log(message, slots.into_iter().take(8), None);
            }
            None if lab.is_over(stay) => tally.holds(),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::lab::{
        C, LabKit, NEXT, STACK, client, holds, not_exercised, violated,
    };

    #[test]
    fn d2_two_callbacks_in_an_entry() {
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        let a = kit.call(1, client(0), C, &STACK);
        kit.ask(1, client(0), 0, NEXT);
        let b = kit.call(1, client(0), NEXT, &STACK);
        assert_eq!(violated("D2", &kit), [a, b]);
    }

    #[test]
    fn p1_a_run_more_than_clients_that_joined() {
        // The list is backwards: client 1 is called first.
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.ask(1, client(1), 0, C);
        let a = kit.call(1, client(0), C, &STACK);
        let mut joined = kit.clone();
        let b = kit.call(1, client(1), C, &STACK);
        assert_eq!(violated("P1", &kit), [a, b]);
        joined.ask(1, client(1), 0, C);
        joined.call(1, client(1), C, &STACK);
        not_exercised("P1", &joined);
    }

    #[test]
    fn p1_what_a_run_for_each_request_would_show_too_is_no_evidence() {
        let mut kit = LabKit::new();
        for by in [0, 1] {
            kit.ask(1, client(by), 0, C);
        }
        let mut backwards = LabKit::new();
        for by in [1, 0] {
            backwards.ask(1, client(by), 0, C);
        }
        // All in one NMI: nobody is known to have joined later or not.
        let mut nmi = LabKit::new();
        for by in [0, 1] {
            nmi.nmi().ask(1, client(by), 0, C);
        }
        for kit in [&mut kit, &mut backwards, &mut nmi] {
            kit.call(1, client(1), C, &STACK);
            kit.call(1, client(0), C, &STACK);
        }
        assert_eq!(holds("P1", &kit).0, 1);
        assert_eq!(holds("P1", &nmi).0, 1);
        not_exercised("P1", &backwards);
        let mut one = LabKit::new();
        one.ask(1, client(0), 0, C);
        one.call(1, client(0), C, &STACK);
        not_exercised("P1", &one);
    }

    #[test]
    fn d2_an_entry_that_the_log_does_not_see_the_end_of_is_undecided() {
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.call(1, client(0), C, &STACK);
        not_exercised("D2", &kit);
        kit.leave(1);
        assert_eq!(holds("D2", &kit).0, 1);
    }

    #[test]
    fn p1_who_asks_in_an_interrupt_may_have_hit_the_walk() {
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.nmi().ask(1, client(1), 0, C);
        kit.call(1, client(0), C, &STACK);
        kit.call(1, client(1), C, &STACK);
        not_exercised("P1", &kit);
        // Nothing runs before the first has asked.
        let mut kit = LabKit::new();
        kit.nmi().ask(1, client(0), 0, C);
        kit.ask(1, client(1), 0, C);
        let a = kit.call(1, client(0), C, &STACK);
        let b = kit.call(1, client(1), C, &STACK);
        assert_eq!(violated("P1", &kit), [a, b]);
    }

    #[test]
    fn p2_an_entry_that_calls_on_and_on() {
        let mut kit = LabKit::new();
        for _ in 0..65 {
            kit.call(1, client(0), C, &STACK);
        }
        assert_eq!(violated("P2", &kit).len(), 8);
    }

    /// Who asked second was registered first: a run for each request would call them against the order of the list.
    #[test]
    fn p1_an_order_that_runs_for_each_request_would_not_make_is_evidence() {
        let mut kit = LabKit::empty();
        for number in 0..3 {
            kit.registered(client(number), 0);
        }
        for number in [1, 2, 0] {
            kit.ask(1, client(number), 0, C);
        }
        for number in [2, 1, 0] {
            kit.call(1, client(number), C, &STACK);
        }
        kit.leave(1);
        assert_eq!(holds("P1", &kit).0, 1);
    }

    #[test]
    fn p2_an_entry_that_the_log_does_not_see_the_end_of_is_no_evidence() {
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        kit.call(1, client(0), C, &STACK);
        not_exercised("P2", &kit);
    }

    #[test]
    fn p2_so_many_callbacks_may_be_and_no_more() {
        let calls = |times: usize| {
            let mut kit = LabKit::new();
            kit.ask(1, client(0), 0, C);
            for _ in 0..times {
                kit.call(1, client(0), C, &STACK);
            }
            kit.leave(1);
            kit
        };
        assert_eq!(holds("P2", &calls(super::ENDLESS)).0, 1);
        violated("P2", &calls(super::ENDLESS + 1));
    }

    /// The kernel's list has another order than the log then: a registration is logged when it is over.
    #[test]
    fn p1_the_order_of_the_list_is_not_known_where_clients_change_side_by_side() {
        for (cpu, wrong) in [(0, true), (1, false)] {
            let mut kit = LabKit::new();
            kit.cancel(client(5));
            kit.on(cpu).cancel(client(6));
            kit.on(0);
            for by in [0, 1] {
                kit.ask(1, client(by), 0, C);
            }
            for by in [0, 1] {
                kit.call(1, client(by), C, &STACK);
            }
            let found = crate::invariant::testkit::judged("P1", &kit.trace());
            assert_eq!(found, if wrong { (0, 0, true) } else { (0, 1, false) });
        }
    }
}
