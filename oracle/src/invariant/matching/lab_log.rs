//! M1 and M2 on the lab client's log: which callbacks answer which requests.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::lab::{Lab, Stay, in_user_mode, task};
use crate::trace::LabEvent;
use crate::trace::lab::LabClient;

/// M1: every request that was not refused gets a callback in its stay, unless its client was
/// cancelled before it was due. Evidence is a callback before the next user instruction
/// ([`Lab::in_time`]): the client counts the returns to user mode, so a late one has another number.
/// A request of an NMI in user mode is answered by an interrupt. If a system call answers it, the
/// task has gone on, which is a violation.
pub fn completeness(lab: &Lab<'_>, tally: &mut Tally) {
    let (mut cancelled, mut inside) = (0, 0);
    for stay in &lab.stays {
        let mut judged: BTreeMap<(LabClient, u64), &LabEvent> = BTreeMap::new();
        for (request, client, cookie) in stay.accepted().filter(|(r, ..)| !r.flags.cancelled) {
            judged.entry((client, cookie)).or_insert(request);
        }
        let mut called: BTreeMap<(LabClient, u64), &LabEvent> = BTreeMap::new();
        for (callback, client, cookie) in stay.called() {
            called.entry((client, cookie)).or_insert(callback);
        }
        for ((client, cookie), request) in judged {
            if let Some(callback) = called.get(&(client, cookie)).copied() {
                let by = stay.returns_to(callback.entry);
                if in_user_mode(request) && by.is_some_and(|(_, interrupt)| !interrupt) {
                    let message = format!(
                        "client {client} asked for {} in user mode, cookie {cookie:#x}, and was \
                         called in a system call that the task made later",
                        task(request)
                    );
                    let slots = [request.slot, callback.slot];
                    tally.violated_in_log(message, slots, request.interrupted());
                    continue;
                }
                match lab.in_time(request, callback, stay) {
                    true => tally.holds(),
                    false => tally.undecided("the task may have come back to the instruction"),
                }
                continue;
            }
            if lab.cancelled_before(client, request, stay) {
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
                tally.violated_in_log(message, slots.map(|e| e.slot), request.interrupted());
            }
        }
    }
    tally.note(cancelled, "requests whose client was cancelled meanwhile");
    tally.note(
        inside,
        "requests of entries that the log does not see the end of (XD)",
    );
}

