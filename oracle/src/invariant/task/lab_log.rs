//! X1, X2 and X5 on the lab client's log: what becomes of the requests of an exiting task, and of one
//! that is never in user mode.

use std::collections::BTreeMap;

use crate::invariant::Tally;
use crate::invariant::evidence::lab::{Lab, task};
use crate::invariant::evidence::{at_leaf, flaw};
use crate::trace::LabEvent;
use crate::trace::lab::{LabClient, LabKind};

/// X1: a request in an entry that ends in exit is answered, with a stack: the memory is still
/// there. Evidence is a callback with a whole stack that is known by construction.
pub fn exit_answered(lab: &Lab<'_>, tally: &mut Tally) {
    for stay in &lab.stays {
        let Some(exit) = stay.exit else { continue };
        for (event, client, cookie) in stay.called().filter(|(e, ..)| e.flags.exiting) {
            match event.kind {
                LabKind::Callback { nr: 1.., .. } if is_whole(lab, event) => tally.holds(),
                LabKind::Callback { nr: 1.., .. } => {
                    tally.undecided("a stack at exit that is not known by construction");
                }
                _ => {
                    let message = format!(
                        "client {client} got no frame of {}, which exits (cookie {cookie:#x})",
                        task(event)
                    );
                    tally.violated_in_log(message, [exit.slot, event.slot], None);
                }
            }
        }
        let mut open: BTreeMap<LabClient, &LabEvent> = BTreeMap::new();
        for (request, client, _) in stay.accepted().filter(|(r, ..)| !r.flags.cancelled) {
            open.entry(client).or_insert(request);
        }
        open.retain(|client, _| !stay.called().any(|(_, called, _)| called == *client));
        for (client, request) in open {
            if lab.cancelled_before(client, request, stay) || !lab.is_over(stay) {
                continue;
            }
            let message = format!(
                "client {client} asked for {}, which exited without an answer",
                task(request)
            );
            tally.violated_in_log(message, [request.slot, exit.slot], None);
        }
    }
}

/// Whether a callback got the whole stack of some workload thread.
fn is_whole(lab: &Lab<'_>, callback: &LabEvent) -> bool {
    let frames = lab.log.frames(callback).unwrap_or_default();
    let Some(&frame0) = frames.first() else {
        return false;
    };
    let stacks = lab.trace.threads.iter().map(|thread| &thread.stack);
    let mut stacks = stacks.filter(|stack| at_leaf(stack, frame0));
    stacks.any(|stack| flaw(frames, stack, frame0).is_none())
}

/// X2: a request of a task that is marked as exiting is refused, and gets no cookie.
pub fn exiting_refused(lab: &Lab<'_>, tally: &mut Tally) {
    for event in lab.log.events.iter().filter(|event| event.flags.exiting) {
        let LabKind::Request { ret, cookie, .. } = event.kind else {
            continue;
        };
        if ret < 0 && cookie == 0 {
            tally.holds();
            continue;
        }
        let message = format!(
            "{} is exiting, and a request for it returned {ret}, cookie {cookie:#x} ({})",
            task(event),
            event.context.name()
        );
        tally.violated_in_log(message, [event.slot], None);
    }
}

/// X5: a request of a worker (`PF_USER_WORKER`: those of io_uring and vhost) is refused, and gets no
/// cookie. The request is for "a user space unwind to be done in task work before exiting the
/// kernel" (kernel-doc of `unwind_deferred_request`, kernel/unwind/deferred.c, 7.3), and a worker does
/// not exit to user mode: `is_user_task` (include/linux/sched.h), by which perf decides, is false for
/// it. Its user registers are those of the thread that made it, less ip and sp (`copy_thread`).
///
/// Evidence is such a request with a negative result: a kernel that accepts it returns 0 or 1.
pub fn worker_refused(lab: &Lab<'_>, tally: &mut Tally) {
    for event in lab.log.events.iter().filter(|event| event.flags.worker) {
        let LabKind::Request { ret, cookie, .. } = event.kind else {
            continue;
        };
        if ret < 0 && cookie == 0 {
            tally.holds();
            continue;
        }
        let message = format!(
            "{} is a worker, and a request for it returned {ret}, cookie {cookie:#x}",
            task(event)
        );
        tally.violated_in_log(message, [event.slot], None);
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::testkit::lab::{
        C, LabKit, NEXT, STACK, client, holds, not_exercised, violated,
    };

    #[test]
    fn x5_a_worker_is_refused() {
        for (ret, cookie) in [(0, C), (1, C), (-22, C)] {
            let mut kit = LabKit::new();
            let a = kit.with(|f| f.worker = true).ask(1, client(0), ret, cookie);
            assert_eq!(violated("X5", &kit), [a]);
        }
        let mut kit = LabKit::new();
        kit.with(|f| f.worker = true).ask(1, client(0), -22, 0);
        kit.ask(2, client(0), 0, NEXT);
        assert_eq!(holds("X5", &kit).0, 1);
        let mut kit = LabKit::new();
        kit.ask(1, client(0), 0, C);
        not_exercised("X5", &kit);
    }

    #[test]
    fn x1_exits_without_a_real_answer() {
        let answered = "X1";
        let mut kit = LabKit::new();
        let a = kit.ask(1, client(0), 0, C);
        let exit = kit.exit(1);
        let mut good = kit.clone();
        let mut empty = kit.clone();
        // Cancelled by the client's end, when all was over, or while the task exited.
        kit.cancel(client(0));
        kit.stop();
        assert_eq!(violated(answered, &kit), [a, exit]);
        let mut cancelled = good.clone();
        cancelled.cancel(client(0));
        cancelled.ask(2, client(1), 0, NEXT);
        cancelled.stop();
        not_exercised(answered, &cancelled);

        let b = empty.with(|f| f.exiting = true).call(1, client(0), C, &[]);
        empty.stop();
        assert_eq!(violated(answered, &empty), [exit, b]);

        let mut made_up = good.clone();
        good.perf.thread(0, 1001);
        good.with(|f| f.exiting = true)
            .call(1, client(0), C, &STACK);
        good.stop();
        holds(answered, &good);

        // A kernel that walks something else than the stack shows this too.
        made_up.perf.thread(0, 1001);
        made_up
            .with(|f| f.exiting = true)
            .call(1, client(0), C, &STACK[..2]);
        made_up.stop();
        not_exercised(answered, &made_up);
    }

    #[test]
    fn x2_a_request_for_an_exiting_task() {
        let refused = "X2";
        for (ret, cookie) in [(0, C), (1, C), (-22, C)] {
            let mut kit = LabKit::new();
            let a = kit
                .with(|f| f.exiting = true)
                .ask(1, client(0), ret, cookie);
            assert_eq!(violated(refused, &kit), [a]);
        }
        let mut kit = LabKit::new();
        kit.with(|f| f.exiting = true).ask(1, client(0), -22, 0);
        holds(refused, &kit);
    }

    /// A request that is accepted without a cookie is accepted.
    #[test]
    fn x2_and_x5_a_request_that_returns_0_is_not_refused() {
        let mut kit = LabKit::new();
        let asked = kit.with(|f| f.exiting = true).ask(1, client(0), 0, 0);
        assert_eq!(violated("X2", &kit), [asked]);
        let mut kit = LabKit::new();
        let asked = kit.with(|f| f.worker = true).ask(1, client(0), 0, 0);
        assert_eq!(violated("X5", &kit), [asked]);
    }
}
