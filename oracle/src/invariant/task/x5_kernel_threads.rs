//! X5: kernel threads have no deferred chains.

use std::collections::BTreeSet;

use unwindlab_abi::Observation;

use crate::invariant::Tally;
use crate::invariant::evidence::{Evidence, spec};
use crate::trace::EventKind;

/// The parent of all kernel threads but the idle ones, in the initial pid namespace, in which the
/// agent opens its events.
const KTHREADD: u32 = 2;

/// X5. A sample in a kernel thread carries no cookie, and no D is of one: `perf_callchain` asks for
/// the user chain of `is_user_task` tasks only, and `unwind_deferred_request` refuses `PF_KTHREAD`
/// (7.2). A trace knows these kernel threads: the idle tasks (pid 0), kthreadd (pid 2), what
/// kthreadd forked during the session unless it called exec, and those that the agent lists where a
/// scenario hits any task. Others it cannot tell from user tasks. A user mode helper is no
/// exception: a kernel
/// worker forks it, not kthreadd.
///
/// Workers of io_uring (`PF_USER_WORKER`) never return to user mode, so perf must not ask for their
/// chains either. A trace knows them by the name that they give themselves (`io_wq_worker` in
/// io_uring/io-wq.c, `io_sq_thread` in io_uring/sqpoll.c), if an event records comm.
///
/// Evidence is a sample with a kernel chain and nothing after it, of an event that defers user
/// chains: a kernel that gives this task a cookie shows it in this chain. A sample without a chain
/// shows nothing, and neither does one of an event that excludes user chains.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let trace = evidence.trace();
    let facts = evidence.facts();
    let mut kernel = BTreeSet::new();
    let listed: BTreeSet<u32> = { trace.observations.iter() }
        .filter_map(|seen| match seen {
            Observation::KernelThread { tid } => Some(*tid),
            _ => None,
        })
        .collect();
    for event in &trace.events {
        match &event.kind {
            EventKind::Fork { ptid: KTHREADD, .. } => kernel.extend(facts.tasks.child(event)),
            EventKind::Comm { comm, exec: false } if is_worker(comm) => {
                kernel.extend(facts.tasks.of(event));
            }
            EventKind::Comm { exec: true, .. } => {
                if let Some(task) = facts.tasks.of(event) {
                    kernel.remove(&task);
                }
            }
            _ => {}
        }
        let known = facts.tasks.of(event).is_some_and(|t| kernel.contains(&t));
        let Some(tid) = event
            .tid
            .filter(|t| *t == 0 || *t == KTHREADD || known || listed.contains(t))
        else {
            continue;
        };
        let what = match (&event.kind, event.deferred_sample()) {
            (EventKind::Sample(_), Some((_, cookie))) => format!("a sample with {cookie:#x}"),
            (EventKind::CallchainDeferred(d), _) => format!("a record 22 of {:#x}", d.cookie),
            (EventKind::Sample(_), None) => {
                let defers = spec(trace, event)
                    .is_some_and(|spec| spec.defer_callchain && !spec.exclude_callchain_user);
                if defers && !event.kernel_chain().is_empty() {
                    tally.holds();
                }
                continue;
            }
            _ => continue,
        };
        let message = format!("kernel thread or worker {tid} has {what}");
        tally.violated(message, [event.index], facts.instruction(event));
    }
}

/// Whether a task of this name is a worker of io_uring.
fn is_worker(comm: &str) -> bool {
    comm.starts_with("iou-wrk-") || comm.starts_with("iou-sqp-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::Check;
    use crate::invariant::testkit::check;
    use crate::invariant::testkit::{Kit, holds, not_exercised, violations};

    const C: u64 = 3 << 32 | 1;

    #[test]
    fn kernel_chains_only_hold() {
        let mut kit = Kit::new(1);
        kit.kernel_only(0, 0);
        kit.kernel_only(0, 2);
        kit.fork(0, 2, 77);
        kit.kernel_only(0, 77);
        assert_eq!(holds("X5", &kit).0, 3);
    }

    #[test]
    fn samples_that_could_show_no_cookie_do_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.sample(0, 2, 1, vec![]);
        not_exercised("X5", &kit);
        kit.kernel_only(0, 2);
        kit.spec("nmi", |spec| spec.exclude_callchain_user = true);
        not_exercised("X5", &kit);
    }

    #[test]
    fn cookies_and_answers_do_not() {
        let mut kit = Kit::new(1);
        kit.fork(0, 2, 77);
        kit.nmi(0, 0, C);
        kit.nmi(0, 77, C);
        kit.deferred(0, 2, C, &[0x40]);
        assert_eq!(violations("X5", &kit).len(), 3);
    }

    #[test]
    fn those_that_are_listed_are_judged() {
        let mut kit = Kit::new(1);
        kit.nmi(0, 17, C);
        not_exercised("X5", &kit);
        let mut trace = kit.trace();
        trace.observations = vec![Observation::KernelThread { tid: 17 }];
        assert!(matches!(check("X5", &trace), Check::Violated(_)));
    }

    #[test]
    fn workers_of_io_uring_are_like_them() {
        let name = |kit: &mut Kit, comm: &str| {
            let comm = comm.into();
            kit.push(0, 1005, 0, EventKind::Comm { comm, exec: false });
        };
        let mut kit = Kit::new(1);
        name(&mut kit, "iou-wrk-1001");
        kit.kernel_only(0, 1005);
        assert_eq!(holds("X5", &kit).0, 1);
        kit.nmi(0, 1005, C);
        assert_eq!(violations("X5", &kit).len(), 1);
        let mut other = Kit::new(1);
        name(&mut other, "deep-0");
        other.kernel_only(0, 1005);
        not_exercised("X5", &other);
    }

    #[test]
    fn what_called_exec_or_is_not_known_does_not_exercise_it() {
        let mut kit = Kit::new(1);
        kit.fork(0, 2, 77);
        kit.exec(0, 77);
        kit.nmi(0, 77, C);
        kit.nmi(0, 1001, C);
        not_exercised("X5", &kit);
    }
}