/// M2: a client is called at most once for a cookie, in whatever entry.
pub fn once(lab: &Lab<'_>, tally: &mut Tally) {
    let mut first: BTreeMap<(LabClient, u64), &LabEvent> = BTreeMap::new();
    for (event, client, cookie) in lab.stays.iter().flat_map(Stay::called) {
        match first.insert((client, cookie), event) {
            None => tally.holds(),
            // 0 is no cookie: two callbacks for it answer nothing twice.
            Some(_) if cookie == 0 => {}
            Some(earlier) => {
                let message = format!(
                    "client {client} was called twice for cookie {cookie:#x} ({})",
                    task(event)
                );
                tally.violated_in_log(message, [earlier.slot, event.slot], None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::Check;
    use crate::invariant::testkit::check;
    use crate::invariant::testkit::lab::{
        C, LabKit, NEXT, STACK, client, holds, not_exercised, violated,
    };

    #[test]
    fn a_request_with_interrupts_off_that_more_follows_is_of_its_entry() {
        let mut kit = LabKit::new();
        let a = kit
            .nmi()
            .with(|f| f.irqs_off = true)
            .ask(1, client(0), 0, C);
        kit.ask(1, client(1), 0, C);
        kit.call(1, client(1), C, &STACK);
        let left = kit.leave(1);
        kit.call(1, client(0), C, &STACK);
        kit.leave_from(1, 0x40, true);
        assert_eq!(violated("M1", &kit), [a, left]);
    }

    #[test]
    fn m1_a_hook_behind_the_exit_loop() {
        // The task's self-interrupt answers it, or the next tick does at the same instruction.
        let asked = |thread: bool| {
            let mut kit = LabKit::new();
            if thread {
                kit.perf.thread(0, 1001);
            }
            kit.nmi().with(|f| f.leaving = true).ask(1, client(0), 0, C);
            kit.leave_from(1, 0x1004, false);
            kit
        };
        for (thread, proved) in [(true, true), (false, false)] {
            let mut kit = asked(thread);
            kit.call(1, client(0), C, &STACK);
            kit.leave_from(1, 0x1004, true);
            match proved {
                true => assert_eq!(holds("M1", &kit).0, 1),
                false => not_exercised("M1", &kit),
            }
        }
        // A system call, or an interrupt elsewhere, answers nothing of before.
        for (ip, interrupt) in [(0x1004, false), (0x1008, true)] {
            let mut kit = asked(true);
            kit.call(1, client(0), C, &STACK);
            kit.leave_from(1, ip, interrupt);
            assert_eq!(violated("M1", &kit).len(), 2);
        }
        // Of what is asked before the exit work is over, no entry but its own is the one.
        let mut kit = LabKit::new();
        kit.perf.thread(0, 1001);
        kit.ask(1, client(0), 0, C);
        kit.leave_from(1, 0x1004, false);
        kit.call(1, client(0), C, &STACK);
        kit.leave_from(1, 0x1004, true);
        assert_eq!(violated("M1", &kit).len(), 2);
    }

    #[test]
    fn m1_a_request_that_is_not_answered() {
        let mut kit = LabKit::new();
        let a = kit.ask(1, client(0), 0, C);
        let mut open = kit.clone();
        let b = kit.leave(1);
        assert_eq!(violated("M1", &kit), [a, b]);
        // Answered for another client, or for another cookie, is not answered.
        let mut other = open.clone();
        other.call(1, client(1), C, &STACK);
        other.call(1, client(0), NEXT, &STACK);
        let b = other.leave(1);
        assert_eq!(violated("M1", &other), [a, b]);
        not_exercised("M1", &open);
        open.cancel(client(0));
        open.leave(1);
        not_exercised("M1", &open);
    }

    #[test]
    fn m1_an_nmi_in_user_mode_is_of_the_next_entry_only_if_that_is_its_interrupt() {
        let answered = |by_interrupt, ip, thread: bool| {
            let mut kit = LabKit::new();
            if thread {
                kit.perf.thread(0, 1001);
            }
            let asked = kit.nmi_at(0x1004).with(|f| f.user = true);
            let asked = asked.ask(1, client(0), 0, C);
            let called = kit.call(1, client(0), C, &STACK);
            kit.leave_from(1, ip, by_interrupt);
            (kit, [asked, called])
        };
        assert_eq!(holds("M1", &answered(true, 0x1004, true).0).0, 1);
        not_exercised("M1", &answered(true, 0x1004, false).0);
        not_exercised("M1", &answered(true, 0x1008, true).0);
        let (kit, shown) = answered(false, 0x1080, true);
        assert_eq!(violated("M1", &kit), shown);
    }

    #[test]
    fn m1_the_witness_knows_whether_the_task_went_on() {
        for (returns, holds_then) in [(false, true), (true, false)] {
            let mut kit = LabKit::new();
            kit.perf.witness();
            let asked = kit.nmi_at(0x40).with(|f| f.user = true);
            asked.ask(1, client(0), 0, C);
            if returns {
                let slots = kit.slots();
                kit.perf.returns_at(0, 1001, slots);
            }
            kit.call(1, client(0), C, &STACK);
            kit.leave_from(1, 0x40, true);
            match holds_then {
                true => assert_eq!(holds("M1", &kit).0, 1),
                false => not_exercised("M1", &kit),
            }
        }
    }

    #[test]
    fn m2_two_callbacks_of_a_cookie() {
        let mut kit = LabKit::new();
        let a = kit.call(1, client(0), C, &STACK);
        kit.leave(1);
        let b = kit.call(1, client(0), C, &STACK);
        assert_eq!(violated("M2", &kit), [a, b]);
    }

    /// Only code that makes a system call each time comes back to no instruction without one.
    #[test]
    fn m1_the_instruction_is_in_the_leaf_of_the_thread_that_makes_a_system_call() {
        let evidence = |change: fn(&mut unwindlab_abi::message::ThreadAnnounce)| {
            let mut kit = LabKit::new();
            kit.perf.thread(0, 1001);
            let asked = kit.nmi_at(0x1004).with(|f| f.user = true);
            asked.ask(1, client(0), 0, C);
            kit.call(1, client(0), C, &STACK);
            kit.leave_from(1, 0x1004, true);
            let mut trace = kit.trace();
            change(&mut trace.threads[0]);
            match check("M1", &trace) {
                Check::Holds { evidence, .. } => evidence,
                _ => 0,
            }
        };
        assert_eq!(evidence(|_| ()), 1);
        assert_eq!(evidence(|thread| thread.tid = 1002), 0);
        assert_eq!(evidence(|thread| thread.stack.syscall_return = 0), 0);
        assert_eq!(evidence(|thread| thread.stack.leaf_start = 0x1008), 0);
    }

    #[test]
    fn m1_requests_that_need_no_answer_are_counted() {
        let mut kit = LabKit::new();
        for task in [1, 2] {
            kit.ask(task, client(0), 0, C);
            kit.ask(task, client(1), 0, C);
            kit.call(task, client(1), C, &STACK);
        }
        kit.cancel(client(0));
        kit.leave(1);
        kit.leave(2);
        kit.ask(1, client(1), 0, NEXT);
        kit.ask(2, client(1), 0, NEXT);
        let notes = [
            "2 requests whose client was cancelled meanwhile",
            "2 requests of entries that the log does not see the end of (XD)",
        ];
        assert_eq!(holds("M1", &kit).1, notes);
    }

    #[test]
    fn m2_two_callbacks_for_no_cookie_answer_nothing_twice() {
        let mut kit = LabKit::new();
        kit.call(1, client(0), 0, &STACK);
        kit.call(1, client(0), 0, &STACK);
        assert_eq!(holds("M2", &kit).0, 1);
    }
}
