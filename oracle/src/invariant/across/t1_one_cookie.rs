//! T1: one entry has one cookie, whichever client asks.

use crate::invariant::Tally;
use crate::invariant::evidence::{
    Answer, Evidence, Facts, INSTANCE, Relation, Request, Together, before,
};
use crate::trace::Trace;

/// T1. Two requests in a row of a task, of two clients, that are proved to be of one entry carry one cookie. That
/// they share it is never the proof.
///
/// A violation are two with different cookies that are proved to be of one system call, or of which the later one
/// comes before an answer to the first ([`is_between`]); behind the exit path's reset a new cookie is right, so
/// other pairs with different cookies are undecided.
pub fn judge(evidence: &Evidence<'_>, tally: &mut Tally) {
    let Some(view) = evidence.all_clients() else {
        return;
    };
    let facts = Facts::new(&view.trace, None);
    for (_, requests) in facts.by_task() {
        for pair in requests.windows(2) {
            let [a, b] = pair else { continue };
            if client(&view.trace, a) == client(&view.trace, b) {
                continue;
            }
            match (facts.relation(a.event, b.event), a.cookie == b.cookie) {
                (Relation::Same(_), true) => tally.holds(),
                (Relation::Different(_), _) | (Relation::Helped | Relation::Unknown, true) => {}
                (Relation::Same(Together::SystemCall), false) => {
                    changed(&view.trace, tally, (a, b), "in one system call");
                }
                (_, false) if is_between(&facts, a, b) => {
                    changed(&view.trace, tally, (a, b), "before the first was answered");
                }
                (_, false) => tally.undecided("the exit path's reset may lie in between"),
            }
        }
    }
}

fn changed(trace: &Trace, tally: &mut Tally, (a, b): (&Request<'_>, &Request<'_>), why: &str) {
    tally.violated_elsewhere(format!(
        "task {} got cookie {:#x} from {}, and {:#x} from {} {why}",
        a.event.tid.unwrap_or_default(),
        a.cookie,
        name(trace, a),
        b.cookie,
        name(trace, b),
    ));
}

/// Whether the second request certainly came between the first and an answer to it.
///
/// An earlier answer, which may be among what was lost, changes nothing: the reset ends a cookie for good, so a
/// right kernel answers none behind a request that got another one. But the order must be certain. The clock of
/// a guest can stand still for several entries: kvm-clock without a stable TSC gives a CPU that is behind the
/// last value that any CPU has read (`__pvclock_clocksource_read`, arch/x86/kernel/pvclock.c, 7.3).
fn is_between(facts: &Facts<'_>, first: &Request<'_>, second: &Request<'_>) -> bool {
    let answers = facts.exchanges.get(&first.cookie).map(|it| &it.answers);
    let of_task = |it: &&Answer<'_>| it.task.is_some() && it.task == first.task;
    before(first.event, second.event)
        && answers.is_some_and(|answers| {
            let mut own = answers.iter().filter(of_task);
            own.any(|it| before(second.event, it.event))
        })
}

/// The client of a request: its instance, however often it was registered. All specs of perf are one client.
fn client(trace: &Trace, request: &Request<'_>) -> Option<String> {
    let open = trace.session.get(request.event.event?)?;
    let specs = trace.tracing.as_ref()?;
    let spec = specs.events.get(usize::try_from(open.spec).ok()?)?;
    spec.name.starts_with(INSTANCE).then(|| spec.name.clone())
}

fn name(trace: &Trace, request: &Request<'_>) -> String {
    client(trace, request).unwrap_or_else(|| "perf".to_owned())
}
